-- The state of one account and the functions that change the state, by the same rules as in package limits. Every step
-- on an account is one script: clock.lua, this file, and the file of the step. doc.go describes the fields of the hash.
-- A step reads fields when needed, changes tables in memory, and writes the tables with save(). All times are
-- microseconds since 1970 on the clock of Redis.

local SECOND = 1000000
local MARGIN = SECOND -- added to times that the upstream reports in whole seconds
local JITTER = 2 * SECOND -- two resets within this distance are resets of one window
local CERTAIN_AFTER = 10 -- responses about one window after which MARGIN replaces JITTER
local LONGEST_WINDOW = 24 * 3600 * SECOND
local SLOW_START = 3 -- requests admitted before the first response about a window
local TRY_EVERY = SECOND -- interval of further requests before the first response
local UNLIMITED_AFTER = 3 -- silent responses after which a window is unlimited
local RESERVE_PARTS = 20 -- batch claims leave 1/RESERVE_PARTS of a window to other claims
local PERMIT_LIFE = 30 * SECOND
local LINGER = 10 * SECOND -- time for which the upstream may still count an abandoned request
local OFFLINE_LEASE_TIME = 300 * SECOND

local floor, max, min = math.floor, math.max, math.min
local key = KEYS[1]
local call = cjson.decode(ARGV[1]) -- see call in script.go
local step = call.step
local headroom = step.headroom or 0 -- the fraction of each limit that is not used
local now = clock()
local account -- times, cool-down and number of concurrency slots in use
local must_save = false -- a refusal must be saved, because the account entered its relearning time
local writes -- number of writes of the calling replica (restore.go)
local logs, windows, leases = {}, {}, {} -- by name, resource and id; false for an unknown id in leases
local changed = {} -- the logs, windows and leases that save() writes
local removed = {} -- the ids in leases that save() deletes

