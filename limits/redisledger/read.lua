-- Returns the state of an account without changing the account: the use of each budget by other replicas than the
-- calling replica, the windows, and the cool-down.

load()
remove_dead_leases()
local reply = {now = int(now), title = redis.call('HGET', key, 'n') or '', enforced = account.enforced,
  cooldown = cooldown(), cooldown_version = account.cooldown_version, budgets = {}, windows = {}}
local left = {} -- by the calling replica, by budget
for _, part in ipairs(own_parts()) do
  left[part.budget] = (left[part.budget] or 0) + field(part.field).spent
end
for _, name in ipairs(fields('t:')) do
  local t, l = field(name), lease(call.replica, name:sub(3))
  table.insert(reply.budgets, {budget = name:sub(3), spent = t.spent - l.spent - (left[name:sub(3)] or 0), held = t.held - l.held,
    returns = int(t.returns), ends = int(t.ends)})
end
for _, name in ipairs(fields('w:')) do
  local w = field(name)
  end_windows('window:' .. name:sub(3), w)
  table.insert(reply.windows, {budget = 'window:' .. name:sub(3), silent = w.silent, reports = reports_of(w, name:sub(3)), opened = int(w.opened or 0)})
end
if call.into then -- the leases that other replicas may not return themselves
  reply.leases = {}
  for _, name in ipairs(fields('r:')) do
    local prefix = 'l:' .. name:sub(3) .. ':'
    for _, entry in ipairs(name:sub(3):match('^[^#]*') ~= call.replica and fields(prefix) or {}) do
      local l = field(entry)
      table.insert(reply.leases, {replica = name:sub(3), budget = entry:sub(#prefix + 1), tokens = l.tokens,
        ends = int(field(name).seen + LEASE_TIME + l.keep)})
    end
  end
  reply.leases = list(reply.leases)
end
reply.budgets, reply.windows = list(reply.budgets), list(reply.windows)
return cjson.encode(reply)
