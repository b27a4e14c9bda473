-- Checks rights before the first write, because an open connection can lose them. Redis 7.0 and newer can be asked. On
-- 6.2 a command is tried in a form that changes nothing, as in rights.lua. There a user may run each permitted command
-- on each permitted key, and every key of a plan has been read before.

-- @include permission
-- @include trial

-- The entry's key, or the index if it has none; and the name of a missing key.
local entry_key, absent_key

-- lacks_right(command, key, ...) returns the error for the script to return at once, or nil. Pass as many arguments as
-- the command takes, because newer servers reject a question with fewer. On 6.2 the type of the entry must already be
-- known, unless the command is ZADD or XADD.
local lacks_right
do
  local tried = {}

  local function is_refused(command, key)
    if tried[command] then
      return false
    end
    tried[command] = true
    local reply
    if command == 'SADD' or command == 'LPUSH' or command == 'RPUSH' then
      reply = redis.pcall(command, entry_key, NOT_THERE) -- an entry is of none of these types
    elseif command == 'DEL' then
      reply = redis.pcall(command, absent_key)
    else
      reply = trial(command, key)
    end
    if command == 'DEL' and type(reply) == 'table'
      and string.find(reply.err, 'access at least one of the keys', 1, true) then
      return false -- the missing key lies outside the user's keys
    end
    return is_refusal(reply)
  end

  function lacks_right(...)
    if can_ask then
      return lacks_permission(...)
    end
    local command, key = ...
    return is_refused(command, key) and permission_error(command, key) or nil
  end
end

-- Fails the check of a plan if the user lacks the right to one of its commands. On 6.2 the commands are tried after the
-- plan is checked.
local function need_right(...)
  local refusal = can_ask and lacks_right(...)
  if refusal then
    error(refusal)
  end
end
