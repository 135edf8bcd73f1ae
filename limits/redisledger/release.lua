-- release ttl id aborted
-- Gives back the place of a permit that is settled; of an aborted one later.
local l = lease(ARGV[2], open({'x:' .. ARGV[2]}))
if not l or l.charged == 0 or l.left == 1 then return 0 end
if ARGV[3] == '1' then leave(l) else remove(l) end
save(ARGV[1])
return 1
