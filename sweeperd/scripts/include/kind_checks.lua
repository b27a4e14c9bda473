-- Checks before the first write. If a check fails, it raises {reason = .., why = ..}: the entry is quarantined. Trouble
-- of the server is raised unchanged, {err = ..}, and fails the call.

-- The type and text of a value from a user's script. `tostring` would run the __tostring of a table.
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

-- Calls `body` with the arguments after it. Returns the first two results; if a check failed: nil, nil and
-- {reason = .., why = ..}; if the server is in trouble: nil, nil, nil and the error.
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
