-- Returns the time of Redis in microseconds since 1970.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
