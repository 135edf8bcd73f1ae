-- The rule that divides a budget among the clients of an account: the same function as divide in divide.go, with the same
-- fields. A table of cases compares both (limits/testdata/divisions.json).

local RESERVED_PARTS, PACE_TOLERANCE = 100, 500000 -- the same as in divide.go

-- Reports whether a claim must leave free tokens to the clients that wait.
local function yields(d, free)
  if d.share == 0 or #d.waits == 0 then return false end
  local tokens, shares = free + d.used, d.share
  for _, w in ipairs(d.waits) do tokens, shares = tokens + w.used, shares + w.share end
  local function unused(share, used) return tokens * share - used * shares end -- multiplied by shares
  local own = unused(d.share, d.used)
  if own >= d.cost * shares then return false end
  local left = free
  for _, w in ipairs(d.waits) do
    local other = unused(w.share, w.used)
    if other >= w.cost * shares then
      left = left - math.min(math.floor(other / shares), w.demand)
    elseif other > math.max(own, 0) and w.cost <= tokens then
      left = left - w.cost
    end
  end
  return left < d.cost
end

local function divide(d)
  local v, free = {missing = 0, due = 0, pace = d.pace, beyond = false, kept = false, yields = false}, d.free
  if d.shares > 0 and d.used + d.cost > math.floor(d.limit * d.share / math.max(d.share, d.shares)) then
    v.beyond = true
    free = free - (d.limit - math.max(math.min(d.cost, d.limit), d.limit - math.floor(d.limit / RESERVED_PARTS)))
  end
  local due = d.pace - PACE_TOLERANCE
  if (d.paced or v.beyond and 2 * d.in_use > d.limit) and d.now < due then v.due = due end
  if d.cost > free then
    v.missing = d.cost - free
  elseif d.cost + d.kept > free then
    v.kept = true
  else
    v.yields = yields(d, free)
  end
  if d.window > 0 and (d.paced or 2 * (d.in_use + d.cost) > d.limit) then
    v.pace = math.min(math.max(d.pace, d.now) + math.floor(d.cost * d.window / math.max(1, d.limit)), d.now + d.window)
  end
  return v
end
