-- The rights to what a script writes later. A script that is refused after its first write has done half of its work,
-- so it asks for every right before: no_right('HSET', a) or no_right('ZADD', b) or ...
--
-- no_right(command, key, subcommand) returns nil, or the error that the script returns at once. It changes nothing.
--
-- From Redis 7.0 on, the server is asked. 6.2 cannot be, so there the command is tried in a form that changes nothing.
-- A user of 6.2 may run each permitted command on each permitted key, so a command is tried once, on the first key;
-- the script must have read every key that it is going to write, or have asked for another command on it.
--
-- A trial on 6.2 meets what the write would meet, a full Redis for one, and returns that error. After the first trial
-- of a command that needs no memory Redis takes all writes of the script at maxmemory, as it does after such a write:
-- a script whose first write is a ZREM asks for ZREM first, and one whose first write is a HSET asks for HSET first.

-- @include trial

local no_right
do
  local may = redis.acl_check_cmd
  if may then
    function no_right(command, key, subcommand)
      -- An error of the question: the server has no such command, because it was renamed.
      local known, permitted
      if subcommand then
        known, permitted = pcall(may, command, subcommand, key, NOT_THERE)
      else
        known, permitted = pcall(may, command, key)
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
      if problem and not string.find(problem, '^ERR ') then
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
