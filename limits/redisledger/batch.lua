-- turn [..., headroom, concurrent, {outcome or end...}, {claim...}]
-- What a replica has to tell of an account, and to ask of it, in one step: outcomes of
-- permits (settle.lua, settle) and ends of answers (release), then claims (admit.lua).
-- Returns {1, writes, now, end of a cool-down, {shown...}, {decided...}}, or {-1, writes}
-- when some are missing.
local concurrent, outcomes, claims = arg[9], arg[10], arg[11]
headroom = arg[8]
local fields, at = {'m', 'r:' .. arg[3]}, {}
local function need(name)
  if not at[name] then
    fields[#fields + 1] = name
    at[name] = #fields
  end
end
for _, o in ipairs(outcomes) do
  need('x:' .. o[1])
  if #o > 2 then
    need('w:' .. o[2])
    need('l:ghosts:' .. o[2])
    for k = 17, #o do need('l:' .. o[k]) end
  end
end
for _, c in ipairs(claims) do
  for _, id in ipairs(c[1]) do need('x:' .. id) end
  need('w:' .. c[2])
  need('l:ghosts:' .. c[2])
  for k = 7, #c do need('l:' .. c[k][1]) end
end
local values = redis.call('HMGET', key, unpack(fields))
for i = 3, #fields do
  local kind, name = sub(fields[i], 1, 2), sub(fields[i], 3)
  if kind == 'w:' then
    parsewindow(name, values[i])
  elseif kind == 'l:' then
    loghead(name, values[i])
  end
end
if begin(values[1], values[2]) then return {-1, count} end
local changed, shown, decided = false, {}, {}
for i, o in ipairs(outcomes) do
  local writes
  if #o > 2 then
    shown[i], writes = settle(o, values[at['x:' .. o[1]]], concurrent)
  else
    shown[i], writes = release(o, values[at['x:' .. o[1]]])
  end
  changed = changed or writes
end
local full = false -- one that was asked for ahead was refused: so are the others
for _, c in ipairs(claims) do
  for _, id in ipairs(c[1]) do
    local decision, writes = {0, 0, ''}, false
    if c[6] == 0 or not full then
      decision, writes = admit(c, id, values[at['x:' .. id]], concurrent)
      full = c[6] == 1 and decision[1] == 0
    end
    decided[#decided + 1] = decision
    changed = changed or writes
  end
end
if changed then save() end
return {1, count, now, m[TILL], shown, decided}
