-- members [replica, registered for, key, gen]
-- Keeps this replica registered, and what all replicas share alive: who are
-- registered, the canary, the key by which accounts are named.
-- Returns how many replicas are registered, the key, the canary, and how many
-- accounts are in the index.
local now = clock()
local arg = cjson.decode(ARGV[1])
local replicas, canary, key, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
for name, kind in pairs({[replicas] = 'zset', [canary] = 'string', [key] = 'string', [index] = 'zset'}) do
  if redis.call('TYPE', name).ok ~= kind then redis.call('DEL', name) end -- nothing of ours
end
redis.call('ZREMRANGEBYSCORE', replicas, '-inf', now - arg[2])
redis.call('ZADD', replicas, now, arg[1])
redis.call('PEXPIRE', replicas, arg[2] / 1000)
redis.call('SET', key, arg[3], 'NX')
redis.call('PEXPIRE', key, 2592000000)
local era = redis.call('GET', canary)
if not era or string.sub(era, 18) ~= arg[4] then
  era = string.format('%016.0f ', now) .. arg[4]
end
redis.call('SET', canary, era, 'PX', 86400000)
return {redis.call('ZCARD', replicas), redis.call('GET', key), era, redis.call('ZCARD', index)}
