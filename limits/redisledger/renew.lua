-- renew [ttl, name, id, resource, documented, length, milliseconds,
--        log, cost, window, merge, cpu, ...]
-- Keeps a permit in flight alive, or takes it up again.
local id, resource, taken = arg[3], arg[4], arg[7]
local values = redis.call('HMGET', key, 'm', 'x:' .. id)
begin(values[1])
local l = lease(id, values[2])
window(resource, arg[5], arg[6])
if not l then
  l = {id = id, granted = now, expiry = now + leasetime, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
  for i = 8, #arg, 5 do
    local g = log(arg[i])
    g.window, g.merge, g.dirty = arg[i + 2], arg[i + 3], true
    table.insert(l.holds, {name = arg[i], cost = arg[i + 1], cpu = arg[i + 4]})
  end
  take(l)
end
if l.left == 1 then return 0 end
l.expiry = now + leasetime
for _, h in ipairs(l.holds) do
  if h.cpu == 1 and taken > h.cost then
    hold(log(h.name), taken - h.cost)
    h.cost = taken
  end
end
keep(l)
save(arg[1], arg[2])
return 1
