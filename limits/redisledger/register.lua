-- Keeps a replica registered, and renews the TTL of the keys that all replicas share.
-- KEYS: replicas, epoch, secret, accounts, resources, aliases, names. ARGV[1]: registration in heartbeat.go, with the ttl in milliseconds.

local time = clock()
local arg = cjson.decode(ARGV[1])
local replicas, epoch, secret, accounts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- Data that Weir has not written is removed.
for i, kind in ipairs({'zset', 'hash', 'string', 'zset', 'hash', 'zset', 'zset'}) do
  if redis.call('TYPE', KEYS[i]).ok ~= kind then redis.call('DEL', KEYS[i]) end
end
if not tonumber(redis.call('HGET', epoch, 'since') or '') or not tonumber(redis.call('HGET', epoch, 'step') or 0) then redis.call('DEL', epoch) end
if not (redis.call('GET', secret) or ''):match('^' .. ('%x'):rep(64) .. '$') then redis.call('DEL', secret) end
local step = tonumber(redis.call('HGET', epoch, 'step') or 0)
local now = steady(time, step, arg)
if is_step(time - now - step) then redis.call('HSET', epoch, 'step', string.format('%.0f', time - now)) end
redis.call('ZREMRANGEBYSCORE', replicas, '-inf', now - arg.ttl * 1000)
redis.call('ZREMRANGEBYSCORE', replicas, now + 1000000, '+inf')
redis.call('ZADD', replicas, now, arg.replica)
redis.call('PEXPIRE', replicas, arg.ttl)
redis.call('SET', secret, arg.secret, 'NX')
redis.call('PEXPIRE', secret, 30 * 24 * 3600 * 1000)
if redis.call('HGET', epoch, 'process') ~= arg.process then
  redis.call('HSET', epoch, 'since', string.format('%.0f', now), 'process', arg.process)
end
redis.call('PEXPIRE', epoch, 24 * 3600 * 1000)
return cjson.encode({now = string.format('%.0f', now), replicas = redis.call('ZCARD', replicas), secret = redis.call('GET', secret),
  epoch = redis.call('HGET', epoch, 'since') .. ' ' .. arg.process, accounts = redis.call('ZCARD', accounts)})
