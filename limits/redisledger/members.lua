-- members [replica, registered for]
-- Keeps this replica registered. Returns how many replicas are.
local now = clock()
local arg = cjson.decode(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - arg[2])
redis.call('ZADD', KEYS[1], now, arg[1])
redis.call('PEXPIRE', KEYS[1], arg[2] / 1000)
redis.call('SET', KEYS[2], '1', 'PX', 86400000)
return redis.call('ZCARD', KEYS[1])
