-- The leases of one account. Every script on an account is clock.lua, steady.lua, this file, and the file of the script (with
-- divide.lua before roundtrip.lua). doc.go describes the fields of the hash. A script reads fields when needed, changes tables in memory, and writes the changed
-- tables with save(). Times are microseconds since 1970 on the clock of Redis.

local SECOND = 1000000
local MOST = 1e9 -- the largest number of a report, as in policy/numbers.go
local JITTER = 2 * SECOND -- two resets within this distance are resets of one window
local BEHIND = 10 -- the same as mostBehind in window.go
local LEASE_TIME, SPARE_TIME = 30 * SECOND, 300 * SECOND -- the same as leaseTime and spareTime in account.go
local FORGET_TIME = 7200 * SECOND -- time without calls after which a replica is forgotten; the same as forgetTime in account.go
local WAIT_TIME, SLOTS_WAIT, LONGEST_WAIT = SECOND, SECOND / 5, 60 * SECOND -- the same as in divide.go

local floor, max, min = math.floor, math.max, math.min
local key = KEYS[1]
local call = cjson.decode(ARGV[1]) -- see call in roundtrip.go
local now = clock()
local account, replica -- the fields m and r:REPLICA
local save_needed = false
local tables, changed = {}, {} -- by field; false for a field to delete

local function int(n) return string.format('%.0f', n) end -- cjson rounds large numbers

-- Returns the table that a field contains, or the table empty.
local function field(name, empty)
  if not tables[name] then
    local text = tables[name] == nil and redis.call('HGET', key, name)
    tables[name] = text and cmsgpack.unpack(text) or empty
  end
  return tables[name]
end

