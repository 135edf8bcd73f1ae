-- beat [..., headroom, concurrent, replicas,
--       [class, resource, documented, length, units wanted, units spent, units kept, places wanted, places kept,
--        [log, limit, window, merge, wanted, spent, kept, last spent]...]...]
-- Keeps what this replica may use should it lose Redis: for each class of
-- claims that it made lately a lease that stands by, on its share of what is
-- left and no more than it wants. What it has spent while it was alone is charged
-- first; of units those that no answer has told of: the others were told before.
-- What it was told last time (kept) stays with it, all of it: it would go on with
-- that if this answer were lost, and use it again when what it spent of it has
-- returned.
-- Returns {1, writes, now, {units, places, log's part, ...}...}, or {-1, writes}.
headroom = arg[8]
local replicas = arg[10]
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3])
if begin(values[1], values[2]) then return {-1, count} end
local out = {1, count, now}
for i = 11, #arg do
  local c = arg[i]
  local id, resource = '~' .. arg[3] .. '~' .. c[1], c[2]
  local old = lease(id, redis.call('HGET', key, 'x:' .. id))
  local later = {} -- what another beat has set aside since this one was sent
  if old and old.granted > arg[4] then
    c[7], c[9] = max(c[7], old.units), max(c[9], old.places)
    for _, h in ipairs(old.holds) do later[h[1]] = h[2] end
  end
  if old then
    for _, h in ipairs(old.holds) do hold(log(h[1]), -h[2]) end
    fly(old, -old.units)
    remove(old)
  end
  local w = window(resource, c[3], c[4])
  local g = rollwindow(w)
  if c[6] > 0 then
    spend(g, now, c[6])
    w.dirty = true
  end
  local function part(free, wanted)
    if now < m[LEARN] then return 0 end -- others have not told yet what they have spent
    if m[PROBING] == 1 then return 0 end -- who is alone cannot know what became of the probe
    return max(0, min(floor(free / (replicas + 1)), wanted))
  end
  local left = usable(w.limit) - g[TOTAL] - w.inflight
  for k, f in ipairs(w.told) do
    local here = usable(f.limit) - f.used - g[TOTAL] - w.inflight
    left = k == 1 and here or min(left, here)
  end
  local units, places = part(left, c[5]), part(cap(arg[9]) - m[PLACES], c[8])
  -- Of one that stands by, granted is the write that it was set aside by.
  local l = {id = id, granted = count + 1, expiry = now + STANDBY, charged = 0, left = 0, resource = resource, holds = {},
             units = max(units, c[7]), places = max(places, c[9])}
  local parts, useful = {units, places}, l.units > 0 and l.places > 0
  for j = 10, #c do
    local f = c[j]
    local s = log(f[1])
    resize(s, f[3], f[4])
    roll(s)
    spend(s, max(now, f[8]), f[6])
    local cost = part(f[2] - s[TOTAL] - s[HELD], f[5])
    table.insert(l.holds, {f[1], max(cost, f[7], later[f[1]] or 0), 0})
    table.insert(parts, cost)
  end
  if useful then
    take(l)
  else
    for k = 1, #parts do parts[k] = '0' end
  end
  table.insert(out, parts)
end
save()
out[2] = count
return out
