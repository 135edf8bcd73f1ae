-- Replaces an account that cannot be read by an empty one. It grants nothing until all replicas had the time to
-- restore their writes. The counter of the calling replica is removed, so that it finds its writes missing.

redis.call('DEL', key)
call.confirmed = 0
begin()
account.relearning_until = max(account.relearning_until, now + call.relearning)
save()
redis.call('HDEL', key, 'r:' .. call.replica)
return cjson.encode({writes = 0})