-- unpack fails for about 8,000 values, so in_chunks passes at most 1,000 values at a time to run.
local function in_chunks(list, run)
  for first = 1, #list, 1000 do
    run(first, unpack(list, first, min(first + 999, #list)))
  end
end

local function read_field(name) return redis.call('HGET', key, name) end

-- Returns the names of all fields that begin with prefix.
local function field_names(prefix)
  local names = {}
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if name:sub(1, #prefix) == prefix then table.insert(names, name) end
  end
  return names
end

-- Sliding logs. total is the sum of all entries. held is the sum of the costs that permits and offline leases hold. The
-- fields first, last and cost are the newest entry, which collects spends for the time merge. last is the time of the
-- newest entry. Older entries are in a separate field. A step reads that field when an older entry expires, or when the
-- newest entry becomes an older entry.

local function log(name)
  local l = logs[name]
  if not l then
    local text = read_field('l:' .. name)
    l = text and cmsgpack.unpack(text)
      or {window = 0, merge = 0, total = 0, held = 0, older = 0, oldest = 0, first = 0, last = 0, cost = 0}
    l.name = name
    logs[name] = l
  end
  return l
end

local function resize_log(l, window, merge)
  if l.window ~= window or l.merge ~= merge then
    l.window, l.merge, changed[l] = window, merge, true
  end
end

-- Returns the older entries of a log: a list of {at, cost}, oldest first.
local function older_entries(l)
  if not l.entries then
    l.entries = l.older > 0 and cmsgpack.unpack(read_field('e:' .. l.name)) or {}
  end
  return l.entries
end

local function set_older_entries(l, list)
  l.entries, l.older, l.oldest = list, #list, list[1] and list[1].at or 0
  l.entries_changed, changed[l] = true, true
end

-- Removes the entries whose time is at or earlier.
local function forget(l, at)
  if l.older > 0 and l.oldest <= at then
    local kept = {}
    for _, e in ipairs(older_entries(l)) do
      if e.at <= at then l.total = l.total - e.cost else table.insert(kept, e) end
    end
    set_older_entries(l, kept)
  end
  if l.older == 0 and l.cost > 0 and l.last <= at then
    l.total, l.cost, changed[l] = l.total - l.cost, 0, true
  end
end

local function expire_entries(l) forget(l, now - l.window) end

-- Adds a spend at a time. If the newest entry is later, the spend gets the time of the newest entry.
local function spend(l, at, cost)
  if cost == 0 then return end
  l.total, changed[l] = l.total + cost, true
  if l.cost > 0 then
    at = max(at, l.last)
    if at - l.first < l.merge or at == l.last then
      l.last, l.cost = at, l.cost + cost
      return
    end
    local list = older_entries(l)
    table.insert(list, {at = l.last, cost = l.cost})
    set_older_entries(l, list)
  end
  l.first, l.last, l.cost = at, at, cost
end

local function hold(l, cost)
  if cost ~= 0 then l.held, changed[l] = l.held + cost, true end
end

-- Returns the time at which the given number of spent tokens will have returned.
local function return_time(l, tokens)
  for _, e in ipairs(older_entries(l)) do
    tokens = tokens - e.cost
    if tokens <= 0 then return e.at + l.window end
  end
  return l.last + l.window
end

-- Primary windows. observed contains the reports of responses about the window: one observation, or two observations if
-- regions of the upstream count separately. late and early bound the clock of Redis minus the clock of the upstream.

local function usable(limit) return limit - math.ceil(limit * headroom) end
local function end_of(o) return o.reset + o.late end
local function reopens(o) return end_of(o) + (o.answers < CERTAIN_AFTER and JITTER or MARGIN) end

-- Returns the window of a resource. resource is {name, limit, window} from the documentation of the API.
local function window(resource)
  local w = windows[resource.name]
  if not w then
    local text = read_field('w:' .. resource.name)
    w = text and cmsgpack.unpack(text)
      or {documented = 0, length = 0, limit = 0, over = 0, answered = false, in_use = 0, silent = 0, tries = 0, tried = 0,
        quiet = 0, observed = {}}
    w.resource, w.quiet = resource.name, w.quiet or 0
    windows[resource.name] = w
  end
  if resource.limit and (w.documented ~= resource.limit or w.length ~= resource.window) then
    w.documented, w.length, w.limit, changed[w] = resource.limit, resource.window, resource.limit, true
  end
  return w
end

-- Returns the log of requests that the upstream may have counted without a report.
local function unconfirmed(w)
  local l = log('unconfirmed:' .. w.resource)
  l.window, l.merge = w.length + JITTER, floor(w.length / 256)
  return l
end

-- Reports whether a window admits without limit: the upstream has never reported or enforced a limit of the account, and
-- several requests of the resource succeeded. quiet counts the silent responses.
local function unlimited(w) return not account.enforced and w.quiet >= UNLIMITED_AFTER end

-- Adds requests without a report to the log of unconfirmed requests, unless the window is unlimited.
local function spend_unconfirmed(w, at, requests)
  if not unlimited(w) then spend(unconfirmed(w), at, requests) end
end

-- Removes the observations of windows that have ended, and returns the log of unconfirmed requests.
local function roll_window(w)
  local u = unconfirmed(w)
  expire_entries(u)
  for i = #w.observed, 1, -1 do
    local o = w.observed[i]
    if reopens(o) <= now then
      table.remove(w.observed, i)
      if o.answers > 0 then w.over = max(w.over, o.reset) end -- an assumed reset is on the clock of Redis
      w.answered, w.silent, w.tries, changed[w] = false, 0, 0, true
      forget(u, o.reset + o.early)
    end
  end
  return u
end

-- Records the report of a response: limit, used, reset, and date if the response has a date. received is the arrival of
-- the response. sent is the time of the grant, or 0 if the time is unknown.
local function observe(w, report, sent, received)
  local u = roll_window(w)
  changed[w] = true
  local o = {reset = report.reset, late = 0, early = 0, limit = report.limit, used = report.used, answers = 1}
  if report.date then
    o.late, o.early = received - report.date, sent - report.date - SECOND
  elseif o.reset + w.length <= received then
    o.late = received + w.length - o.reset
  end
  o.late = min(o.late, received + LONGEST_WINDOW - o.reset)
  if (w.over ~= 0 and o.reset <= w.over + JITTER) or reopens(o) <= now then return end
  w.answered, w.limit = true, o.limit
  forget(u, sent - 1)
  for _, old in ipairs(w.observed) do
    if math.abs(old.reset - o.reset) <= JITTER then
      old.reset, old.used, old.limit = max(old.reset, o.reset), max(old.used, o.used), o.limit
      old.late, old.early = min(old.late, o.late), max(old.early, o.early)
      old.answers = old.answers + 1
      return
    end
  end
  table.insert(w.observed, o)
  table.sort(w.observed, function(a, b) return a.reset < b.reset end)
  if #w.observed > 2 then table.remove(w.observed, 1) end
end

-- Closes a window after a primary limit error. If no response reported the window, its reset is the parameter assumed.
local function exhaust(w, assumed)
  roll_window(w)
  if assumed + JITTER <= now then return end
  w.answered, changed[w] = true, true
  if #w.observed == 0 then
    w.observed = {{reset = assumed, late = 0, early = 0, limit = w.limit, used = w.limit, answers = 0}}
  end
  for _, o in ipairs(w.observed) do o.used = max(o.used, o.limit) end
end

-- Returns limit, used and reset for the x-ratelimit headers, and whether the window is unlimited. Search also has a log, and the use of the more used of the
-- two is reported.
local function rate_of(w)
  local limit, used, reset = w.limit, 0, now + w.length
  local u = roll_window(w)
  for _, o in ipairs(w.observed) do
    limit = o.limit
    if o.used >= used then
      used, reset = o.used, o.reset
      if o.late <= -JITTER or o.late >= JITTER then reset = floor(end_of(o) / SECOND) * SECOND end
    end
  end
  used = used + u.total
  local l = log('primary:' .. w.resource) -- empty for other resources than search
  expire_entries(l)
  if l.total > used then
    used, reset = l.total, (l.older > 0 and l.oldest or l.last) + l.window
  end
  return {limit = limit, used = used, reset = string.format('%.0f', reset), unlimited = unlimited(w)}
end

-- The table leases contains the permits and the offline leases of the account. Each element l reserves l.places
-- concurrency slots, l.units requests of a primary window, and l.holds: a list of costs in logs {log, cost, cpu}. A
-- permit reserves one slot. A charged permit reserves only its slot. An abandoned permit ends when the upstream has
-- certainly stopped working on the request.

local function lease(id)
  if leases[id] == nil then
    local text = read_field('x:' .. id)
    local l = text and cmsgpack.unpack(text)
    if l then l.id = id end
    leases[id] = l
  end
  return leases[id]
end

local function remove(l)
  leases[l.id], removed[l.id] = false, true
  account.places = account.places - l.places
  if account.probe == l.id then account.probe = nil end
end

local function use_units(l, units)
  local w = window({name = l.resource})
  w.in_use, changed[w] = w.in_use + units, true
end

-- Adds a permit or an offline lease, and reserves its quota.
local function reserve(l)
  for _, h in ipairs(l.holds) do hold(log(h.log), h.cost) end
  use_units(l, l.units)
  if account.places == 0 or l.expires < account.next_expiry then account.next_expiry = l.expires end
  account.places = account.places + l.places
  leases[l.id], changed[l], removed[l.id] = l, true, nil
end

-- Reserves again for a permit that this replica holds and Redis does not have.
local function reserve_again(p)
  window(p.resource)
  local l = {id = p.id, granted = 0, expires = p.expires or now + PERMIT_LIFE, places = 1, units = p.charged and 0 or 1,
    charged = p.charged, abandoned = p.expires ~= nil, resource = p.resource.name, holds = {}}
  for _, h in ipairs(p.holds or {}) do
    resize_log(log(h.log), h.window, h.merge)
    table.insert(l.holds, {log = h.log, cost = h.cost, cpu = h.cpu})
  end
  reserve(l)
  return l
end

local function release_holds(l)
  for _, h in ipairs(l.holds) do hold(log(h.log), -h.cost) end
  use_units(l, -l.units)
end

-- Turns the costs and units that a permit holds into spends.
local function charge(l, at)
  release_holds(l)
  for _, h in ipairs(l.holds) do spend(log(h.log), at, h.cost) end
  l.holds, l.units, l.charged, changed[l] = {}, 0, true, true
end

local function abandon(l)
  l.abandoned, l.expires, changed[l] = true, now + LINGER, true
  account.next_expiry = min(account.next_expiry, l.expires)
end

-- Raises the CPU time that a permit holds. If may_lower is set, the CPU time may also fall.
local function hold_cpu(l, milliseconds, may_lower)
  for _, h in ipairs(l.holds) do
    if h.cpu and (may_lower or milliseconds > h.cost) then
      hold(log(h.log), milliseconds - h.cost)
      h.cost, changed[l] = milliseconds, true
    end
  end
end

-- Charges and removes the expired permits and offline leases, in the order of their expiry.
local function expire_leases()
  local names, ended = field_names('x:'), {}
  account.next_expiry = 0
  in_chunks(names, function(first, ...)
    for i, text in ipairs(redis.call('HMGET', key, ...)) do
      local l = cmsgpack.unpack(text)
      if l.expires <= now then
        l.id = names[first + i - 1]:sub(3)
        table.insert(ended, l)
      elseif account.next_expiry == 0 or l.expires < account.next_expiry then
        account.next_expiry = l.expires
      end
    end
  end)
  table.sort(ended, function(a, b)
    if a.expires ~= b.expires then return a.expires < b.expires end
    return a.id < b.id
  end)
  for _, l in ipairs(ended) do
    if not l.charged then
      spend_unconfirmed(window({name = l.resource}), l.expires, l.units)
      charge(l, l.expires)
    end
    remove(l)
  end
end

-- Returns the number of concurrency slots, and ends a completed slow start.
local function max_places(concurrent)
  if account.ceiling ~= 0 then concurrent = min(concurrent, account.ceiling) end
  if account.slow_start == 0 then return concurrent end
  local doublings = floor((now - account.slow_start) / (5 * SECOND))
  if doublings >= 30 or 2 ^ doublings >= concurrent then
    account.slow_start = 0
    return concurrent
  end
  return 2 ^ doublings
end

-- Loads the account, or creates an empty account.
local function load()
  local text = read_field('m')
  account = text and cmsgpack.unpack(text)
    or {seen = 0, touched = 0, places = 0, next_expiry = 0, cooldown_until = 0, limited_at = 0, limit_errors = 0, probing = false,
      slow_start = 0, ceiling = 0, ceiling_raised = 0, relearning_until = 0, process = '', enforced = false}
end

local function advance()
  now = max(now, account.seen)
  account.seen = now
  if account.places > 0 and now >= account.next_expiry then expire_leases() end
end

-- Begins a step that changes the account. If writes of the calling replica are missing, begin returns a reply. The step
-- must then return that reply, and the replica restores the writes.
-- After a possible loss of data the account is relearning: it grants nothing until all replicas had the time to restore
-- their writes. Data may be lost if another Redis process wrote the account. Data may also be lost if the account is
-- new and the epoch began within the relearning time.
local function begin()
  load()
  account.enforced = account.enforced or call.enforced
  if account.touched == 0 then
    account.process = call.process
    local epoch = KEYS[2] and redis.call('HMGET', KEYS[2], 'since', 'process')
    if call.confirmed > 0 or call.may_be_lost or (epoch and epoch[2] ~= call.process) then
      account.relearning_until, must_save = now + call.relearning, true
    elseif epoch and epoch[1] + call.relearning > now then
      account.relearning_until, must_save = epoch[1] + call.relearning, true
    end
  elseif account.process ~= call.process then
    account.process, account.relearning_until, must_save = call.process, now + call.relearning, true
  end
  now = max(now, account.seen)
  account.seen = now
  writes = tonumber(read_field('r:' .. call.replica)) or 0
  if writes < call.confirmed then return cjson.encode({missing = true, writes = writes}) end
  advance()
end

-- Removes, at most once an hour, the counters of replicas without a write since the previous removal.
local function remove_idle_replicas()
  local text = read_field('a')
  local last = text and cmsgpack.unpack(text) or {at = 0, writes = {}}
  if now - last.at < 3600 * SECOND then return end
  local counters = {}
  for _, name in ipairs(field_names('r:')) do
    counters[name] = read_field(name)
    if counters[name] == last.writes[name] then redis.call('HDEL', key, name) end
  end
  redis.call('HSET', key, 'a', cmsgpack.pack({at = now, writes = counters}))
end

-- Writes all changes, and renews the TTL once a minute. The first letter of a field is its kind (doc.go).
-- Fields: n name, m account, l log, e older entries, w window, x permit or lease, r writes, a earlier writes.
local function save()
  writes = writes + 1
  local set, delete = {'r:' .. call.replica, writes}, {}
  local function put(name, value)
    table.insert(set, name)
    table.insert(set, value)
  end
  if account.touched == 0 then put('n', call.account) end
  local renew_ttl = now - account.touched >= 60 * SECOND
  if renew_ttl then account.touched = now end
  put('m', cmsgpack.pack(account))
  for name, l in pairs(logs) do
    if changed[l] then
      put('l:' .. name, cmsgpack.pack({window = l.window, merge = l.merge, total = l.total, held = l.held,
        older = l.older, oldest = l.oldest, first = l.first, last = l.last, cost = l.cost}))
      if l.entries_changed and l.older > 0 then put('e:' .. name, cmsgpack.pack(l.entries)) end
      if l.entries_changed and l.older == 0 then table.insert(delete, 'e:' .. name) end
    end
  end
  for resource, w in pairs(windows) do
    if changed[w] then
      put('w:' .. resource, cmsgpack.pack({documented = w.documented, length = w.length, limit = w.limit, over = w.over,
        answered = w.answered, in_use = w.in_use, silent = w.silent, tries = w.tries, tried = w.tried,
        quiet = w.quiet, observed = w.observed}))
    end
  end
  for id, l in pairs(leases) do
    if changed[l] then
      put('x:' .. id, cmsgpack.pack({granted = l.granted, expires = l.expires, places = l.places, units = l.units,
        charged = l.charged, abandoned = l.abandoned, resource = l.resource, holds = l.holds}))
    end
  end
  for id in pairs(removed) do table.insert(delete, 'x:' .. id) end
  in_chunks(set, function(_, ...) redis.call('HSET', key, ...) end)
  in_chunks(delete, function(_, ...) redis.call('HDEL', key, ...) end)
  if renew_ttl then
    redis.call('PEXPIRE', key, call.ttl)
    remove_idle_replicas()
  end
end
