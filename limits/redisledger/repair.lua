-- mend [...]
-- Begins an account anew that cannot be read. Nothing is granted until replicas have
-- had the time to write again what they know of it; each sees that its writes are missing.
-- Returns {1}.
redis.call('DEL', key)
arg[4] = 0
begin()
m[LEARN] = max(m[LEARN], now + arg[7])
save()
redis.call('HDEL', key, 'r:' .. arg[3])
return {1}
