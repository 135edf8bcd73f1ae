-- admit [..., headroom, concurrent, id, resource, documented, length, batch,
--        [log, cost, cpu, budget, limit, window, merge]...]
-- Grants all that a claim asks for, or changes nothing.
-- Returns {1, writes} when granted, {0, writes, microseconds to wait or 0 when a
-- permit in flight decides, reason} when not, {-1, writes} when some are missing.
local concurrent, id, resource, batch = arg[8], arg[9], arg[10], arg[13] == 1
headroom = arg[7]
local fields, n = {}, #arg - 13
for i = 1, n do fields[i] = 'l:' .. arg[13 + i][1] end
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3], 'x:' .. id, 'w:' .. resource, 'l:ghosts:' .. resource, unpack(fields))
parsewindow(resource, values[4])
loghead('ghosts:' .. resource, values[5])
for i = 1, n do loghead(arg[13 + i][1], values[5 + i]) end
if begin(values[1], values[2]) then return {-1, count} end
if lease(id, values[3]) then return {1, count} end

local refused, till, reason = false, 0, ''
local function refuse(why, at)
  if not refused or at > till then refused, till, reason = true, at, why end
end
if now < m.learn then refuse('store', m.learn) end
if now < m.till then
  refuse('cooldown', m.till)
elseif m.probing == 1 and m.probe ~= '-' then
  refuse('cooldown', 0)
end
if m.places >= cap(concurrent) then refuse('concurrency', 0) end
local w = window(resource, arg[11], arg[12])
local l = {id = id, granted = now, expiry = now + leasetime, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
for i = 1, n do
  local s = arg[13 + i]
  local g, limit = logs[s[1]], s[5]
  resize(g, s[6], s[7])
  if s[4] == 'primary' then limit = usable(w.limit) end
  local at = admits(g, limit, s[2])
  if at then refuse(s[4], at) end
  l.holds[i] = s
end
local at = windowadmits(w, batch)
if at then refuse('primary', at) end
if refused then
  if m.moved then save() end
  return {0, count, whole(till == 0 and 0 or till - now), reason}
end
take(l)
if w.answered == 0 then w.tries, w.tried = w.tries + 1, now end
if m.probing == 1 then m.probe = id end
if m.ceiling ~= 0 and m.places >= m.ceiling and now - m.raised >= 10 * second then
  m.raised, m.ceiling = now, m.ceiling + 1
  if m.ceiling >= concurrent then m.ceiling = 0 end
end
save()
return {1, count}
