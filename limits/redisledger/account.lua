-- An account: the machine of limits/account.go, kept in one hash. See
-- redisledger.go for its fields. Nothing is written before save().
--
-- What --:const defines is put in before a script is loaded: a local variable
-- that many functions use costs each script a microsecond.
--:const SECOND 1000000
--:const MARGIN 1000000       -- beyond what is told in whole seconds
--:const JITTER 2000000       -- between two statements of one reset; waited for until
--:const SUREAFTER 10         -- so many have been heard
--:const LONGEST 86400000000
--:const HOUR 3600000000
--:const SLOWSTART 3
--:const TRYEVERY 1000000
--:const RESERVEPARTS 20
--:const LEASETIME 30000000
--:const LINGER 10000000
--:const STANDBY 300000000

-- What all of a step shares. The rest is one function: beside it, each function
-- would look for what it shares anew, in every call.
local key = KEYS[1]
local arg = cjson.decode(ARGV[1]) -- a step has one argument: its own, as JSON
local now = clock()
local floor, max, min = math.floor, math.max, math.min
local format, sub, rep = string.format, string.sub, string.rep
local pack, parse = struct.pack, struct.unpack
local kept, gone = {}, {}             -- leases to set, and to delete, by id
local logs, names, dirty = {}, {}, {} -- by name; names of logs; whether a log has changed
local sealed, resealed = {}, {}       -- the entries kept apart; whether they have changed
local windows = {}
local headroom = 0
local count -- writes of this replica
-- m is the record of what concerns the whole account: its time, and when it was
-- last kept alive; its leases' places, and when the first of them ends; its
-- cool-down; and for the loss of writes, which process wrote it last, and until when
-- nothing is granted because other replicas may still have to tell what is missing.
--:const SEEN 1
--:const TOUCHED 2
--:const PLACES 3
--:const EXPIRES 4
--:const TILL 5
--:const SINCE 6
--:const EPISODES 7
--:const PROBING 8
--:const RAMP 9
--:const CEILING 10
--:const RAISED 11
--:const LEARN 12
--:const PROBE 13
--:const PROCESS 14
--:const METAFORMAT '<ddddddddddddss'
local m
local moved -- whether even a refusal must write it
return (function() -- newScripts ends it

local function loadmeta(text)
  m = text and {parse(METAFORMAT, text)} or {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '-', ''}
end

-- Logs. A log is the record that is kept: WINDOW and MERGE are its widths,
-- TOTAL what is spent, HELD what leases may yet spend. The newest entry, begun at
-- FIRST, has LAST and COST; SEALED older ones, the first of which has the stamp
-- OLDEST, are kept apart, each in entrysize characters: its last stamp, its cost.
--:const WINDOW 1
--:const MERGE 2
--:const FIRST 3
--:const TOTAL 4
--:const HELD 5
--:const SEALED 6
--:const OLDEST 7
--:const LAST 8
--:const COST 9
--:const ENTRYSIZE 24
--:const LOGFORMAT '<ddddddddd'
local function loghead(name, text)
  local l = text and {parse(LOGFORMAT, text)} or {0, 0, 0, 0, 0, 0, 0, 0, 0}
  logs[name], names[l] = l, name
  return l
end

local function log(name)
  return logs[name] or loghead(name, redis.call('HGET', key, 'l:' .. name))
end

local function resize(l, window, merge)
  if l[WINDOW] ~= window or l[MERGE] ~= merge then
    l[WINDOW], l[MERGE], dirty[l] = window, merge, true
  end
end

local function entries(l)
  local text = sealed[l]
  if not text then
    text = l[SEALED] > 0 and redis.call('HGET', key, 'e:' .. names[l]) or ''
    sealed[l] = text
  end
  return text
end

-- forget drops the spends that were stamped until at.
local function forget(l, at)
  if l[SEALED] > 0 and l[OLDEST] <= at then
    local text, from = entries(l), 1
    while l[SEALED] > 0 and l[OLDEST] <= at do
      l[TOTAL] = l[TOTAL] - tonumber(sub(text, from + 16, from + 23))
      from = from + ENTRYSIZE
      l[SEALED] = l[SEALED] - 1
      l[OLDEST] = l[SEALED] > 0 and tonumber(sub(text, from, from + 15)) or 0
    end
    sealed[l], resealed[l], dirty[l] = sub(text, from), true, true
  end
  if l[SEALED] == 0 and l[COST] > 0 and l[LAST] <= at then
    l[TOTAL], l[COST], dirty[l] = l[TOTAL] - l[COST], 0, true
  end
end

local function roll(l) forget(l, now - l[WINDOW]) end

-- spend stamps cost with a time, or with the newest stamp if that is later.
local function spend(l, at, cost)
  if cost == 0 then return end
  l[TOTAL], dirty[l] = l[TOTAL] + cost, true
  if l[COST] > 0 then
    at = max(at, l[LAST])
    if at - l[FIRST] < l[MERGE] or at == l[LAST] then
      l[LAST], l[COST] = at, l[COST] + cost
      return
    end
    sealed[l] = entries(l) .. format('%016.0f%08.0f', l[LAST], l[COST])
    l[SEALED], resealed[l] = l[SEALED] + 1, true
    if l[SEALED] == 1 then l[OLDEST] = l[LAST] end
  end
  l[FIRST], l[LAST], l[COST] = at, at, cost
end

local function hold(l, cost)
  if cost ~= 0 then l[HELD], dirty[l] = l[HELD] + cost, true end
end

-- Windows. A fact is what was told of one window of the upstream's.
local function usable(limit) return limit - math.ceil(limit * headroom) end
local function finish(f) return f.reset + f.late end
local function reopens(f) return finish(f) + (f.heard < SUREAFTER and JITTER or MARGIN) end

local function parsewindow(resource, text)
  local w
  if text then
    local f = {parse('<' .. rep('d', #text / 8), text)}
    w = {resource = resource, documented = f[1], length = f[2], over = f[3], answered = f[4], inflight = f[5], limit = f[6], silent = f[7],
         tries = f[8], tried = f[9], told = {}}
    for i = 10, #f - 1, 6 do
      w.told[#w.told + 1] = {reset = f[i], late = f[i + 1], early = f[i + 2], limit = f[i + 3], used = f[i + 4], heard = f[i + 5]}
    end
  else
    w = {resource = resource, documented = 0, length = 0, over = 0, answered = 0, inflight = 0, limit = 0, silent = 0,
         tries = 0, tried = 0, told = {}}
  end
  windows[resource] = w
  return w
end

local function ghosts(w)
  local g = w.ghosts
  if not g then
    g = log('ghosts:' .. w.resource)
    g[WINDOW], g[MERGE], w.ghosts = w.length + JITTER, floor(w.length / 256), g
  end
  return g
end

local function window(resource, documented, length)
  local w = windows[resource] or parsewindow(resource, redis.call('HGET', key, 'w:' .. resource))
  if documented then
    if w.documented ~= documented or w.length ~= length then
      w.documented, w.length, w.limit, w.dirty, w.ghosts = documented, length, documented, true, nil
    end
  end
  return w
end

local function rollwindow(w)
  local g = ghosts(w)
  roll(g)
  for i = #w.told, 1, -1 do
    local f = w.told[i]
    if reopens(f) <= now then
      table.remove(w.told, i)
      if f.heard > 0 then w.over = max(w.over, f.reset) end -- else it was made up, and by another clock
      w.answered, w.silent, w.tries, w.dirty = 0, 0, 0, true
      forget(g, f.reset + f.early)
    end
  end
  return g
end

-- Leases. Each hold is {log, cost, 1 if it is CPU time}.
local function parselease(id, text)
  local f = cmsgpack.unpack(text)
  local l = {id = id, granted = f[1], expiry = f[2], places = f[3], units = f[4], charged = f[5], left = f[6], resource = f[7], holds = {}}
  for i = 8, #f, 3 do
    l.holds[#l.holds + 1] = {f[i], f[i + 1], f[i + 2]}
  end
  return l
end

-- lease returns a lease that is alive; text is its field as it was read.
local function lease(id, text)
  if kept[id] then return kept[id] end
  if text and not gone[id] then return parselease(id, text) end
end

local function keep(l) kept[l.id], gone[l.id] = l, nil end

local function remove(l)
  gone[l.id], kept[l.id] = true, nil
  m[PLACES] = m[PLACES] - l.places
  if m[PROBE] == l.id then m[PROBE] = '-' end
end

local function fly(l, units)
  local w = window(l.resource)
  w.inflight, w.dirty = w.inflight + units, true
end

-- take enters a lease with what it holds.
local function take(l)
  for _, h in ipairs(l.holds) do hold(log(h[1]), h[2]) end
  fly(l, l.units)
  if m[PLACES] == 0 or l.expiry < m[EXPIRES] then m[EXPIRES] = l.expiry end
  m[PLACES] = m[PLACES] + l.places
  keep(l)
end

-- charge turns what a lease holds into spends of that time.
local function charge(l, at)
  for _, h in ipairs(l.holds) do
    local g = log(h[1])
    hold(g, -h[2])
    spend(g, at, h[2])
  end
  fly(l, -l.units)
  l.holds, l.units, l.charged = {}, 0, 1
end

-- leave lets a lease end when the upstream has surely stopped working.
local function leave(l)
  l.left, l.expiry = 1, now + LINGER
  m[EXPIRES] = min(m[EXPIRES], l.expiry)
  keep(l)
end

-- expire charges what expired leases hold, in the order in which they ended.
local function expire()
  local fields = {}
  for _, f in ipairs(redis.call('HKEYS', key)) do
    if sub(f, 1, 2) == 'x:' then table.insert(fields, f) end
  end
  local ended = {}
  m[EXPIRES] = 0
  for i, text in ipairs(#fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}) do
    local l = parselease(sub(fields[i], 3), text)
    if l.expiry <= now then
      table.insert(ended, l)
    elseif m[EXPIRES] == 0 or l.expiry < m[EXPIRES] then
      m[EXPIRES] = l.expiry
    end
  end
  table.sort(ended, function(a, b)
    if a.expiry ~= b.expiry then return a.expiry < b.expiry end
    return a.id < b.id
  end)
  for _, l in ipairs(ended) do
    if l.charged == 0 then
      spend(ghosts(window(l.resource)), l.expiry, l.units)
      charge(l, l.expiry)
    end
    remove(l)
  end
end

-- cap is how many requests may be in flight.
local function cap(concurrent)
  if m[CEILING] ~= 0 then concurrent = min(concurrent, m[CEILING]) end
  if m[RAMP] == 0 then return concurrent end
  local step = floor((now - m[RAMP]) / (5 * SECOND))
  if step >= 30 or 2 ^ step >= concurrent then
    m[RAMP] = 0
    return concurrent
  end
  return 2 ^ step
end

-- begin brings the account to now. What the step has read of it must be parsed
-- before. It returns true when writes of this replica are missing: then the step
-- must end, and the replica restores them.
--
-- Every step that changes something begins with: ttl, title, replica, how many
-- of its writes this replica knows to be done, the server's gen, whether an
-- account that is not there may have been lost, and how long replicas may take to
-- write again what was.
local function begin(meta, done)
  loadmeta(meta)
  if m[TOUCHED] == 0 then
    m[PROCESS] = arg[5]
    local era = KEYS[2] and redis.call('GET', KEYS[2])
    if arg[4] > 0 or arg[6] == 1 or (KEYS[2] and (not era or sub(era, 18) ~= arg[5])) then
      m[LEARN], moved = now + arg[7], true
    elseif era and tonumber(sub(era, 1, 16)) + arg[7] > now then
      m[LEARN], moved = tonumber(sub(era, 1, 16)) + arg[7], true
    end
  elseif m[PROCESS] ~= arg[5] then
    m[PROCESS], m[LEARN], moved = arg[5], now + arg[7], true
  end
  now = max(now, m[SEEN])
  m[SEEN] = now
  count = tonumber(done) or 0
  if count < arg[4] then return true end
  if m[PLACES] > 0 and now >= m[EXPIRES] then expire() end
end

-- look brings the account to now for a step that changes nothing.
local function look(meta)
  loadmeta(meta)
  now = max(now, m[SEEN])
  if m[PLACES] > 0 and now >= m[EXPIRES] then expire() end
end

-- dropreplicas forgets the replicas that have not written since it last looked, an
-- hour ago.
local function dropreplicas()
  local text = redis.call('HGET', key, 'a')
  local at, counts = 0, {}
  if text then at, counts = unpack(cmsgpack.unpack(text)) end
  if now - at < HOUR then return end
  local present = {}
  for _, f in ipairs(redis.call('HKEYS', key)) do
    if sub(f, 1, 2) == 'r:' then
      present[f] = redis.call('HGET', key, f)
      if present[f] == counts[f] then redis.call('HDEL', key, f) end
    end
  end
  redis.call('HSET', key, 'a', cmsgpack.pack({now, present}))
end

-- save writes what has changed, in one command, and keeps the account alive.
local function save()
  count = count + 1
  local list, n, old = {'r:' .. arg[3], count}, 2, {}
  local function set(name, value)
    list[n + 1] = name
    list[n + 2] = value
    n = n + 2
  end
  if m[TOUCHED] == 0 then set('n', arg[2]) end
  local alive = now - m[TOUCHED] < 60 * SECOND
  if not alive then m[TOUCHED] = now end
  set('m', pack(METAFORMAT, unpack(m)))
  for l in pairs(dirty) do
    local name = names[l]
    set('l:' .. name, pack(LOGFORMAT, unpack(l)))
    if resealed[l] then
      if l[SEALED] > 0 then set('e:' .. name, sealed[l]) else old[#old + 1] = 'e:' .. name end
    end
  end
  for resource, w in pairs(windows) do
    if w.dirty then
      local f, k = {w.documented, w.length, w.over, w.answered, w.inflight, w.limit, w.silent, w.tries, w.tried}, 9
      for _, t in ipairs(w.told) do
        f[k + 1], f[k + 2], f[k + 3], f[k + 4], f[k + 5], f[k + 6] = t.reset, t.late, t.early, t.limit, t.used, t.heard
        k = k + 6
      end
      set('w:' .. resource, pack('<' .. rep('d', k), unpack(f)))
    end
  end
  for id, l in pairs(kept) do
    local f, k = {l.granted, l.expiry, l.places, l.units, l.charged, l.left, l.resource}, 7
    for _, h in ipairs(l.holds) do
      f[k + 1], f[k + 2], f[k + 3] = h[1], h[2], h[3]
      k = k + 3
    end
    set('x:' .. id, cmsgpack.pack(f))
  end
  redis.call('HSET', key, unpack(list))
  for id in pairs(gone) do old[#old + 1] = 'x:' .. id end
  if #old > 0 then redis.call('HDEL', key, unpack(old)) end
  if not alive then
    redis.call('PEXPIRE', key, arg[1])
    dropreplicas()
  end
end
