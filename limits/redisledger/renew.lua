-- renew [..., id, resource, documented, length, milliseconds, charged,
--        [log, cost, cpu, window, merge]...]
-- Keeps a permit in flight alive, or takes it up again; of one that is charged
-- only its place.
-- Returns {1, writes}, or {-1, writes} when some are missing.
local id, resource, taken = arg[8], arg[9], arg[12]
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3], 'x:' .. id)
if begin(values[1], values[2]) then return {-1, count} end
local l = lease(id, values[3])
window(resource, arg[10], arg[11])
if not l then
  -- granted is not known any more: what it tells later makes nothing forgotten.
  l = {id = id, granted = 0, expiry = now + LEASETIME, places = 1, units = 1 - arg[13], charged = arg[13], left = 0, resource = resource, holds = {}}
  for i = 14, arg[13] == 0 and #arg or 0 do
    resize(log(arg[i][1]), arg[i][4], arg[i][5])
    table.insert(l.holds, arg[i])
  end
  take(l)
end
if l.left == 1 then return {1, count} end
l.expiry = now + LEASETIME
for _, h in ipairs(l.holds) do
  if h[3] == 1 and taken > h[2] then
    hold(log(h[1]), taken - h[2])
    h[2] = taken
  end
end
keep(l)
save()
return {1, count}
