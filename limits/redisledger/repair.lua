-- Replaces an unreadable account by an empty account, which grants nothing until all replicas had the time to send their
-- leases.

redis.call('DEL', key)
call.may_be_lost, call.seq = true, 0
begin()
save()
return '{}'
