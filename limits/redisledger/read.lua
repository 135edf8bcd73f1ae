-- Returns the state of an account without changing the account. Only permits count as in use, not offline leases.
-- step: {headroom, concurrent, windows, other, window_only}. windows have documented numbers, and other has the numbers of
-- the windows that are not among them. The reply has the used windows and the logs. If window_only is set, the reply has
-- only the window that the step names.

load()
advance()
local places, units, held = 0, {}, {} -- reserved by offline leases
for _, name in ipairs(field_names('x:~')) do
  local l = lease(name:sub(3))
  if l then
    places, units[l.resource] = places + l.places, (units[l.resource] or 0) + l.units
    for _, h in ipairs(l.holds) do held[h.log] = (held[h.log] or 0) + h.cost end
  end
end

local resources, named = step.windows or {}, {}
for _, resource in ipairs(resources) do named[resource.name] = true end
for _, field in ipairs(step.window_only and {} or field_names('w:')) do
  local name = field:sub(3)
  if not named[name] then table.insert(resources, {name = name, limit = step.other.limit, window = step.other.window}) end
end
local list = {}
for _, resource in ipairs(resources) do
  local w = window({name = resource.name})
  if (w.length > 0 and not unlimited(w)) or step.window_only then
    local rate = rate_of(window(resource))
    rate.resource, rate.held = resource.name, w.in_use - (units[resource.name] or 0)
    table.insert(list, rate)
  end
end
local reported = {}
for _, field in ipairs(step.window_only and {} or field_names('l:')) do
  local name = field:sub(3)
  if name:sub(1, 12) ~= 'unconfirmed:' and name:sub(1, 8) ~= 'primary:' then
    local l = log(name)
    expire_entries(l)
    local in_use = l.held - (held[name] or 0)
    if l.total > 0 or in_use > 0 then
      table.insert(reported, {log = name, total = l.total, held = in_use,
        reset = string.format('%.0f', l.total > 0 and l.last + l.window or now)})
    end
  end
end
return cjson.encode({now = string.format('%.0f', now),
  account = {title = read_field('n') or '', in_use = account.places - places, concurrent = max_places(step.concurrent),
    blocked_until = string.format('%.0f', account.cooldown_until > now and account.cooldown_until or 0),
    windows = #list > 0 and list or nil, logs = #reported > 0 and reported or nil}})
