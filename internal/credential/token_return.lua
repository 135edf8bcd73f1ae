-- Stores a token, if the call has a token, and releases the lease if the given owner holds the lease.
-- KEYS: token, lease. ARGV: owner, sealed token or an empty string, lifetime in ms.
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 1
