-- renew ttl name id resource documented length milliseconds
--       {log cost window merge cpu}...
-- Keeps a permit in flight alive, or takes it up again.
local id, resource, taken = ARGV[3], ARGV[4], tonumber(ARGV[7])
local l = lease(id, open({'w:' .. resource, 'x:' .. id}))
window(resource, tonumber(ARGV[5]), tonumber(ARGV[6]))
if not l then
  l = {id = id, granted = now, expiry = now + leasetime, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
  for i = 8, #ARGV, 5 do
    local g = log(ARGV[i])
    g.window, g.merge, g.dirty = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), true
    table.insert(l.holds, {name = ARGV[i], cost = tonumber(ARGV[i + 1]), cpu = tonumber(ARGV[i + 4])})
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
changed.n = ARGV[2]
save(ARGV[1])
return 1
