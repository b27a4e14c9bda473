-- Checks that come before the first write. One that fails raises {reason = .., why = ..}, which is a quarantine. Trouble of
-- the server is raised as it is, {err = ..}, and fails the call.

-- What a value from a user's script is, in words. `tostring` would run the __tostring of a table.
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

-- Calls `body` with the arguments after it. Returns its first two results; or nil, nil and the {reason = .., why = ..} of
-- a check that failed; or nil, nil, nil and the error of the server.
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
