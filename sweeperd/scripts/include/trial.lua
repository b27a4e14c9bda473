-- Tries a write in a form that changes nothing, whatever the key holds: the command removes a missing member, or fails
-- at an argument. Redis checks the user's rights before it runs a command.

-- @include effects

-- No member, field or group has this name.
local NOT_THERE = '\0sweeperd check'

-- The words of such a form, of HSET, HDEL, ZADD, ZREM, SET, XADD, XACK, XDEL, XTRIM, SREM; PEXPIRE, INCRBY; XGROUP with
-- the subcommand CREATE, SETID or DESTROY.
local function harmless(command, key, subcommand)
  if subcommand == 'CREATE' or subcommand == 'SETID' then
    return command, subcommand, key, NOT_THERE, NOT_THERE
  elseif subcommand then
    return command, subcommand, key, NOT_THERE
  elseif command == 'PEXPIRE' or command == 'INCRBY' then
    return command, key, NOT_THERE
  end
  return command, key, NOT_THERE, NOT_THERE, NOT_THERE
end

-- The server's reply. An error that begins with ERR or WRONGTYPE comes from the command itself.
local function trial(...)
  return redis.pcall(harmless(...))
end

-- Whether the reply to a trial is the error for a missing right: the second up to Redis 7.0, the third on newer servers
-- and on Valkey. The last two mean that the command was renamed (6.2; 7.0 and newer).
local function is_refusal(reply)
  -- A Redis imitation may return the error as another type than a string.
  local problem = type(reply) == 'table' and tostring(reply.err)
  for _, text in ipairs({'NOPERM', 'user executing the script', 'ACL failure', 'Unknown Redis command',
    'Unknown command'}) do
    if problem and string.find(problem, text, 1, true) then
      return true
    end
  end
  return false
end
