-- admit [ttl, headroom, concurrent, name, id, resource, documented, length, batch,
--        log, budget, cost, limit, window, merge, cpu, ...]
-- Grants all that a claim asks for, or changes nothing.
-- Returns {granted, microseconds to wait or 0 when a permit in flight decides, reason}.
local concurrent, id, resource, batch = arg[3], arg[5], arg[6], arg[9] == 1
headroom = arg[2]
local fields, spends, n = {}, {}, 0
for i = 10, #arg, 7 do
  n = n + 1
  spends[n] = {name = arg[i], budget = arg[i + 1], cost = arg[i + 2], limit = arg[i + 3], window = arg[i + 4], merge = arg[i + 5], cpu = arg[i + 6]}
  fields[n] = 'l:' .. arg[i]
end
local values = redis.call('HMGET', key, 'm', 'x:' .. id, 'w:' .. resource, 'l:ghosts:' .. resource, unpack(fields))
parsewindow(resource, values[3])
loghead('ghosts:' .. resource, values[4])
for i = 1, n do loghead(spends[i].name, values[4 + i]) end
begin(values[1])
if lease(id, values[2]) then return {1, '0', ''} end

local refused, till, reason = false, 0, ''
local function refuse(why, at)
  if not refused or at > till then refused, till, reason = true, at, why end
end
if now < m.till then
  refuse('cooldown', m.till)
elseif m.probing == 1 and m.probe ~= '-' then
  refuse('cooldown', 0)
end
if m.places >= cap(concurrent) then refuse('concurrency', 0) end
local w = window(resource, arg[7], arg[8])
local l = {id = id, granted = now, expiry = now + leasetime, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
for i, s in ipairs(spends) do
  local g, limit = logs[s.name], s.limit
  if g.window ~= s.window or g.merge ~= s.merge then
    g.window, g.merge, g.dirty = s.window, s.merge, true
  end
  if s.budget == 'primary' then limit = windowusable(w, limit) end
  local at = admits(g, limit, s.cost)
  if at then refuse(s.budget, at) end
  l.holds[i] = {name = s.name, cost = s.cost, cpu = s.cpu}
end
local at = windowadmits(w, batch)
if at then refuse('primary', at) end
if refused then
  return {0, whole(till == 0 and 0 or till - now), reason}
end
take(l)
if m.probing == 1 then m.probe = id end
if m.ceiling ~= 0 and m.places >= m.ceiling and now - m.raised >= 10 * second then
  m.raised, m.ceiling = now, m.ceiling + 1
  if m.ceiling >= concurrent then m.ceiling = 0 end
end
save(arg[1], arg[4])
return {1, '0', ''}
