-- settle [ttl, headroom, concurrent, name, id, resource, documented, length,
--         sent, resent, answered, ended, failed, milliseconds, limited, retryafter,
--         limit, used, reset, date, log, ...]
-- Charges a permit with what became of its request, and learns from the answer.
-- resource is what the answer named, or the permit's own; limit is 0 when the
-- headers said nothing, date when there was none. The logs are those that the
-- permit was taken from.
local concurrent, id = arg[3], arg[5]
headroom = arg[2]
local resent, taken = arg[10], arg[14]
local sent, answered, ended, failed = arg[9] == 1, arg[11] == 1, arg[12] == 1, arg[13] == 1
local fields, n = {}, 0
for i = 21, #arg do
  fields[n + 1], fields[n + 2] = 'l:' .. arg[i], 'e:' .. arg[i]
  n = n + 2
end
local values = redis.call('HMGET', key, 'm', 'x:' .. id, 'w:' .. arg[6], 'l:ghosts:' .. arg[6], unpack(fields))
parsewindow(arg[6], values[3])
loghead('ghosts:' .. arg[6], values[4])
for i = 1, n, 2 do
  loghead(arg[20 + (i + 1) / 2], values[4 + i]).entries = values[5 + i] or ''
end
begin(values[1])
local l = lease(id, values[2])
if l and (l.charged == 1 or l.left == 1) then return 0 end

-- settlelease charges the lease by the outcome (limits.md section 5.5).
local function settlelease(l)
  if not sent then
    for _, h in ipairs(l.holds) do hold(log(h.name), -h.cost) end
    fly(l, -l.units)
    remove(l)
    return
  end
  for _, h in ipairs(l.holds) do
    if h.cpu == 1 and (answered or taken > h.cost) then
      hold(log(h.name), taken - h.cost)
      h.cost = taken
    end
  end
  if not answered then
    if m.probe == l.id then m.probe = '-' end
    leave(l)
    return
  end
  local copies = {}
  for _, h in ipairs(l.holds) do
    if resent > 0 and h.cpu == 0 and h.cost > 0 then
      table.insert(copies, {name = h.name, cost = h.cost * resent, cpu = 0})
    end
  end
  charge(l, now)
  if resent == 0 then
    keep(l)
    return
  end
  -- Of the copies sent before, nobody knows: they are as one given up.
  l.charged, l.holds, l.units = 0, copies, resent
  for _, h in ipairs(copies) do hold(log(h.name), h.cost) end
  fly(l, resent)
  leave(l)
end

local began = 0
if l then
  began = l.granted
  settlelease(l)
end
if answered then
  local w = window(arg[6], arg[7], arg[8])
  if arg[17] ~= 0 then
    learn(w, arg[17], arg[18], arg[19], arg[20] ~= 0 and arg[20] or nil, began)
  elseif l then
    w.answered, w.dirty = 1, true
    spend(ghosts(w), now, 1)
  end
  if arg[15] == 'primary' then
    exhaust(w)
  elseif arg[15] == 'secondary' then
    if l or now >= m.till then
      if not l or began > m.since then
        local ceiling = concurrent
        if m.ceiling ~= 0 then ceiling = min(ceiling, m.ceiling) end
        m.ceiling, m.raised = max(1, floor(ceiling / 2)), now
        m.episodes, m.since = m.episodes + 1, now
      end
      local till, retry, reset = now + 60 * second * 2 ^ max(0, min(m.episodes - 1, 6)), arg[16], back(w)
      if retry > 0 then till = now + retry + margin elseif reset ~= 0 then till = reset end
      m.till = max(m.till, till)
      m.probing, m.probe, m.ramp = 1, '-', 0
    end
  elseif not failed then
    if m.probing == 1 and m.probe == id then
      m.probing, m.probe, m.ramp = 0, '-', now
    elseif m.probing == 0 and m.ramp == 0 then
      m.episodes = 0
    end
  end
  if l and l.charged == 1 and ended then remove(l) end
end
save(arg[1], arg[4])
return 1
