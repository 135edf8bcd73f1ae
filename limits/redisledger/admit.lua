-- admit ttl headroom concurrent name id resource documented length batch
--       {log budget cost limit window merge cpu}...
-- Grants all that a claim asks for, or changes nothing.
-- Returns {granted, microseconds to wait or 0 when a permit in flight decides, reason}.
local ttl, concurrent, id, resource = ARGV[1], tonumber(ARGV[3]), ARGV[5], ARGV[6]
headroom = tonumber(ARGV[2])
local batch = ARGV[9] == '1'
local fields, spends = {'w:' .. resource, 'l:ghosts:' .. resource}, {}
for i = 10, #ARGV, 7 do
  local s = {name = ARGV[i], budget = ARGV[i + 1], cost = tonumber(ARGV[i + 2]), limit = tonumber(ARGV[i + 3]),
             window = tonumber(ARGV[i + 4]), merge = tonumber(ARGV[i + 5]), cpu = tonumber(ARGV[i + 6])}
  table.insert(spends, s)
  table.insert(fields, 'l:' .. s.name)
end
table.insert(fields, 'x:' .. id)
if lease(id, open(fields)) then return {1, '0', ''} end

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
local w = window(resource, tonumber(ARGV[7]), tonumber(ARGV[8]))
local l = {id = id, granted = now, expiry = now + leasetime, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
for i, s in ipairs(spends) do
  local g, limit = log(s.name), s.limit
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
changed.n = ARGV[4]
save(ttl)
return {1, '0', ''}
