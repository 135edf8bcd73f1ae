-- Repeats the lost writes of a replica: spends, observations and open permits. If Redis lost no writes, the step adds
-- only the observations that the replica could not send before.
-- step: {have, cooldown_until, logs, windows, permits}. have is the number of writes in Redis when the replica
-- collected the data. If Redis has another number now, the reply has missing set. restore.go explains the numbers.

local missing = begin()
if writes < step.have or (step.have < call.confirmed and writes ~= step.have) then
  return cjson.encode({missing = true, writes = writes})
end
if missing then
  writes = call.confirmed
  if account.relearning_until < now then account.relearning_until = now + call.relearning end
end
if step.cooldown_until > account.cooldown_until then
  account.cooldown_until = step.cooldown_until
  if account.cooldown_until > now then account.probing, account.probe = true, nil end
end

-- Adds the spends in the order of their times, because a log is sorted.
for _, own in ipairs(step.logs or {}) do
  local l = log(own.name)
  resize_log(l, own.window, own.merge)
  local list = {}
  for _, e in ipairs(own.entries or {}) do
    if e.at + l.window > now then table.insert(list, e) end
  end
  if #list > 0 then
    for _, e in ipairs(older_entries(l)) do table.insert(list, e) end
    if l.cost > 0 then table.insert(list, {at = l.last, cost = l.cost}) end
    table.sort(list, function(a, b) return a.at < b.at end)
    l.total, l.cost = 0, 0
    set_older_entries(l, {})
    for _, e in ipairs(list) do spend(l, e.at, e.cost) end
  end
end

for _, own in ipairs(step.windows or {}) do
  local w = window(own.resource)
  if own.assumed then
    exhaust(w, own.rate.reset)
  elseif own.rate then
    observe(w, own.rate, 0, own.received)
  end
end

-- Restores no permits if the replica has written since the collection. Redis then has all permits, and some collected
-- permits may have ended.
for _, p in ipairs(writes == call.confirmed and step.permits or {}) do
  if not lease(p.id) and (not p.expires or p.expires > now) then reserve_again(p) end
end
save()
return cjson.encode({writes = writes})
