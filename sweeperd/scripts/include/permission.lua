-- Asks Redis 7.0 and newer whether the user may run a command. On Redis 6.2 `can_ask` is false.

local can_ask = redis.acl_check_cmd ~= nil

-- The error for a script to return at once, before its first write.
local function permission_error(command, key)
  return {err = 'NOPERM the user has no permissions to run ' .. command .. ' on ' .. (key or '')}
end

local lacks_permission
do
  local may, try = redis.acl_check_cmd, pcall

  -- Returns nil, or the error. Pass as many arguments as the command takes: newer servers, and older ones with the
  -- security fixes of 2026, reject a question with fewer. The question fails for a command that was renamed.
  function lacks_permission(command, ...)
    local known, permitted = try(may, command, ...)
    if known and permitted then
      return nil
    end
    return permission_error(command, (...))
  end
end
