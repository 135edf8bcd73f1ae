-- An account: the machine of limits/account.go, kept in one hash. See
-- redisledger.go for its fields. Nothing is written before save().
local key = KEYS[1]
local second = 1000000
local margin = second       -- beyond a reset and a retry-after, told in seconds
local jitter = 2 * second   -- between two statements of one reset
local longest = 86400 * second
local slowstart = 3
local reserveparts = 20
local leasetime, linger = 30 * second, 10 * second
local floor, max, min = math.floor, math.max, math.min
local format, sub = string.format, string.sub

-- A step has one argument: its own, as JSON.
local arg = cjson.decode(ARGV[1])
local now = clock()
local changed, gone = {}, {} -- fields to set and to delete

local function whole(n) return format('%.0f', n) end

local pack, unpackrecord = cmsgpack.pack, cmsgpack.unpack

-- m is what concerns the whole account: its time, its leases, its cool-down.
local m
local function loadmeta(text)
  if not text then
    m = {last = 0, touched = 0, places = 0, expires = 0, till = 0, since = 0, episodes = 0, probing = 0, ramp = 0, ceiling = 0, raised = 0, probe = '-'}
  else
    local f = unpackrecord(text)
    m = {last = f[1], touched = f[2], places = f[3], expires = f[4], till = f[5], since = f[6], episodes = f[7],
         probing = f[8], ramp = f[9], ceiling = f[10], raised = f[11], probe = f[12]}
  end
  now = max(now, m.last)
  m.last = now
end

-- Logs. The newest entry stands in the head; older ones are sealed, in a field
-- of their own, each in entrysize characters: its last stamp and its cost.
local entrysize = 24
local logs = {}

local function loghead(name, text)
  local l
  if text then
    local f = unpackrecord(text)
    l = {name = name, window = f[1], merge = f[2], first = f[3], total = f[4], held = f[5], sealed = f[6], oldest = f[7], last = f[8], cost = f[9]}
  else
    l = {name = name, window = 0, merge = 0, first = 0, total = 0, held = 0, sealed = 0, oldest = 0, last = 0, cost = 0}
  end
  logs[name] = l
  return l
end

local function log(name)
  return logs[name] or loghead(name, redis.call('HGET', key, 'l:' .. name))
end

local function entries(l)
  if not l.entries then
    l.entries = l.sealed > 0 and redis.call('HGET', key, 'e:' .. l.name) or ''
  end
  return l.entries
end

-- forget drops the spends that were stamped until at.
local function forget(l, at)
  if l.sealed > 0 and l.oldest <= at then
    local text, from = entries(l), 1
    while l.sealed > 0 and l.oldest <= at do
      l.total = l.total - tonumber(sub(text, from + 16, from + 23))
      from = from + entrysize
      l.sealed = l.sealed - 1
      l.oldest = l.sealed > 0 and tonumber(sub(text, from, from + 15)) or 0
    end
    l.entries, l.resealed = sub(text, from), true
    l.dirty = true
  end
  if l.sealed == 0 and l.cost > 0 and l.last <= at then
    l.total, l.cost, l.dirty = l.total - l.cost, 0, true
  end
end

local function roll(l) forget(l, now - l.window) end

-- returns is when so many of the spent tokens have returned.
local function returns(l, need)
  local text, from = entries(l), 1
  for _ = 1, l.sealed do
    need = need - tonumber(sub(text, from + 16, from + 23))
    if need <= 0 then return tonumber(sub(text, from, from + 15)) + l.window end
    from = from + entrysize
  end
  return l.last + l.window
end

-- spend stamps cost with a time, or with the newest stamp if that is later.
local function spend(l, at, cost)
  if cost == 0 then return end
  l.total, l.dirty = l.total + cost, true
  if l.cost > 0 then
    at = max(at, l.last)
    if at - l.first < l.merge or at == l.last then
      l.last, l.cost = at, l.cost + cost
      return
    end
    l.entries = entries(l) .. format('%016.0f%08.0f', l.last, l.cost)
    l.sealed, l.resealed = l.sealed + 1, true
    if l.sealed == 1 then l.oldest = l.last end
  end
  l.first, l.last, l.cost = at, at, cost
end

-- admits returns nil when cost fits under limit, else when to ask again; 0 when
-- what is held decides.
local function admits(l, limit, cost)
  roll(l)
  local need = l.total + cost - limit
  if need > l.total then return now + l.window end
  if need > 0 then return returns(l, need) end
  if need + l.held > 0 then return 0 end
end

local function hold(l, cost)
  if cost ~= 0 then l.held, l.dirty = l.held + cost, true end
end

