-- Applies the outcomes of a replica for permits of an account, and decides the claims of the replica.
-- step: {headroom, concurrent, outcomes, claims}. First the outcomes are applied in order, then the claims are decided
-- in order. The reply has one rate for each outcome and one decision for each claim.

-- Returns the time at which the exhausted windows of a resource reopen, or 0.
local function exhausted_until(w)
  roll_window(w)
  local till = 0
  for _, o in ipairs(w.observed) do
    if o.used >= o.limit then till = max(till, reopens(o)) end
  end
  return till
end

-- Starts or extends a cool-down after a secondary limit error. sent is the time of the grant, or 0 if the time is
-- unknown. An error is new if its request was sent after the last error arrived.
local function start_cooldown(w, sent, retry_after)
  if sent > account.limited_at or (sent == 0 and now >= account.cooldown_until) then
    local ceiling = step.concurrent
    if account.ceiling ~= 0 then ceiling = min(ceiling, account.ceiling) end
    account.ceiling, account.ceiling_raised = max(1, floor(ceiling / 2)), now
    account.limit_errors, account.limited_at = account.limit_errors + 1, now
  end
  local till = now + 60 * SECOND * 2 ^ max(0, min(account.limit_errors - 1, 6))
  local reset = exhausted_until(w)
  if retry_after > 0 then till = now + retry_after + MARGIN elseif reset ~= 0 then till = reset end
  account.cooldown_until = max(account.cooldown_until, till)
  account.probing, account.probe, account.slow_start = true, nil, 0
end

-- Charges a permit for the outcome of its request.
local function settle_permit(l, o)
  if not o.sent then
    release_holds(l)
    remove(l)
    return
  end
  hold_cpu(l, o.cpu, o.answered)
  local copies_id = l.id .. '+'
  if o.resent > 0 and not lease(copies_id) then
    -- The transport sent the request several times. Earlier copies are abandoned requests.
    local copies = {id = copies_id, granted = l.granted, expires = now + LINGER, places = 1, units = o.resent, charged = false,
      abandoned = true, resource = l.resource, holds = {}}
    for _, h in ipairs(l.holds) do
      if not h.cpu and h.cost > 0 then table.insert(copies.holds, {log = h.log, cost = h.cost * o.resent, cpu = false}) end
    end
    reserve(copies)
  end
  if o.answered then
    charge(l, now)
  else
    if account.probe == l.id then account.probe = nil end
    abandon(l)
  end
end

-- Applies an outcome: charges the permit, and records the report of the response. Returns whether anything changed.
local function settle(o, w)
  local l = lease(o.id)
  if l and (l.charged or l.abandoned) then return false end -- settled before
  local sent = l and l.granted or 0
  if l then settle_permit(l, o) end
  if not o.answered then return true end
  account.enforced = account.enforced or o.enforces
  if o.rate then
    observe(w, o.rate, sent, now)
  elseif l then
    -- A response without rate headers: the upstream may have counted the request.
    roll_window(w)
    w.silent, changed[w] = w.silent + 1, true
    if w.silent >= SLOW_START then w.answered = true end
    if o.silent then w.quiet = w.quiet + 1 end
    spend_unconfirmed(w, now, 1)
  end
  if o.limited == 'primary' then
    exhaust(w, now + w.length)
  elseif o.limited == 'secondary' then
    if l or now >= account.cooldown_until then start_cooldown(w, sent, o.retry_after) end
  elseif not o.failed then
    if account.probing and account.probe == o.id then
      account.probing, account.probe, account.slow_start = false, nil, now
    elseif not account.probing and account.slow_start == 0 then
      account.limit_errors = 0
    end
  end
  if l and l.charged and o.ended then remove(l) end
  return true
end

-- Frees the concurrency slot of a settled permit at the end of the response body. Returns whether anything changed.
local function release(o)
  local l = lease(o.id)
  if not l or not l.charged or l.abandoned then return false end
  if o.aborted then abandon(l) else remove(l) end
  return true
end

-- Returns nil if cost fits into a log. Otherwise returns the time when cost will fit, or 0 if only open permits decide.
local function log_refuses(l, limit, cost)
  expire_entries(l)
  local excess = l.total + cost - limit
  if excess > l.total then return now + l.window end
  if excess > 0 then return return_time(l, excess) end
  if excess + l.held > 0 then return 0 end
end

