-- Tries a write in a form that changes nothing, whatever the key holds: the command removes a missing member, or fails
-- at an argument. Redis checks the user's rights before it runs a command.

-- @include effects

-- No member, field or group has this name.
local NOT_THERE = '\0sweeperd check'

-- The server's reply to such a trial. An error that begins with ERR or WRONGTYPE comes from the command itself. For
-- HSET, HDEL, ZADD, ZREM, SET, XADD, XACK, XDEL, XTRIM, SREM; PEXPIRE, INCRBY; XGROUP with the subcommand CREATE, SETID
-- or DESTROY.
local function trial(command, key, subcommand)
  if subcommand == 'CREATE' or subcommand == 'SETID' then
    return redis.pcall(command, subcommand, key, NOT_THERE, NOT_THERE)
  elseif subcommand then
    return redis.pcall(command, subcommand, key, NOT_THERE)
  end
  if command == 'PEXPIRE' or command == 'INCRBY' then
    return redis.pcall(command, key, NOT_THERE)
  end
  return redis.pcall(command, key, NOT_THERE, NOT_THERE, NOT_THERE)
end
