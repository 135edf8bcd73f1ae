-- What answers have told of a window.

-- learn takes in what an answer has told that was heard at some time, to a
-- request sent at another. date is nil where the upstream did not say.
local function learn(w, limit, used, reset, date, sent, heard)
  local g = rollwindow(w)
  w.dirty = true
  local f = {reset = reset, late = 0, early = 0, limit = limit, used = used, heard = 1}
  if date then
    f.late, f.early = heard - date, sent - date - SECOND
  elseif reset + w.length <= heard then
    f.late = heard + w.length - reset
  end
  f.late = min(f.late, heard + LONGEST - reset)
  if (w.over ~= 0 and reset <= w.over + JITTER) or reopens(f) <= now then return end
  w.answered, w.limit = 1, limit
  forget(g, sent - 1)
  for _, old in ipairs(w.told) do
    if math.abs(old.reset - reset) <= JITTER then
      old.reset, old.used, old.limit = max(old.reset, reset), max(old.used, used), limit
      old.late, old.early = min(old.late, f.late), max(old.early, f.early)
      old.heard = old.heard + 1
      return
    end
  end
  table.insert(w.told, f)
  if #w.told > 1 then table.sort(w.told, function(a, b) return a.reset < b.reset end) end
  if #w.told > 2 then table.remove(w.told, 1) end
end

-- exhaust closes a window that the upstream has refused a request for; until then
-- if nothing is known of it.
local function exhaust(w, till)
  rollwindow(w)
  if till + JITTER <= now then return end
  w.answered, w.dirty = 1, true
  if #w.told == 0 then
    w.told = {{reset = till, late = 0, early = 0, limit = w.limit, used = w.limit, heard = 0}}
  end
  for _, f in ipairs(w.told) do f.used = max(f.used, f.limit) end
end

-- show is what x-ratelimit headers tell of a window that is rolled: limit, used
-- and reset. Search shows the tighter of its two windows.
local function show(w)
  local limit, used, reset = w.limit, 0, now + w.length
  for _, f in ipairs(w.told) do
    limit = f.limit
    if f.used >= used then
      used, reset = f.used, f.reset
      if f.late <= -JITTER or f.late >= JITTER then reset = floor(finish(f) / SECOND) * SECOND end
    end
  end
  used = used + ghosts(w)[TOTAL]
  local s = logs['primary:' .. w.resource] -- only what was read: of other resources there is none
  if s then roll(s) end
  if s and s[TOTAL] > used then
    used, reset = s[TOTAL], (s[SEALED] > 0 and s[OLDEST] or s[LAST]) + s[WINDOW]
  end
  return limit, used, reset
end
