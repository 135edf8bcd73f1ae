-- Stores names of accounts in a sorted set, by the number of their last change, and returns the names that changed after
-- a number. The argument and the reply have the fields of the types aliasesCall and aliasesReply in merge.go.

local key, call = KEYS[1], cjson.decode(ARGV[1])
local top = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
local last = tonumber(top[2] or '0')
if call.after > last then call.after = 0 end -- Redis has lost the names
for _, name in ipairs(call.changed or {}) do
  last = last + 1
  redis.call('ZADD', key, last, name)
end
if call.changed then
  redis.call('ZREMRANGEBYRANK', key, 0, -call.most - 1)
  redis.call('PEXPIRE', key, call.ttl)
end
local names = redis.call('ZRANGEBYSCORE', key, '(' .. call.after, '+inf', 'LIMIT', 0, 1000)
if #names == 1000 then -- the next call returns the rest
  last = tonumber(redis.call('ZSCORE', key, names[1000]))
end
return cjson.encode({last = last, names = #names > 0 and names or nil})