-- Windows. A fact is what was told of one window of the upstream's.
local windows = {}
local headroom = 0
local function usable(limit) return limit - math.ceil(limit * headroom) end
local function finish(f) return f.reset + f.late end
local function reopens(f) return finish(f) + margin end

local function parsewindow(resource, text)
  local w
  if text then
    local f = unpackrecord(text)
    w = {resource = resource, documented = f[1], length = f[2], over = f[3], answered = f[4], inflight = f[5], told = {}}
    for i = 6, #f, 5 do
      w.told[#w.told + 1] = {reset = f[i], late = f[i + 1], early = f[i + 2], limit = f[i + 3], used = f[i + 4]}
    end
  else
    w = {resource = resource, documented = 0, length = 0, over = 0, answered = 0, inflight = 0, told = {}}
  end
  windows[resource] = w
  return w
end

local function ghosts(w)
  local g = log('ghosts:' .. w.resource)
  g.window, g.merge = w.length + margin, floor(w.length / 256)
  return g
end

local function window(resource, documented, length)
  local w = windows[resource] or parsewindow(resource, redis.call('HGET', key, 'w:' .. resource))
  if documented then
    if w.documented ~= documented or w.length ~= length then w.dirty = true end
    w.documented, w.length = documented, length
  end
  return w
end

local function rollwindow(w)
  local g = ghosts(w)
  roll(g)
  local kept = {}
  for _, f in ipairs(w.told) do
    if reopens(f) > now then
      table.insert(kept, f)
    else
      w.over, w.answered, w.dirty = max(w.over, f.reset), 0, true
      forget(g, f.reset + f.early)
    end
  end
  w.told = kept
  return g
end

local function windowusable(w, default)
  if #w.told == 0 then return default end
  return usable(w.told[#w.told].limit)
end

-- fits is windowadmits for one of the upstream's windows.
local function fits(w, g, f, batch)
  local limit, spent = usable(f.limit), f.used + g.total
  if spent >= limit then return reopens(f) end
  if spent + w.inflight >= limit then return 0 end
  if not batch then return nil end
  local parts, free = reserveparts * w.length, limit - spent - w.inflight
  if floor(max(0, finish(f) - now) * limit / parts) < free then return nil end
  return finish(f) - floor((free * parts - 1) / limit)
end

local function windowadmits(w, batch)
  local g = rollwindow(w)
  local refused = w.answered == 0 and w.inflight >= slowstart
  local till = 0
  for _, f in ipairs(w.told) do
    local back = fits(w, g, f, batch)
    if back then refused, till = true, max(till, back) end
  end
  if #w.told == 0 then
    local limit = usable(w.documented)
    if batch then limit = limit - floor(limit / reserveparts) end
    if g.total >= limit then
      refused, till = true, limit > 0 and returns(g, g.total + 1 - limit) or now + w.length
    elseif g.total + w.inflight >= limit then
      refused = true
    end
  end
  if refused then return till end
end

-- learn takes in what an answer to a request sent at sent has told. date is
-- nil where the upstream did not say.
local function learn(w, limit, used, reset, date, sent)
  local g = rollwindow(w)
  w.answered, w.dirty = 1, true
  local f = {reset = reset, late = 0, early = 0, limit = limit, used = used}
  if date then
    f.late, f.early = now - date, sent - date - second
  elseif reset + w.length <= now then
    f.late = now + w.length - reset
  end
  f.late = min(f.late, now + longest - reset)
  if (w.over ~= 0 and reset <= w.over + jitter) or reopens(f) <= now then return end
  forget(g, sent - 1)
  for _, old in ipairs(w.told) do
    if math.abs(old.reset - reset) <= jitter then
      old.reset, old.used, old.limit = max(old.reset, reset), max(old.used, used), limit
      old.late, old.early = min(old.late, f.late), max(old.early, f.early)
      return
    end
  end
  table.insert(w.told, f)
  table.sort(w.told, function(a, b) return a.reset < b.reset end)
  if #w.told > 2 then table.remove(w.told, 1) end
end

local function exhaust(w)
  rollwindow(w)
  w.answered, w.dirty = 1, true
  if #w.told == 0 then
    w.told = {{reset = now + w.length, late = 0, early = 0, limit = w.documented, used = w.documented}}
  end
  for _, f in ipairs(w.told) do f.used = max(f.used, f.limit) end
end

local function back(w)
  rollwindow(w)
  local till = 0
  for _, f in ipairs(w.told) do
    if f.used >= f.limit then till = max(till, reopens(f)) end
  end
  return till
end

-- Leases.
local function parselease(id, text)
  local f = unpackrecord(text)
  local l = {id = id, granted = f[1], expiry = f[2], places = f[3], units = f[4], charged = f[5], left = f[6], resource = f[7], holds = {}}
  for i = 8, #f, 3 do
    l.holds[#l.holds + 1] = {name = f[i], cost = f[i + 1], cpu = f[i + 2]}
  end
  return l
end

-- lease returns a lease that is alive; text is its field as it was read.
local function lease(id, text)
  if text and not gone['x:' .. id] then return parselease(id, text) end
end

local function keep(l)
  local f, n = {l.granted, l.expiry, l.places, l.units, l.charged, l.left, l.resource}, 7
  for _, h in ipairs(l.holds) do
    f[n + 1], f[n + 2], f[n + 3] = h.name, h.cost, h.cpu
    n = n + 3
  end
  changed['x:' .. l.id], gone['x:' .. l.id] = pack(f), nil
end

local function remove(l)
  gone['x:' .. l.id], changed['x:' .. l.id] = true, nil
  m.places = m.places - l.places
  if m.probe == l.id then m.probe = '-' end
end

local function fly(l, units)
  local w = window(l.resource)
  w.inflight, w.dirty = w.inflight + units, true
end

-- take enters a lease with what it holds.
local function take(l)
  for _, h in ipairs(l.holds) do hold(log(h.name), h.cost) end
  fly(l, l.units)
  if m.places == 0 or l.expiry < m.expires then m.expires = l.expiry end
  m.places = m.places + l.places
  keep(l)
end

-- charge turns what a lease holds into spends of that time.
local function charge(l, at)
  for _, h in ipairs(l.holds) do
    local g = log(h.name)
    hold(g, -h.cost)
    spend(g, at, h.cost)
  end
  fly(l, -l.units)
  l.holds, l.units, l.charged = {}, 0, 1
end

-- leave lets a lease end when the upstream has surely stopped working.
local function leave(l)
  l.left, l.expiry = 1, min(l.expiry, now + linger)
  m.expires = min(m.expires, l.expiry)
  keep(l)
end

-- expire charges what expired leases hold, in the order in which they ended.
local function expire()
  local fields = {}
  for _, f in ipairs(redis.call('HKEYS', key)) do
    if sub(f, 1, 2) == 'x:' then table.insert(fields, f) end
  end
  local ended = {}
  m.expires = 0
  for i, text in ipairs(#fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}) do
    local l = parselease(sub(fields[i], 3), text)
    if l.expiry <= now then
      table.insert(ended, l)
    elseif m.expires == 0 or l.expiry < m.expires then
      m.expires = l.expiry
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
  if m.ceiling ~= 0 then concurrent = min(concurrent, m.ceiling) end
  if m.ramp == 0 then return concurrent end
  local step = floor((now - m.ramp) / (5 * second))
  if step >= 30 or 2 ^ step >= concurrent then
    m.ramp = 0
    return concurrent
  end
  return 2 ^ step
end

-- begin brings the account to now. What the step has read of it must be parsed
-- before.
local function begin(meta)
  loadmeta(meta)
  if m.places > 0 and now >= m.expires then expire() end
end

-- save writes what has changed, in one command, and keeps the account alive.
-- title is how people know it.
local function save(ttl, title)
  if m.touched == 0 then changed.n = title end
  for name, l in pairs(logs) do
    if l.dirty then
      changed['l:' .. name] = pack({l.window, l.merge, l.first, l.total, l.held, l.sealed, l.oldest, l.last, l.cost})
      if l.resealed then
        if l.sealed > 0 then changed['e:' .. name] = l.entries else gone['e:' .. name] = true end
      end
    end
  end
  for resource, w in pairs(windows) do
    if w.dirty then
      local f, n = {w.documented, w.length, w.over, w.answered, w.inflight}, 5
      for _, t in ipairs(w.told) do
        f[n + 1], f[n + 2], f[n + 3], f[n + 4], f[n + 5] = t.reset, t.late, t.early, t.limit, t.used
        n = n + 5
      end
      changed['w:' .. resource] = pack(f)
    end
  end
  local alive = now - m.touched < 60 * second
  if not alive then m.touched = now end
  local list, n = {'m', pack({m.last, m.touched, m.places, m.expires, m.till, m.since, m.episodes, m.probing, m.ramp,
    m.ceiling, m.raised, m.probe})}, 2
  for f, v in pairs(changed) do
    list[n + 1], list[n + 2] = f, v
    n = n + 2
  end
  redis.call('HSET', key, unpack(list))
  local f = next(gone)
  if f then
    local old = {f}
    for other in next, gone, f do old[#old + 1] = other end
    redis.call('HDEL', key, unpack(old))
  end
  if not alive then redis.call('PEXPIRE', key, ttl) end
end