-- Returns the names of all fields that begin with prefix.
local function fields(prefix)
  local names = {}
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if name:sub(1, #prefix) == prefix then table.insert(names, name) end
  end
  return names
end

local function total(budget)
  return field('t:' .. budget, {tokens = 0, extra = 0, spent = 0, held = 0, reported = 0, replicas = 0, returns = 0, ends = 0})
end

local function lease_name(name, budget) return 'l:' .. name .. ':' .. budget end

local function lease(name, budget)
  return field(lease_name(name, budget), {tokens = 0, extra = 0, spare = 0, spent = 0, held = 0, reported = 0, windows = 0})
end

local function window(budget)
  if budget:sub(1, 7) == 'window:' then
    return field('w:' .. budget:sub(8), {version = 0, reports = {}, over = 0, silent = 0, windows = 0})
  end
end

-- Gives a lease another number of tokens.
local function set_tokens(budget, l, tokens)
  local t = total(budget)
  t.tokens = t.tokens + tokens - l.tokens
  if not l.left and l.tokens == 0 and tokens > 0 then t.replicas = t.replicas + 1 end
  if not l.left and l.tokens > 0 and tokens == 0 then t.replicas = t.replicas - 1 end
  l.tokens = tokens
end

local function set_extra(budget, l, extra)
  local t = total(budget)
  t.extra = t.extra + extra - l.extra
  l.extra = extra
end

-- Records what a replica uses of a budget.
local function set_use(budget, l, use)
  local t = total(budget)
  for _, name in ipairs({'spent', 'held', 'reported'}) do
    t[name] = t[name] + use[name] - l[name]
    l[name] = use[name]
  end
end

-- Begins the next window of a budget. Each replica then has the tokens and the extra tokens of its lease (catch_up).
local function begin_window(budget, w)
  local t = total(budget)
  w.windows, w.version = w.windows + 1, w.version + 1
  t.tokens, t.extra, t.reported = t.tokens + t.extra, 0, 0
  changed['w:' .. budget:sub(8)], changed['t:' .. budget] = true, true
end

-- Ends the windows whose reset has passed.
local function end_windows(budget, w)
  local reports = #w.reports
  for i = #w.reports, 1, -1 do
    local o = w.reports[i]
    local ends = o.reset + o.max_offset + (o.responses < 10 and JITTER or SECOND)
    if ends <= now or max(o.limit, o.used) > MOST then
      table.remove(w.reports, i)
      -- Without a response, the reset is on the clock of a replica.
      if o.responses > 0 and o.reset >= w.over and ends <= now then w.over, w.ended = o.reset, ends end
    end
  end
  if #w.reports < reports then begin_window(budget, w) end
end

-- Forgets the reports of a window that an operator has opened. The time is that of a replica, so it is not exact.
local function open_window(budget, w, opened)
  if opened <= (w.opened or 0) + JITTER then return end
  w.opened, w.limit, w.reports = min(opened, now), nil, {}
  begin_window(budget, w)
end

-- Applies the end of windows since the last use of a lease.
local function catch_up(l, w)
  if w and l.windows ~= w.windows then
    l.tokens, l.extra, l.reported, l.windows = l.tokens + l.extra, 0, 0, w.windows
  end
end

-- Returns a limit without the headroom.
local function usable(limit) return limit - math.ceil(limit * call.headroom) end

-- Returns a limit of a replica, at most the last reported limit of its window. The replica may not have had a report
-- about the resource. The sliding log of a resource has the limit of its window. At least one request remains, because
-- only its response can raise the limit.
local function known_limit(budget, limit)
  local resource = budget:match('^window:(.*)') or budget:match('^primary:(.*)')
  local w = resource and field('w:' .. resource)
  return w and w.limit and min(limit, max(1, usable(w.limit))) or limit
end

-- Returns the use of a window (report.use in window.go).
local function use_of(o)
  local own = o.own or 0
  return max(o.used, own, min(own + (o.lost or 0), o.used + BEHIND))
end

-- Adds a report to a window, by the rules of the type window in package limits. Returns the report of the window, or nil if that
-- window has ended.
local function report(w, new)
  if new.responses > 0 and w.over ~= 0 and new.reset <= w.over + JITTER and new.granted < (w.ended or now) then return end
  if new.reset + new.max_offset + JITTER <= now or new.granted < (w.opened or 0) then return end
  for _, o in ipairs(w.reports) do
    if math.abs(o.reset - new.reset) <= JITTER then
      local latest, earliest = min(o.max_offset, new.max_offset), max(o.min_offset, new.min_offset)
      if new.min_offset > o.max_offset + JITTER or new.max_offset < o.min_offset - JITTER then -- one Date is wrong
        local later = new.max_offset > o.max_offset and new or o
        latest, earliest = later.max_offset, later.min_offset
      end
      if new.reset > o.reset or new.used > o.used or new.limit ~= o.limit or latest ~= o.max_offset or earliest ~= o.min_offset then
        if new.limit ~= o.limit then w.limit = new.limit end
        o.reset, o.used, o.limit = max(o.reset, new.reset), max(o.used, new.used), new.limit
        o.max_offset, o.min_offset = latest, earliest
        w.version = w.version + 1
      end
      o.responses = max(o.responses, new.responses)
      return o
    end
  end
  local o = {reset = new.reset, max_offset = new.max_offset, min_offset = new.min_offset, limit = new.limit, used = new.used,
    responses = new.responses}
  table.insert(w.reports, o)
  w.limit, w.version = o.limit, w.version + 1
  table.sort(w.reports, function(a, b) return a.reset < b.reset end)
  if #w.reports > 2 then -- those with the fewest remaining requests stay
    local most = 1
    for i, r in ipairs(w.reports) do
      if r.limit - use_of(r) > w.reports[most].limit - use_of(w.reports[most]) then most = i end
    end
    table.remove(w.reports, most)
  end
  return o
end

-- Returns what a replica has counted in the window of a report, or nil.
local function counts_of(name, resource, reset)
  local counts = field('r:' .. name, {}).counts
  for _, c in ipairs(counts and counts[resource] or {}) do
    if math.abs(c.reset - reset) <= JITTER then return c end
  end
end

-- Adds what the calling replica has counted in a window since its last call.
local function count(w, o, resource, new)
  local known = counts_of(call.replica, resource, o.reset) or {own = 0, lost = 0}
  for _, name in ipairs({'own', 'lost'}) do
    local before = known[name]
    if new[name] < before then before = 0 end -- the replica has begun again
    if new[name] > before then
      o[name], w.version = min(MOST, (o[name] or 0) + new[name] - before), w.version + 1
    end
  end
end

-- Returns the tokens that the replicas may have together. The limit is the documented limit of a budget. A window has
-- the limits that responses reported, without the reported use.
local function capacity(w, limit)
  for i, o in ipairs(w and w.reports or {}) do
    local left = usable(o.limit) - use_of(o)
    limit = i == 1 and left or min(limit, left)
  end
  return limit
end

-- Returns a list for the reply, or nil, because cjson encodes an empty list as an object.
local function list(items) return #items > 0 and items or nil end

-- Returns the cool-down for the reply, or nil if the account had none.
local function cooldown() return account.cooldown ~= '' and account.cooldown or nil end

-- Returns the reports of a window for the reply, with what the other replicas have counted.
local function reports_of(w, resource)
  local reports = {}
  for k, o in ipairs(w.reports) do
    local c = counts_of(call.replica, resource, o.reset) or {own = 0, lost = 0}
    reports[k] = {reset = int(o.reset), max_offset = int(o.max_offset), min_offset = int(o.min_offset), limit = o.limit,
      used = o.used, responses = o.responses, own = max(0, (o.own or 0) - c.own), lost = max(0, (o.lost or 0) - c.lost)}
  end
  return list(reports)
end

-- Returns the parts of spent tokens that the calling replica has left (call.left): replica, field and budget of each lease.
local function own_parts()
  local parts, prefix = {}, 'l:' .. call.replica .. '#'
  for _, entry in ipairs(fields(prefix)) do
    local number, budget = entry:sub(#prefix + 1):match('^(%d+):(.*)$')
    table.insert(parts, {replica = 'r:' .. call.replica .. '#' .. number, field = entry, budget = budget})
  end
  return parts
end

-- Reduces the leases of replicas that sent nothing for LEASE_TIME to their spare tokens, and removes them after
-- SPARE_TIME. Both happen l.keep later, because tokens may have been used at the end of that time, and the upstream counts
-- them for l.keep. The number of the last call remains longer, because without it the next call of the replica would look
-- like a loss of data.
local function remove_dead_leases()
  account.next_removal = now + 5 * SECOND
  for _, name in ipairs(fields('r:')) do
    local seen, live = field(name).seen, false
    if seen + LEASE_TIME <= now then
      local prefix = 'l:' .. name:sub(3) .. ':'
      for _, entry in ipairs(fields(prefix)) do
        local budget, l = entry:sub(#prefix + 1), field(entry)
        local spare = seen + SPARE_TIME + l.keep > now and l.spare or 0
        if seen + LEASE_TIME + l.keep <= now then
          catch_up(l, window(budget))
          set_tokens(budget, l, min(l.tokens, spare))
          set_extra(budget, l, 0)
          set_use(budget, l, {spent = 0, held = 0, reported = 0})
          changed[entry], changed['t:' .. budget] = true, true
        end
        live = live or l.tokens > 0
      end
      if not live and (seen + FORGET_TIME <= now or name:find('#', 1, true)) then
        tables[name], changed[name] = false, true
      end
    end
  end
end

local function load()
  account = field('m', {seen = 0, touched = 0, ttl = 0, next_removal = 0, relearning_until = 0, process = '', enforced = false,
    cooldown_version = 0, cooldown = ''})
  local redis_time, step = now, account.step or 0
  now = max(steady(redis_time, step, call), account.seen)
  account.seen = now
  if is_step(redis_time - now - step) then account.step, save_needed = redis_time - now, true end
end

-- Begins a change of the account. After a possible loss of data the account is relearning: it grants nothing until all
-- replicas had the time to send their leases. Data may be lost if another Redis process wrote the account. Data may
-- also be lost if the account is new and the epoch began within the relearning time.
local function begin()
  load()
  if account.touched == 0 then
    account.process, save_needed = call.process, true
    local epoch = KEYS[2] and redis.call('HMGET', KEYS[2], 'since', 'process')
    if call.confirmed > 0 or call.may_be_lost or (epoch and epoch[2] ~= call.process) then
      account.relearning_until = now + call.relearning
    elseif epoch and epoch[1] + call.relearning > now then
      account.relearning_until = min(epoch[1] + call.relearning, now + call.relearning)
    end
  elseif account.process ~= call.process then
    account.process, account.relearning_until, save_needed = call.process, now + call.relearning, true
  end
  replica = field('r:' .. call.replica, {seq = 0, seen = 0})
end

-- Writes the changed fields, and renews the TTL once a minute.
local function save()
  replica.seq, replica.seen = call.seq, now
  tables['r:' .. call.replica] = replica
  changed['m'], changed['r:' .. call.replica] = true, true
  if account.touched == 0 then redis.call('HSET', key, 'n', call.account) end
  local renew_ttl = now - account.touched >= 60 * SECOND or call.ttl > account.ttl
  if renew_ttl then account.touched, account.ttl = now, max(account.ttl, call.ttl) end
  for name in pairs(changed) do
    local text = tables[name] and cmsgpack.pack(tables[name])
    local kind = name:sub(1, 2)
    local unused = (kind == 't:' or kind == 'l:') and text and tables[name].tokens + tables[name].extra == 0
      and tables[name].spent + tables[name].held + tables[name].reported == 0
    if text and not unused then redis.call('HSET', key, name, text) else redis.call('HDEL', key, name) end
  end
  if renew_ttl then redis.call('PEXPIRE', key, account.ttl) end
end
