-- The rights to later writes of a script. If a script is refused after its first write, half of the work is done, so
-- the script asks for every right before: no_right('HSET', a) or no_right('ZADD', b) or ...
--
-- no_right(command, key, subcommand) changes nothing. Returns nil, or the error for the script to return at once.
--
-- From Redis 7.0 on, the server is asked. Newer servers, and older ones with security fixes of 2026, refuse a question
-- that has fewer arguments than the command takes. 6.2 has no such question, so there the command is tried in a form
-- that changes nothing. A user of 6.2 may run each permitted command on each permitted key, so a command is tried once,
-- on the first key; the script must have read every key before it writes to the key, or have asked for another command
-- on it.
--
-- A trial on 6.2 meets the errors of the write, a full Redis for example, and returns the error. When a command that
-- needs no memory has been tried, Redis at maxmemory takes all writes of the script, as after such a write: if the
-- first write of a script is a ZREM, the script asks for ZREM first, and if HSET, for HSET first.

-- @include trial

local no_right
do
  local may = redis.acl_check_cmd
  if may then
    function no_right(command, key, subcommand)
      -- An error of the question: the server has no such command, because it was renamed.
      local known, permitted
      if subcommand == 'CREATE' or subcommand == 'SETID' then
        known, permitted = pcall(may, command, subcommand, key, NOT_THERE, NOT_THERE)
      elseif subcommand then
        known, permitted = pcall(may, command, subcommand, key, NOT_THERE)
      else -- XADD takes most
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
      -- An imitation of Redis may give the error as another type than a string.
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
