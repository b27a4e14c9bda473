-- Checks the rights to a script's later writes. A script that is refused after its first write leaves half of its work
-- done, so it checks every right first: no_right('HSET', a) or no_right('ZADD', b) or ...
--
-- no_right(command, key, subcommand) changes nothing. Returns nil, or the error for the script to return at once.
--
-- Redis 7.0 and newer can be asked. Newer servers, and older ones with the security fixes of 2026, reject a question
-- with fewer arguments than the command takes. 6.2 has no such question, so there the command is tried in a form that
-- changes nothing. A 6.2 user may run each permitted command on each permitted key, so one trial of each command is
-- enough, on the first key. The script must have read every key before it writes to it, or have checked another command
-- on it.
--
-- A trial on 6.2 meets the errors of the write, such as a full Redis, and returns them. After the trial of a command
-- that needs no memory, Redis at maxmemory accepts all writes of the script, as after the write itself. A script
-- therefore checks the right to its first write first, whether ZREM or HSET.

-- @include trial

local no_right
do
  local may = redis.acl_check_cmd
  if may then
    function no_right(command, key, subcommand)
      -- The question fails if the server doesn't have the command, because it was renamed.
      local known, permitted
      if subcommand == 'CREATE' or subcommand == 'SETID' then
        known, permitted = pcall(may, command, subcommand, key, NOT_THERE, NOT_THERE)
      elseif subcommand then
        known, permitted = pcall(may, command, subcommand, key, NOT_THERE)
      else -- XADD takes the most
        known, permitted = pcall(may, command, key, NOT_THERE, NOT_THERE, NOT_THERE)
      end
      if not (known and permitted) then
        return {err = 'NOPERM the user has no right to run ' .. command .. ' on ' .. key}
      end
      return nil
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
          return {err = 'NOPERM the user has no right to run ' .. command .. ' on ' .. key}
        end
        return reply
      end
      return nil
    end
  end
end
