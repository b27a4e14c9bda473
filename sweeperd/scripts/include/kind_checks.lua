-- Checks before the first write. A failed check raises {reason = .., why = ..}, and the entry is quarantined. Server
-- trouble is raised unchanged, {err = ..}, and fails the call.

-- The type and text of a value from a user's script. `tostring` would run a table's __tostring.
local function shown(value)
  local kind = type(value)
  return (kind == 'table' or kind == 'function') and 'a ' .. kind or tostring(value)
end

local function fail_check(reason, why)
  error({reason = reason, why = why}, 0)
end

local function refuse_plan(why)
  fail_check('INVALID_PLAN', why)
end

-- Calls `body` with the arguments after it. Returns its first two results. If a check failed, returns nil, nil and
-- {reason = .., why = ..}; if the server is in trouble, nil, nil, nil and the error.
local function run_checks(body, ...)
  local ok, first, second = pcall(body, ...)
  if ok then
    return first, second
  end
  if type(first) ~= 'table' then
    error(first, 0)
  end
  if rawget(first, 'reason') then
    return nil, nil, first
  end
  return nil, nil, nil, first
end
