-- Requests of many accounts for many entries, at random: ACCOUNTS ENTRIES.
local accounts, entries = 1, 1

init = function(args)
  accounts, entries = tonumber(args[1]), tonumber(args[2])
end

request = function()
  local token = string.format("Bearer account-%d", math.random(accounts) - 1)
  local path = string.format("/repos/o/r%d/subscribers", math.random(entries) - 1)
  return wrk.format("GET", path, {Authorization = token})
end
