-- Checks the rights to a script's later writes. A script that is refused after its first write leaves half of its work
-- done, so it checks every right first: no_right('HSET', a) or no_right('ZADD', b) or ...
--
-- no_right(command, key, subcommand) changes nothing. Returns nil, or the error for the script to return at once.
--
-- Redis 7.0 and newer can be asked. On 6.2 the command is tried in a form that changes nothing. A 6.2 user may run each
-- permitted command on each permitted key, so one trial of each command is enough, on the first key. The script must
-- have read every key before it writes to it, or have checked another command on it.
--
-- Redis at maxmemory refuses a script's writes that need memory until the script has made one that needs none. A script
-- that must work then begins with a ZREM, HDEL or XACK, or with the trial of one, and checks the right to that command
-- first: on 6.2 a check meets the errors of the write, such as a full Redis.

-- @include permission
-- @include trial

local no_right
if can_ask then
  function no_right(command, key, subcommand)
    return lacks_permission(harmless(command, key, subcommand)) and permission_error(command, key)
  end
else
  local tried = {}
  function no_right(command, key, subcommand)
    local name = subcommand or command
    if tried[name] then
      return nil
    end
    local reply = trial(command, key, subcommand)
    tried[name] = true
    if is_refusal(reply) then
      return permission_error(command, key)
    end
    local problem = type(reply) == 'table' and tostring(reply.err)
    return problem and not string.find(problem, '^ERR ') and not string.find(problem, '^NOGROUP ') and reply or nil
  end
end
