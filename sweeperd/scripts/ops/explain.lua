-- What expire.lua would decide now, and what it would write, without any of it being done.
--
-- KEYS[1..4], ARGV[1..5] -> what expire.lua takes, in its order
--
-- Returns {what expire.lua returns, {{command, key, ...}, ...}}: the reply and the writes.
--
-- The decision is that of expire.lua: its text is included below, and runs with a `redis` that records the writes and
-- sends none. Each write is answered as the server would answer it: with the server's error where the key is of another
-- type, or where the stream cannot take another entry.

local writes = {}
local reply
do
  local server = redis
  local READS = {TIME = true, HMGET = true, HGET = true, EXISTS = true, ZCARD = true}
  local LAST_ID = '18446744073709551615-18446744073709551615'
  local FULL_STREAM = 'ERR The stream has exhausted the last possible ID, unable to add more items'

  local function last_id(key)
    local info = server.call('XINFO', 'STREAM', key)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        return info[i + 1]
      end
    end
  end

  -- What each write answers, and the error that it meets.
  local WRITES = {
    ZREM = function(key)
      local size = server.pcall('ZCARD', key)
      return type(size) == 'table' and size or 1
    end,
    ZADD = function(key)
      local size = server.pcall('ZCARD', key)
      return type(size) == 'table' and size or 1
    end,
    XADD = function(key)
      local length = server.pcall('XLEN', key)
      if type(length) == 'table' then
        return length
      end
      if server.call('EXISTS', key) == 1 and last_id(key) == LAST_ID then
        return {err = FULL_STREAM}
      end
      return '(id of the event)'
    end,
    -- Hashes that the script has read before it writes to them.
    HSET = function()
      return 0
    end,
    PEXPIRE = function()
      return 1
    end,
  }

  local function tried(command, ...)
    if READS[command] then
      return server.pcall(command, ...)
    end
    -- A command that is not known here is an error of this script: no write must ever get past it.
    local answer = WRITES[command](...)
    if type(answer) ~= 'table' then
      writes[#writes + 1] = {command, ...}
    end
    return answer
  end

  local function sent(command, ...)
    if READS[command] then
      return server.call(command, ...)
    end
    local answer = tried(command, ...)
    if type(answer) == 'table' then
      error(answer.err, 0)
    end
    return answer
  end

  local redis = {call = sent, pcall = tried, acl_check_cmd = server.acl_check_cmd}
  reply = (function()
    -- @include sweep/expire
  end)()
end
if reply.err then
  return reply
end
return {reply, writes}
