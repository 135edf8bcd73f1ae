-- settle ttl headroom concurrent name id resource documented length
--        sent resent answered ended failed milliseconds limited retryafter
--        limit used reset date
-- Charges a permit with what became of its request, and learns from the answer.
-- resource is what the answer named, or the permit's own; limit is '' when the
-- headers said nothing, date when there was none.
local ttl, concurrent, id = ARGV[1], tonumber(ARGV[3]), ARGV[5]
headroom = tonumber(ARGV[2])
local resent, taken = tonumber(ARGV[10]), tonumber(ARGV[14])
local sent, answered, ended, failed = ARGV[9] == '1', ARGV[11] == '1', ARGV[12] == '1', ARGV[13] == '1'
local l = lease(id, open({'w:' .. ARGV[6], 'l:ghosts:' .. ARGV[6], 'e:ghosts:' .. ARGV[6], 'x:' .. id}))
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
  local fields = {}
  for _, h in ipairs(l.holds) do
    if not logs[h.name] then
      table.insert(fields, 'l:' .. h.name)
      table.insert(fields, 'e:' .. h.name)
    end
  end
  fetch(fields)
  began = l.granted
  settlelease(l)
end
if answered then
  local w = window(ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]))
  if ARGV[17] ~= '' then
    learn(w, tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19]), tonumber(ARGV[20]), began)
  elseif l then
    w.answered, w.dirty = 1, true
    spend(ghosts(w), now, 1)
  end
  if ARGV[15] == 'primary' then
    exhaust(w)
  elseif ARGV[15] == 'secondary' then
    if l or now >= m.till then
      if not l or began > m.since then
        local ceiling = concurrent
        if m.ceiling ~= 0 then ceiling = min(ceiling, m.ceiling) end
        m.ceiling, m.raised = max(1, floor(ceiling / 2)), now
        m.episodes, m.since = m.episodes + 1, now
      end
      local till, retry, reset = now + 60 * second * 2 ^ max(0, min(m.episodes - 1, 6)), tonumber(ARGV[16]), back(w)
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
changed.n = ARGV[4]
save(ttl)
return 1
