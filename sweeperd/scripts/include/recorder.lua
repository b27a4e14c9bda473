-- Dry-runs a script of the sweep: records its writes instead of sending them.

-- Returns a stand-in for `redis`, and the list of recorded writes. Reads go to `server`. Each write gets the server's
-- reply, including its error if the key has the wrong type or the stream refuses entries.
local function recorder(server)
  local writes = {}
  local READS = {TIME = true}
  for name in string.gmatch(
    'EXISTS GET HEXISTS HGET HGETALL HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE ZCARD ZSCORE', '%a+') do
    READS[name] = true
  end
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

  -- The reply to each write, and its error if there is one.
  local WRITES = {
    ZREM = function(key)
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
    -- The script has already read each hash that it writes.
    HSET = function()
      return 0
    end,
    PEXPIRE = function()
      return 1
    end,
  }
  -- A plan checks its writes first, so they meet no error. ZADD follows a ZREM or ZCARD of the same key.
  for name in string.gmatch('ZADD DEL SET HDEL INCRBY SADD SREM LPUSH RPUSH PUBLISH', '%a+') do
    WRITES[name] = WRITES.PEXPIRE
  end

  local function tried(command, ...)
    if READS[command] then
      return server.pcall(command, ...)
    end
    -- A command missing from WRITES is a bug in this script, because no write may ever get through.
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
  -- Redis 6.2 has no way to ask for rights, so a script would try its writes.
  local function may()
    return true
  end
  return {call = sent, pcall = tried, acl_check_cmd = server.acl_check_cmd or may}, writes
end
