-- admit [..., headroom, concurrent, id, resource, documented, length, batch,
--        [log, cost, cpu, budget, limit, window, merge]...]
-- Grants all that a claim asks for, or changes nothing.
-- Returns {1, writes} when granted, {0, writes, microseconds to wait or 0 when a
-- permit in flight decides, reason, now, end of a cool-down} when not, {-1, writes} when some are missing.
-- returns is when so many of the spent tokens have returned.
local function returns(l, need)
  local text, from = entries(l), 1
  for _ = 1, l[SEALED] do
    need = need - tonumber(sub(text, from + 16, from + 23))
    if need <= 0 then return tonumber(sub(text, from, from + 15)) + l[WINDOW] end
    from = from + ENTRYSIZE
  end
  return l[LAST] + l[WINDOW]
end

-- admits returns nil when cost fits under limit, else when to ask again; 0 when
-- what is held decides.
local function admits(l, limit, cost)
  roll(l)
  local need = l[TOTAL] + cost - limit
  if need > l[TOTAL] then return now + l[WINDOW] end
  if need > 0 then return returns(l, need) end
  if need + l[HELD] > 0 then return 0 end
end

-- fits is windowadmits for one of the upstream's windows.
local function fits(w, g, f, batch)
  local limit, spent = usable(f.limit), f.used + g[TOTAL]
  if f.used >= limit then return reopens(f) end
  if spent >= limit then return min(reopens(f), returns(g, spent + 1 - limit)) end
  if spent + w.inflight >= limit then return 0 end
  if not batch then return nil end
  local parts, free = RESERVEPARTS * w.length, limit - spent - w.inflight
  if floor(max(0, finish(f) - now) * limit / parts) < free then return nil end
  return finish(f) - floor((free * parts - 1) / limit)
end

local function windowadmits(w, batch)
  local g = rollwindow(w)
  local refused = w.answered == 0 and w.tries >= SLOWSTART and now - w.tried < TRYEVERY
  local till = 0
  for _, f in ipairs(w.told) do
    local back = fits(w, g, f, batch)
    if back then refused, till = true, max(till, back) end
  end
  if #w.told == 0 then
    local limit = usable(w.limit)
    if batch then limit = limit - floor(limit / RESERVEPARTS) end
    if g[TOTAL] >= limit then
      refused, till = true, limit > 0 and returns(g, g[TOTAL] + 1 - limit) or now + w.length
    elseif g[TOTAL] + w.inflight >= limit then
      refused = true
    end
  end
  if refused then return till end
end

local concurrent, id, resource, batch = arg[9], arg[10], arg[11], arg[14] == 1
headroom = arg[8]
local fields, n = {}, #arg - 14
for i = 1, n do fields[i] = 'l:' .. arg[14 + i][1] end
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3], 'x:' .. id, 'w:' .. resource, 'l:ghosts:' .. resource, unpack(fields))
parsewindow(resource, values[4])
loghead('ghosts:' .. resource, values[5])
for i = 1, n do loghead(arg[14 + i][1], values[5 + i]) end
if begin(values[1], values[2]) then return {-1, count} end
local again = lease(id, values[3])
if again then
  if again.charged == 0 and again.left == 0 then
    again.expiry = now + LEASETIME -- it goes only now
    keep(again)
    save()
  end
  return {1, count}
end

local refused, till, reason = false, 0, ''
local function refuse(why, at)
  if not refused or at > till then refused, till, reason = true, at, why end
end
if now < m[LEARN] then refuse('store', m[LEARN]) end
if now < m[TILL] then
  refuse('cooldown', m[TILL])
elseif m[PROBING] == 1 and m[PROBE] ~= '-' then
  refuse('cooldown', 0)
end
if m[PLACES] >= cap(concurrent) then refuse('concurrency', 0) end
local w = window(resource, arg[12], arg[13])
local l = {id = id, granted = now, expiry = now + LEASETIME, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
for i = 1, n do
  local s = arg[14 + i]
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
  if moved then save() end
  return {0, count, till == 0 and 0 or till - now, reason, now, m[TILL]}
end
take(l)
if w.answered == 0 then w.tries, w.tried = w.tries + 1, now end
if m[PROBING] == 1 then m[PROBE] = id end
if m[CEILING] ~= 0 and m[PLACES] >= m[CEILING] and now - m[RAISED] >= 10 * SECOND then
  m[RAISED], m[CEILING] = now, m[CEILING] + 1
  if m[CEILING] >= concurrent then m[CEILING] = 0 end
end
save()
return {1, count}
