-- Rights that are known only once an entry has been read. Redis 7.0 and newer can be asked before a write; on 6.2 the rights
-- are tried before the sweep starts.

local has_right = redis.acl_check_cmd

-- Fails the call, with nothing written, where the user has no right to the command.
local function need_right(...)
  if has_right and not has_right(...) then
    local name, key = ...
    error({err = 'NOPERM this user has no permission to run ' .. name .. ' on ' .. (key or '')})
  end
end
