-- Checks the rights to a script's later writes. A script that is refused after its first write leaves half of its work
-- done, so it checks every right first: no_right('HSET', a) or no_right('ZADD', b) or ...
--
-- no_right(command, key, subcommand) changes nothing. Returns nil, or the error for the script to return at once.
--
-- Redis 7.0 and newer can be asked. On 6.2 the command is tried in a form that changes nothing. A 6.2 user may run each
-- permitted command on each permitted key, so one trial of each command is enough, on the first key. The script must
-- have read every key before it writes to it, or have checked another command on it.
--
-- A trial on 6.2 meets the errors of the write, such as a full Redis, and returns them. After the trial of a command
-- that needs no memory, Redis at maxmemory accepts all writes of the script, as after the write itself. A script
-- therefore checks the right to its first write first, whether ZREM or HSET.

-- @include permission
-- @include trial

local no_right
do
  if can_ask then
    function no_right(command, key, subcommand)
      local lacks
      if subcommand == 'CREATE' or subcommand == 'SETID' then
        lacks = lacks_permission(command, subcommand, key, NOT_THERE, NOT_THERE)
      elseif subcommand then
        lacks = lacks_permission(command, subcommand, key, NOT_THERE)
      else -- XADD takes the most arguments
        lacks = lacks_permission(command, key, NOT_THERE, NOT_THERE, NOT_THERE)
      end
      return lacks and permission_error(command, key)
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
      -- A Redis imitation may return the error as another type than a string.
      local problem = type(reply) == 'table' and tostring(reply.err)
      if problem and not string.find(problem, '^ERR ') and not string.find(problem, '^NOGROUP ') then
        if string.find(problem, 'user executing the script', 1, true) or string.find(problem, 'NOPERM', 1, true)
          or string.find(problem, 'Unknown Redis command', 1, true) then
          return permission_error(command, key)
        end
        return reply
      end
      return nil
    end
  end
end
