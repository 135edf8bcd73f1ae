-- Replaces an unreadable account by an empty account, which grants nothing until all replicas had the time to restore
-- their writes. The reply makes the calling replica restore its writes.

redis.call('DEL', key)
call.confirmed = 0
begin()
account.relearning_until = max(account.relearning_until, now + call.relearning)
save()
redis.call('HDEL', key, 'r:' .. call.replica)
return cjson.encode({missing = true, writes = 0})
