-- settle [..., headroom, concurrent, id, resource, documented, length,
--         sent, resent, answered, ended, failed, milliseconds, limited, retryafter,
--         limit, used, reset, date, log, ...]
-- Charges a permit with what became of its request, and learns from the answer.
-- resource is what the answer named, or the permit's own; limit is 0 when the
-- headers said nothing, date when there was none. The logs are those that the
-- permit was taken from.
-- Returns {1, writes, now, end of a cool-down, limit, used, reset}, or {-1, writes}.
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

local concurrent, id, resource = arg[9], arg[10], arg[11]
headroom = arg[8]
local resent, taken = arg[15], arg[19]
local sent, answered, ended, failed = arg[14] == 1, arg[16] == 1, arg[17] == 1, arg[18] == 1
local fields = {}
for i = 26, #arg do fields[i - 25] = 'l:' .. arg[i] end
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3], 'x:' .. id, 'w:' .. resource, 'l:ghosts:' .. resource, unpack(fields))
parsewindow(resource, values[4])
loghead('ghosts:' .. resource, values[5])
for i = 26, #arg do loghead(arg[i], values[i - 20]) end
if begin(values[1], values[2]) then return {-1, count} end
local l = lease(id, values[3])
local w = window(resource, arg[12], arg[13])
local function told()
  rollwindow(w)
  local limit, used, reset = show(w)
  return {1, count, now, m[TILL], limit, used, reset}
end
if l and (l.charged == 1 or l.left == 1) then return told() end

-- settlelease charges the lease by the outcome (limits.md section 5.5).
local function settlelease(l)
  if not sent then
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
  if resent > 0 and not lease(id .. '+', redis.call('HGET', key, 'x:' .. id .. '+')) then
    -- Of the copies sent before, nobody knows: they are as one given up.
    local copies = {id = id .. '+', granted = l.granted, expiry = now + LINGER, places = 1, units = resent, charged = 0, left = 1,
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

local began = 0
if l then
  began = l.granted
  settlelease(l)
end
if answered then
  if arg[22] ~= 0 then
    learn(w, arg[22], arg[23], arg[24], arg[25] ~= 0 and arg[25] or nil, began, now)
  elseif l then
    hush(w)
  end
  if arg[20] == 'primary' then
    exhaust(w, now + w.length)
  elseif arg[20] == 'secondary' then
    if l or now >= m[TILL] then
      if began > m[SINCE] or (began == 0 and now >= m[TILL]) then
        local ceiling = concurrent
        if m[CEILING] ~= 0 then ceiling = min(ceiling, m[CEILING]) end
        m[CEILING], m[RAISED] = max(1, floor(ceiling / 2)), now
        m[EPISODES], m[SINCE] = m[EPISODES] + 1, now
      end
      local till, retry, reset = now + 60 * SECOND * 2 ^ max(0, min(m[EPISODES] - 1, 6)), arg[21], back(w)
      if retry > 0 then till = now + retry + MARGIN elseif reset ~= 0 then till = reset end
      m[TILL] = max(m[TILL], till)
      m[PROBING], m[PROBE], m[RAMP] = 1, '-', 0
    end
  elseif not failed then
    if m[PROBING] == 1 and m[PROBE] == id then
      m[PROBING], m[PROBE], m[RAMP] = 0, '-', now
    elseif m[PROBING] == 0 and m[RAMP] == 0 then
      m[EPISODES] = 0
    end
  end
  if l and l.charged == 1 and ended then remove(l) end
end
save()
return told()
