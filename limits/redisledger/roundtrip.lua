-- Takes the state of one replica into the account: the use of its leases, reports of responses, and the cool-down.
-- Then decides claims: a claim gets tokens of all its budgets, or of none.
-- The call and the reply have the fields of the types call and reply in roundtrip.go.

begin()
if replica.seq < call.confirmed then
  if not call.full then return cjson.encode({missing = true}) end
  account.relearning_until = max(account.relearning_until, now + call.relearning)
end
if call.seq <= replica.seq then return cjson.encode({overtaken = true}) end
if now >= account.next_removal then remove_dead_leases() end

save_needed = save_needed or call.renew or call.full or call.ttl > account.ttl
local budgets = call.budgets or {}
if call.full then -- the replica has no other leases, and declares the spent tokens that it has left
  for _, part in ipairs(call.into and {} or own_parts()) do -- the replica declares the use of a merged account elsewhere
    local l = field(part.field)
    catch_up(l, window(part.budget))
    set_tokens(part.budget, l, 0)
    set_use(part.budget, l, {spent = 0, held = 0, reported = 0})
    tables[part.replica] = false
    changed[part.replica], changed[part.field], changed['t:' .. part.budget] = true, true, true
  end
  local sent, prefix = {}, lease_name(call.replica, '')
  for _, b in ipairs(budgets) do sent[b.budget] = true end
  for _, entry in ipairs(fields(prefix)) do
    local budget = entry:sub(#prefix + 1)
    if not sent[budget] then
      table.insert(budgets, {budget = budget, spent = 0, held = 0, reported = 0, spare = 0, pending = 0, ahead = 0, returns = 0, ends = 0,
        limit = 0, returns_after = field(entry).keep})
    end
  end
end

if call.enforced and not account.enforced then account.enforced, save_needed = true, true end
if call.into and call.into ~= account.into then account.into, save_needed = call.into, true end
-- A cool-down replaces the version that its replica knew. A changed version is at least the time in seconds, so an old snapshot of
-- Redis has a lower one.
local stores_cooldown = call.cooldown and call.cooldown_version >= account.cooldown_version
if stores_cooldown then
  account.cooldown, save_needed = call.cooldown, true
  account.cooldown_version = call.cooldown_changed and max(call.cooldown_version + 1, floor(now / SECOND)) or call.cooldown_version
end
local ended = {} -- the budgets whose window has ended here, but not yet at the replica
for _, own in ipairs(call.windows or {}) do
  local w, resource, counts = window(own.budget), own.budget:sub(8), {}
  end_windows(own.budget, w)
  open_window(own.budget, w, tonumber(own.opened))
  local version = w.version
  for _, new in ipairs(own.reports or {}) do
    for _, name in ipairs({'reset', 'max_offset', 'min_offset'}) do new[name] = tonumber(new[name]) end
    local o = report(w, new)
    if o then
      count(w, o, resource, new)
      table.insert(counts, {reset = new.reset, own = new.own, lost = new.lost})
    else
      ended[own.budget] = true
    end
  end
  if #counts > 0 then
    replica.counts = replica.counts or {}
    replica.counts[resource] = counts
  end
  if own.silent > w.silent then w.silent, w.version = own.silent, w.version + 1 end
  if w.version ~= version then changed['w:' .. resource], save_needed = true, true end
end
-- A replica that leaves the account gives its spent tokens back in parts. Each part is the lease of a replica that has
-- ended, whose tokens return after its time to keep.
for i, part in ipairs(call.left or {}) do
  local name = call.replica .. '#' .. i
  tables['r:' .. name], changed['r:' .. name] = {seq = 0, seen = now - LEASE_TIME}, true
  for _, b in ipairs(part) do
    local l = lease(name, b.budget)
    l.keep, l.left = b.keep, true
    set_tokens(b.budget, l, b.spent)
    set_use(b.budget, l, {spent = b.spent, held = 0, reported = 0})
    changed[lease_name(name, b.budget)], changed['t:' .. b.budget] = true, true
  end
end

-- The leases of another name of the account. A replica that is active declares its own.
for _, a in ipairs(call.adopted or {}) do
  local active, name = field(lease_name(a.replica:match('^(.*)#'), a.budget), {}), lease_name(a.replica, a.budget)
  if not active.tokens then
    tables['r:' .. a.replica], changed['r:' .. a.replica] = {seq = 0, seen = now - LEASE_TIME}, true
    local l, w = lease(a.replica, a.budget), window(a.budget)
    l.keep, l.left, l.windows = a.keep, true, w and w.windows or 0
    local t, at = total(a.budget), now + a.keep
    t.returns, t.ends = (t.returns <= now or at < t.returns) and at or t.returns, max(t.ends, at)
    set_tokens(a.budget, l, a.tokens)
    set_use(a.budget, l, {spent = a.tokens, held = 0, reported = 0})
    changed[name], changed['t:' .. a.budget], save_needed = true, true, true
  end
end

-- Returns the number of tokens that other replicas have.
local function others(b) return total(b.budget).tokens - b.lease.tokens end

-- Reports whether refused claims wait for a budget.
local function short(t) return now < (t.scarce or 0) end

local by_name = {}
for _, b in ipairs(budgets) do
  local t, l, w = total(b.budget), lease(call.replica, b.budget), window(b.budget)
  by_name[b.budget] = b
  if w then end_windows(b.budget, w) end
  local before = {l.tokens, l.extra, l.spent, l.held, l.reported, l.windows}
  catch_up(l, w)
  if ended[b.budget] then b.reported = 0 end -- extra tokens of the old window have become tokens
  b.lease, b.used = l, b.spent + b.held
  l.keep, b.limit = b.returns_after, known_limit(b.budget, b.limit)
  set_use(b.budget, l, b)
  local room = capacity(w, b.limit) - others(b)
  -- The lease keeps all tokens that the replica declares, because the replica uses them if this reply is lost. The reply
  -- has the number of spare tokens that the replica should declare from now on.
  local tokens = max(b.used, min(l.tokens, b.used + b.spare + b.pending))
  b.keep = min(tokens, room)
  if short(t) then -- spare tokens could be claimed now
    b.keep = b.used
  elseif b.ahead > 0 and now >= account.relearning_until then
    b.keep = b.used + min(b.ahead, floor((room - b.used) / (call.replicas + 1)))
    tokens = max(tokens, b.keep)
  end
  set_tokens(b.budget, l, tokens)
  if w then
    local used = 0
    for _, o in ipairs(w.reports) do used = max(used, o.used) end
    local extra = t.reported > 0 and floor(l.reported * min(1, used / t.reported)) or 0
    set_extra(b.budget, l, max(0, min(extra, b.limit - t.tokens - (t.extra - l.extra))))
  end
  b.returns, b.ends = tonumber(b.returns), tonumber(b.ends)
  if b.returns > 0 and (t.returns <= now or b.returns < t.returns) then t.returns = b.returns end
  t.ends = max(t.ends, b.ends)
  for _, w in ipairs(b.waits or {}) do
    t.waits, t.scarce = t.waits or {}, max(t.scarce or 0, w.ends)
    local known = t.waits['t:' .. w.client]
    if not known or known.ends < w.ends then t.waits['t:' .. w.client] = w end
    changed['t:' .. b.budget], save_needed = true, true
  end
  if before[1] ~= l.tokens or before[2] ~= l.extra or before[3] ~= l.spent or before[4] ~= l.held or before[5] ~= l.reported
    or before[6] ~= l.windows then
    save_needed = true
    changed[lease_name(call.replica, b.budget)], changed['t:' .. b.budget] = true, true
  end
end

-- Returns the number of tokens that a need must leave to other clients.
local function guaranteed(need)
  local tokens = 0
  for _, g in ipairs(need.guarantees or {}) do
    local t = total(g.budget)
    tokens = tokens + max(0, g.tokens - t.spent - t.held)
  end
  return tokens
end

-- The table t.waits of a budget contains the clients that wait, by the name of the field that has their use. If the account has
-- one client, each replica counts as a client with a share of 1.
local function own_field(n)
  if n.client then return 't:' .. n.client end
  return lease_name(call.replica, n.budget)
end

local function used(name)
  local use = field(name)
  return use and use.spent + use.held or 0
end

-- Records that a claim waits. at is the time of its next attempt, or 0.
local function wait(n, at)
  local t = total(n.budget)
  local name, ends = own_field(n), min(max(now, at), now + LONGEST_WAIT) + (n.budget == 'slots' and SLOTS_WAIT or WAIT_TIME)
  t.waits, t.scarce = t.waits or {}, max(t.scarce or 0, ends)
  if n.share > 0 then
    if t.waits[name] then ends = max(ends, t.waits[name].ends) end
    t.waits[name] = {share = n.share, cost = n.cost, demand = n.cost * max(1, n.waiting or 1), ends = ends}
  end
  changed['t:' .. n.budget], save_needed = true, true
end

-- Returns the other clients that wait for a budget. The demand of a client is known for one replica.
local function waiting(t, own)
  local list = {}
  for name, w in pairs(t.waits or {}) do
    if w.ends <= now then
      t.waits[name] = nil
    elseif name ~= own then
      table.insert(list, {share = w.share, cost = w.cost, demand = w.demand * call.replicas, used = used(name)})
    end
  end
  return list
end

-- Applies the rule that divides a budget (divide.lua). in_use is the number of tokens of all leases.
local function verdict(n, t)
  local b, own = by_name[n.budget], own_field(n)
  local free = capacity(window(b.budget), n.limit) - others(b) - b.used
  return divide({cost = n.cost, limit = n.limit, free = free, in_use = t.tokens, window = n.window, pace = t.pace or 0, paced = n.paced,
    now = now, share = n.share, shares = n.shares, used = n.share > 0 and used(own) or 0, kept = guaranteed(n),
    waits = n.share > 0 and waiting(t, own) or {}})
end

-- Decides a claim: a list of needs (limits.Need). A refusal has the budget, and the time of the next attempt, or 0.
local function claim(needs)
  if now < account.relearning_until then return {granted = false, at = int(account.relearning_until)} end
  local refusing, refused_until, keeping, yielding
  local function refuse(n, at)
    if not refusing or at > refused_until then refusing, refused_until = n, at end
  end
  for _, n in ipairs(needs) do
    local t = total(n.budget)
    local v = verdict(n, t)
    n.pace = v.pace
    if v.missing > 0 then
      local spare = t.tokens - t.spent - t.held -- other replicas return spare tokens within a heartbeat
      local at = spare < n.cost and t.returns > now and t.returns or 0
      refuse(n, at)
      wait(n, at)
      for _, m in ipairs(needs) do -- also for the requests of the resource
        if n.reason == 'primary' and m.reason == 'primary' and m.share > 0 then wait(m, at) end
      end
    elseif v.kept then
      keeping = n
    elseif v.yields then
      yielding = n
    end
    if v.due > 0 then
      refuse(n, v.due)
      wait(n, v.due)
    end
  end
  if refusing then return {granted = false, budget = refusing.budget, at = int(refused_until)} end
  if keeping then
    local b, t = by_name[keeping.budget], total(keeping.budget)
    local spare = t.tokens - t.spent - t.held > b.lease.tokens - b.used -- other replicas return it within a heartbeat
    t.scarce, changed['t:' .. b.budget], save_needed = max(t.scarce or 0, now + WAIT_TIME), true, true
    return {granted = false, budget = keeping.budget, kept = true, at = spare and int(now + SECOND) or '0'}
  end
  if yielding then
    wait(yielding, 0)
    return {granted = false, budget = yielding.budget, yielded = true, at = '0'}
  end
  for _, n in ipairs(needs) do
    local b, t = by_name[n.budget], total(n.budget)
    if n.pace > 0 then t.pace = n.pace end
    b.used, b.held, b.keep = b.used + n.cost, b.held + n.cost, b.keep + n.cost
    local room = capacity(window(b.budget), n.limit) - others(b) -- free tokens are used before spare tokens
    local spare = short(t) and 0 or b.spare
    set_tokens(b.budget, b.lease, max(b.lease.tokens, b.used, min(b.used + spare, room)))
    set_use(b.budget, b.lease, b)
    local c = n.client and not window(n.budget) and by_name[n.client] -- the requests of a window are another need
    if c then
      c.used, c.held = c.used + n.cost, c.held + n.cost
      set_tokens(c.budget, c.lease, max(c.lease.tokens, c.used))
      set_use(c.budget, c.lease, c)
      changed[lease_name(call.replica, c.budget)], changed['t:' .. c.budget] = true, true
    end
    changed[lease_name(call.replica, b.budget)], changed['t:' .. b.budget] = true, true
  end
  save_needed = true
  return {granted = true, at = '0'}
end

local reply = {now = int(now), seq = replica.seq, enforced = account.enforced, into = account.into, claims = {}, budgets = {}, windows = {}}
for i, c in ipairs(call.claims or {}) do
  for _, n in ipairs(c) do
    local limit = known_limit(n.budget, n.limit)
    if limit < n.limit then n.limit, n.cost = limit, min(n.cost, limit) end -- the replica has bounded the cost by its own limit
  end
  reply.claims[i] = claim(c)
end
for i, b in ipairs(budgets) do
  b.lease.spare = max(0, b.lease.tokens - b.used)
  reply.budgets[i] = {tokens = b.lease.tokens, extra = b.lease.extra, spare = b.lease.spare,
    keep = max(0, min(b.keep, b.lease.tokens) - b.used), yield = short(total(b.budget)), others = others(b),
    divided = short(total(b.budget)) or 2 * total(b.budget).tokens > b.limit}
end
for i, own in ipairs(call.windows or {}) do
  local w = window(own.budget)
  reply.windows[i] = {version = w.version, silent = w.silent}
  if w.version ~= own.version then
    reply.windows[i].reports, reply.windows[i].opened = reports_of(w, own.budget:sub(8)), int(w.opened or 0)
  end
end
reply.claims, reply.budgets, reply.windows = list(reply.claims), list(reply.budgets), list(reply.windows)
reply.cooldown_version = account.cooldown_version
if account.cooldown_version ~= call.cooldown_version and not stores_cooldown then reply.cooldown = cooldown() end
if save_needed then
  save()
  reply.seq, reply.saved = call.seq, true
end
return cjson.encode(reply)
