-- Returns a time of Redis without the steps of its clock. step is the sum of the known steps. The monotonic clock of the replica
-- proves that the time is between call.earliest and call.latest, unless the replica has made no call before.
local function steady(time, step, call)
  time = time - step
  if (call.earliest or 0) == 0 then return time end
  return math.min(math.max(time, call.earliest), call.latest)
end

-- Reports whether a difference of two times is a step, and not the duration of a call.
local function is_step(difference) return math.abs(difference) > 500000 end