-- Returns nil if one more request fits into an observed window. Otherwise returns the time when the request will fit,
-- or 0 if open permits decide.
local function observation_refuses(w, u, o, batch)
  local limit, spent = usable(o.limit), o.used + u.total
  if o.used >= limit then return reopens(o) end
  if spent >= limit then return min(reopens(o), return_time(u, spent + 1 - limit)) end
  if spent + w.in_use >= limit then return 0 end
  if not batch then return nil end
  -- Batch claims leave a reserve that shrinks until the end of the window.
  local parts, free = RESERVE_PARTS * w.length, limit - spent - w.in_use
  if floor(max(0, end_of(o) - now) * limit / parts) < free then return nil end
  return end_of(o) - floor((free * parts - 1) / limit)
end

-- Returns nil if one more request fits into the windows of a resource. Otherwise returns the time when the request will
-- fit, or 0 if open permits or a response decide.
local function window_refuses(w, batch)
  local u = roll_window(w)
  local refused = not w.answered and w.tries >= SLOW_START and now - w.tried < TRY_EVERY
  local till = 0
  for _, o in ipairs(w.observed) do
    local at = observation_refuses(w, u, o, batch)
    if at then refused, till = true, max(till, at) end
  end
  if #w.observed == 0 then
    local limit = usable(w.limit)
    if batch then limit = limit - floor(limit / RESERVE_PARTS) end
    if u.total >= limit then
      refused, till = true, limit > 0 and return_time(u, u.total + 1 - limit) or now + w.length
    elseif u.total + w.in_use >= limit then
      refused = true
    end
  end
  if refused then return till end
end

-- Decides a claim: reserves from all budgets, or from no budget. Returns the decision, and whether anything changed. A
-- refusal has the reason and the time to wait, or 0 if open permits decide.
local function admit(c)
  local l = lease(c.id)
  if l then
    local open = not l.charged and not l.abandoned
    if open then l.expires, changed[l] = now + PERMIT_LIFE, true end -- the request has not been sent before
    return {granted = true}, open
  end
  local refused, till, reason = false, 0, nil
  local function refuse(why, at)
    if not refused or at > till then refused, till, reason = true, at, why end
  end
  if now < account.relearning_until then refuse('store', account.relearning_until) end
  if now < account.cooldown_until then
    refuse('cooldown', account.cooldown_until)
  elseif account.probing and account.probe then
    refuse('cooldown', 0)
  end
  if account.places + 1 > max_places(step.concurrent) then refuse('concurrency', 0) end
  local w = window(c.resource)
  l = {id = c.id, granted = now, expires = now + PERMIT_LIFE, places = 1, units = 1, charged = false, abandoned = false,
    resource = c.resource.name, holds = {}}
  local free = unlimited(w)
  for _, s in ipairs(c.spends) do
    if not (free and s.budget == 'primary') then
      local g, limit = log(s.log), s.limit
      resize_log(g, s.window, s.merge)
      if s.budget == 'primary' then limit = usable(w.limit) end
      local at = log_refuses(g, limit, s.cost)
      if at then refuse(s.budget, at) end
      table.insert(l.holds, {log = s.log, cost = s.cost, cpu = s.cpu})
    end
  end
  local at = not free and window_refuses(w, c.batch)
  if at then refuse('primary', at) end
  if refused then
    return {granted = false, reason = reason, wait = till == 0 and 0 or till - now}, must_save
  end
  reserve(l)
  if not w.answered then w.tries, w.tried = w.tries + 1, now end
  if account.probing then account.probe = c.id end
  if account.ceiling ~= 0 and account.places >= account.ceiling and now - account.ceiling_raised >= 10 * SECOND then
    account.ceiling_raised, account.ceiling = now, account.ceiling + 1
    if account.ceiling >= step.concurrent then account.ceiling = 0 end
  end
  return {granted = true}, true
end

local missing = begin()
if missing then return missing end
local save_needed, rates, decisions = false, {}, {}
for i, o in ipairs(step.outcomes or {}) do
  local settled
  if o.released then
    settled, rates[i] = release(o), {limit = 0, used = 0, reset = '0'}
  else
    local w = window(o.resource)
    settled = settle(o, w)
    rates[i] = rate_of(w)
  end
  save_needed = save_needed or settled
end
for i, c in ipairs(step.claims or {}) do
  local decided
  decisions[i], decided = admit(c)
  save_needed = save_needed or decided
end
if save_needed then save() end
return cjson.encode({writes = writes, now = string.format('%.0f', now),
  cooldown_until = string.format('%.0f', account.cooldown_until),
  rates = #rates > 0 and rates or nil, decisions = #decisions > 0 and decisions or nil})
