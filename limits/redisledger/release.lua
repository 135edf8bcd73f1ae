-- release [..., id, aborted]
-- Gives back the place of a permit that is settled; of an aborted one later.
-- Returns {1, writes}, or {-1, writes} when some are missing.
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3], 'x:' .. arg[8])
if begin(values[1], values[2]) then return {-1, count} end
local l = lease(arg[8], values[3])
if not l or l.charged == 0 or l.left == 1 then return {1, count} end
if arg[9] == 1 then leave(l) else remove(l) end
save()
return {1, count}
