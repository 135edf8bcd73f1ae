-- read [headroom, concurrent, resource, documented, length, ...]
-- Tells the state of an account, for people, and changes nothing: what is in
-- flight, without what replicas have set aside. Returns
-- {name, places taken, places, end of a cool-down, now,
--  number of windows, {resource, limit, used, held, reset}...,
--  {log, total, held, last return}...}; of the windows only those that were
-- used, unless a single one is asked for.
headroom = arg[1]
local single, names, aside = #arg == 5, {}, {}
for _, f in ipairs(redis.call('HKEYS', key)) do
  if sub(f, 1, 3) == 'x:~' then
    aside[#aside + 1] = f
  elseif not single and sub(f, 1, 2) == 'l:' and sub(f, 1, 9) ~= 'l:ghosts:' and sub(f, 1, 10) ~= 'l:primary:' then
    names[#names + 1] = sub(f, 3)
  end
end
local values = redis.call('HMGET', key, 'm', 'n')
look(values[1])
local name = values[2] or ''

-- What stands by is nobody's yet.
local places, units, held = 0, {}, {}
for i, text in ipairs(#aside > 0 and redis.call('HMGET', key, unpack(aside)) or {}) do
  local l = lease(sub(aside[i], 3), text)
  if l then
    places, units[l.resource] = places + l.places, (units[l.resource] or 0) + l.units
    for _, h in ipairs(l.holds) do held[h[1]] = (held[h[1]] or 0) + h[2] end
  end
end

local out = {name, m[PLACES] - places, cap(arg[2]), m[TILL] > now and m[TILL] or 0, now, 0}
local function tell(...)
  for _, v in ipairs({...}) do table.insert(out, v) end
end
local told = 0
for i = 3, #arg, 3 do
  local resource = arg[i]
  local w = window(resource)
  if w.length > 0 or single then
    w = window(resource, arg[i + 1], arg[i + 2])
    rollwindow(w)
    log('primary:' .. resource)
    local limit, used, reset = show(w)
    tell(resource, limit, used, w.inflight - (units[resource] or 0), reset)
    told = told + 1
  end
end
out[6] = told
for _, n in ipairs(names) do
  local g = log(n)
  roll(g)
  local busy = g[HELD] - (held[n] or 0)
  if g[TOTAL] > 0 or busy > 0 then
    tell(n, g[TOTAL], busy, g[TOTAL] > 0 and g[LAST] + g[WINDOW] or now)
  end
end
return out
