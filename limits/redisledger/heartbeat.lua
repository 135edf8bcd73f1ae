-- Renews the offline leases of a replica: the quota for the time without Redis. First, the step charges the replica's
-- offline spending. Then the step grants one lease for each recent kind of claims: a part of the free quota, at most
-- the requested quota. The stored lease reserves at least the previous grant ("kept"). If this reply is lost, the
-- replica continues with the previous grant and may reuse returned tokens.
-- step: {headroom, concurrent, replicas, leases}, see leaseCall in offline.go. The reply has one lease for each
-- request: {units, places, logs}.

local missing = begin()
if missing then return missing end
local granted = {}
for i, c in ipairs(step.leases or {}) do
  local id = '~' .. call.replica .. '~' .. c.name
  local old, kept_logs = lease(id), {}
  if old then
    if old.granted > call.confirmed then -- a later heartbeat has overtaken this heartbeat
      c.units_kept, c.places_kept = max(c.units_kept, old.units), max(c.places_kept, old.places)
      for _, h in ipairs(old.holds) do kept_logs[h.log] = h.cost end
    end
    release_holds(old)
    remove(old)
  end
  local w = window(c.resource)
  local u = roll_window(w)
  if c.unconfirmed > 0 then
    spend_unconfirmed(w, now, c.unconfirmed)
    changed[w] = true
  end
  -- Each replica gets at most 1/(replicas + 1) of the free quota, so that a part remains for claims through Redis. No
  -- quota is granted before other replicas have restored their spends. An offline replica cannot see the result of a
  -- probe, so no quota is granted before the end of a probe.
  local function part(free, requested)
    if now < account.relearning_until or account.probing then return 0 end
    return max(0, min(floor(free / (step.replicas + 1)), requested))
  end
  local free = usable(w.limit) - u.total - w.in_use
  for k, o in ipairs(w.observed) do
    local left = usable(o.limit) - o.used - u.total - w.in_use
    free = k == 1 and left or min(free, left)
  end
  if unlimited(w) then free = math.huge end
  local units, places = part(free, c.units_requested), part(max_places(step.concurrent) - account.places, c.places_requested)
  -- granted is the number of this write (restore.go), not a time.
  local l = {id = id, granted = writes + 1, expires = now + OFFLINE_LEASE_TIME, charged = false, abandoned = false,
    resource = c.resource.name, holds = {}, units = max(units, c.units_kept), places = max(places, c.places_kept)}
  local reply = {units = units, places = places, logs = {}}
  for _, s in ipairs(c.logs) do
    local g = log(s.log)
    resize_log(g, s.window, s.merge)
    expire_entries(g)
    spend(g, max(now, s.last_spent), s.spent)
    local cost = part(s.limit - g.total - g.held, s.requested)
    table.insert(l.holds, {log = s.log, cost = max(cost, s.kept, kept_logs[s.log] or 0), cpu = false})
    reply.logs[s.log] = cost
  end
  if l.units > 0 and l.places > 0 then
    reserve(l)
    granted[i] = reply
  else
    granted[i] = {units = 0, places = 0}
  end
end
save()
return cjson.encode({writes = writes, now = string.format('%.0f', now), leases = #granted > 0 and granted or nil})
