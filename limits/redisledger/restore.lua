-- restore [..., writes that Redis has, end of a cool-down, [log, window, merge, stamp, cost, ...]...,
--          '-', [resource, documented, length, limit, used, reset, date, heard]..., -- or of a window only the first three
--          '-', [id, charged, left until or 0, resource, documented, length,
--                [log, cost, cpu, window, merge]...]...]
-- What was told and was heard at 0 was made up after a limit error that told nothing.
-- Enters again what this replica has written and Redis has lost: its spends, what
-- it was told, and its permits in flight. Where nothing is lost it enters only
-- what was told meanwhile.
-- Returns {1, writes}, or {-1, writes} when Redis has other writes than said.
local values = redis.call('HMGET', key, 'm', 'r:' .. arg[3])
local missing = begin(values[1], values[2])
local have = arg[8]
if count < have or (have < arg[4] and count ~= have) then return {-1, count} end
if missing then
  count = arg[4]
  if m[LEARN] < now then m[LEARN] = now + arg[7] end
end
if arg[9] > m[TILL] then
  m[TILL] = arg[9]
  if m[TILL] > now then m[PROBING], m[PROBE] = 1, '-' end
end

-- merge enters spends that are older than others.
local function mergelog(record)
  local l = log(record[1])
  resize(l, record[2], record[3])
  local list = {}
  for i = 4, #record, 2 do
    if record[i] + l[WINDOW] > now then
      table.insert(list, {record[i], record[i + 1]})
    end
  end
  if #list == 0 then return end
  local text = entries(l)
  for from = 1, #text, ENTRYSIZE do
    table.insert(list, {tonumber(sub(text, from, from + 15)), tonumber(sub(text, from + 16, from + 23))})
  end
  if l[COST] > 0 then table.insert(list, {l[LAST], l[COST]}) end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  l[TOTAL], l[SEALED], l[OLDEST], l[COST] = 0, 0, 0, 0
  sealed[l], resealed[l], dirty[l] = '', true, true
  for _, e in ipairs(list) do spend(l, e[1], e[2]) end
end

local i = 10
while arg[i] ~= '-' do
  mergelog(arg[i])
  i = i + 1
end
i = i + 1
while arg[i] ~= '-' do
  local f = arg[i]
  local w = window(f[1], f[2], f[3])
  if f[4] and f[8] == 0 then
    exhaust(w, f[6])
  elseif f[4] then
    learn(w, f[4], f[5], f[6], f[7] ~= 0 and f[7] or nil, 0, f[8])
  end
  i = i + 1
end
-- Where this replica has written since it said what is in flight, some of that may have
-- landed; and nothing is missing.
for j = i + 1, count == arg[4] and #arg or 0 do
  local f = arg[j]
  local id, charged, left = f[1], f[2], f[3]
  if not lease(id, redis.call('HGET', key, 'x:' .. id)) and (left == 0 or left > now) then
    window(f[4], f[5], f[6])
    local l = {id = id, granted = 0, expiry = left ~= 0 and left or now + LEASETIME, places = 1, units = 1 - charged,
      charged = charged, left = left ~= 0 and 1 or 0, resource = f[4], holds = {}}
    for k = 7, #f do
      resize(log(f[k][1]), f[k][4], f[k][5])
      table.insert(l.holds, f[k])
    end
    take(l)
  end
end
save()
return {1, count}
