-- Extends the lease of an open permit, or takes it again if it has expired. Of a charged permit only the place is
-- taken again.
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
