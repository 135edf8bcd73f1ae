-- Outcomes: what became of the requests that were let go.

-- hush takes in an answer that told nothing.
local function hush(w)
  local g = rollwindow(w)
  w.silent, w.dirty = w.silent + 1, true
  if w.silent >= SLOWSTART then w.answered = 1 end
  spend(g, now, 1)
end

local function back(w)
  rollwindow(w)
  local till = 0
  for _, f in ipairs(w.told) do
    if f.used >= f.limit then till = max(till, reopens(f)) end
  end
  return till
end

-- settlelease charges a lease by the outcome (limits.md section 5.5).
local function settlelease(l, o)
  local resent, answered, taken = o[6], o[7] == 1, o[10]
  if o[5] == 0 then
    for _, h in ipairs(l.holds) do hold(log(h[1]), -h[2]) end
    fly(l, -l.units)
    remove(l)
    return
  end
  for _, h in ipairs(l.holds) do
    if h[3] == 1 and (answered or taken > h[2]) then
      hold(log(h[1]), taken - h[2])
      h[2] = taken
    end
  end
  local other = l.id .. '+'
  if resent > 0 and not lease(other, redis.call('HGET', key, 'x:' .. other)) then
    -- Of the copies sent before, nobody knows: they are as one given up.
    local copies = {id = other, granted = l.granted, expiry = now + LINGER, places = 1, units = resent, charged = 0, left = 1,
      resource = l.resource, holds = {}}
    for _, h in ipairs(l.holds) do
      if h[3] == 0 and h[2] > 0 then table.insert(copies.holds, {h[1], h[2] * resent, 0}) end
    end
    take(copies)
  end
  if not answered then
    if m[PROBE] == l.id then m[PROBE] = '-' end
    leave(l)
    return
  end
  charge(l, now)
  keep(l)
end

-- hurt begins a cool-down, or makes it longer.
local function hurt(w, concurrent, began, retry)
  if began > m[SINCE] or (began == 0 and now >= m[TILL]) then
    local ceiling = concurrent
    if m[CEILING] ~= 0 then ceiling = min(ceiling, m[CEILING]) end
    m[CEILING], m[RAISED] = max(1, floor(ceiling / 2)), now
    m[EPISODES], m[SINCE] = m[EPISODES] + 1, now
  end
  local till, reset = now + 60 * SECOND * 2 ^ max(0, min(m[EPISODES] - 1, 6)), back(w)
  if retry > 0 then till = now + retry + MARGIN elseif reset ~= 0 then till = reset end
  m[TILL] = max(m[TILL], till)
  m[PROBING], m[PROBE], m[RAMP] = 1, '-', 0
end

-- settle charges a permit with what became of its request, and learns from the answer:
-- id, resource, documented, length, sent, resent, answered, ended, failed, milliseconds,
-- limited, retryafter, limit, used, reset, date, log.... The logs are those that it was
-- taken from. resource is what the answer named, or
-- the permit's own; limit is 0 when the headers said nothing, date when there was none.
-- It returns what the window shows then: {limit, used, reset}; and whether something is
-- to be written.
local function settle(o, text, concurrent)
  local id, w = o[1], window(o[2], o[3], o[4])
  local function told()
    rollwindow(w)
    return {show(w)}
  end
  local l = lease(id, text)
  if l and (l.charged == 1 or l.left == 1) then return told(), false end
  local began, failed = 0, o[9] == 1
  if l then
    began = l.granted
    settlelease(l, o)
  end
  if o[7] == 1 then
    if o[13] ~= 0 then
      learn(w, o[13], o[14], o[15], o[16] ~= 0 and o[16] or nil, began, now)
    elseif l then
      hush(w)
    end
    if o[11] == 'primary' then
      exhaust(w, now + w.length)
    elseif o[11] == 'secondary' then
      if l or now >= m[TILL] then hurt(w, concurrent, began, o[12]) end
    elseif not failed then
      if m[PROBING] == 1 and m[PROBE] == id then
        m[PROBING], m[PROBE], m[RAMP] = 0, '-', now
      elseif m[PROBING] == 0 and m[RAMP] == 0 then
        m[EPISODES] = 0
      end
    end
    if l and l.charged == 1 and o[8] == 1 then remove(l) end
  end
  return told(), true
end

-- release gives back the place of a permit that is settled; of an aborted one later:
-- id, aborted. It returns whether something is to be written.
local function release(o, text)
  local l = lease(o[1], text)
  if not l or l.charged == 0 or l.left == 1 then return {}, false end
  if o[2] == 1 then leave(l) else remove(l) end
  return {}, true
end

