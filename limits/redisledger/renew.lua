-- Extends an open permit. If the permit has expired, the step reserves again. For a charged permit, the step reserves
-- only the concurrency slot.
-- step: {id, resource, charged, cpu, holds}

local missing = begin()
if missing then return missing end
local l = lease(step.id)
window(step.resource)
if not l then l = reserve_again(step) end
if not l.abandoned then
  l.expires, changed[l] = now + PERMIT_LIFE, true
  hold_cpu(l, step.cpu)
  save()
end
return cjson.encode({writes = writes})
