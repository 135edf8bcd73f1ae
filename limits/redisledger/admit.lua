-- Claims: what is asked of an account.

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

-- admit grants all that a claim asks for, or changes nothing; claims that are alike are one
-- record: ids, resource, documented, length, batch, ahead, {log, cost, cpu, budget, limit, window, merge}... One that is asked for
-- ahead leaves half of each log and of the places, and the last part of a window, to those who
-- ask because they need it; and all of a window before its first answers, and of an account
-- that recovers from a limit error.
-- It returns {1} when granted, {0, microseconds to wait or 0 when a permit in flight
-- decides, reason} when not; and whether something is to be written.
local function admit(c, id, text, concurrent)
  local resource = c[2]
  local again = lease(id, text)
  if again then
    local waits = again.charged == 0 and again.left == 0
    if waits then
      again.expiry = now + LEASETIME -- it goes only now
      keep(again)
    end
    return {1}, waits
  end
  local ahead = c[6] == 1
  local part = ahead and 0.5 or 1
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
  if m[PLACES] + 1 > cap(concurrent) * part then refuse('concurrency', 0) end
  local w = window(resource, c[3], c[4])
  if ahead and (m[PROBING] == 1 or m[RAMP] ~= 0 or w.answered == 0) then refuse('ahead', 0) end
  local l = {id = id, granted = now, expiry = now + LEASETIME, places = 1, units = 1, charged = 0, left = 0, resource = resource, holds = {}}
  for i = 7, #c do
    local s = c[i]
    local g, limit = log(s[1]), s[5]
    resize(g, s[6], s[7])
    if s[4] == 'primary' then limit = usable(w.limit) end
    local at = admits(g, limit * part, s[2])
    if at then refuse(s[4], at) end
    l.holds[i - 6] = s
  end
  local at = windowadmits(w, ahead or c[5] == 1)
  if at then refuse('primary', at) end
  if refused then return {0, till == 0 and 0 or till - now, reason}, moved end
  take(l)
  if w.answered == 0 then w.tries, w.tried = w.tries + 1, now end
  if m[PROBING] == 1 then m[PROBE] = id end
  if m[CEILING] ~= 0 and m[PLACES] >= m[CEILING] and now - m[RAISED] >= 10 * SECOND then
    m[RAISED], m[CEILING] = now, m[CEILING] + 1
    if m[CEILING] >= concurrent then m[CEILING] = 0 end
  end
  return {1}, true
end

