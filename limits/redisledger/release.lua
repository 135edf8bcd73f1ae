-- release [ttl, id, aborted]
-- Gives back the place of a permit that is settled; of an aborted one later.
local values = redis.call('HMGET', key, 'm', 'x:' .. arg[2])
begin(values[1])
local l = lease(arg[2], values[2])
if not l or l.charged == 0 or l.left == 1 then return 0 end
if arg[3] == 1 then leave(l) else remove(l) end
save(arg[1])
return 1
