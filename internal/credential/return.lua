-- Stores a token, if there is one, and ends the lease of who has got it.
-- KEYS: the token, its lease. ARGV: the owner, the sealed token or nothing, its lifetime in ms.
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 1
