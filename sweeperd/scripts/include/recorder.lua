-- Dry-runs a script of the sweep: records its writes instead of sending them.

-- Returns a stand-in for `redis`, and the list of recorded writes. Reads go to `server`. Each write gets the server's
-- reply, including its error if the key has the wrong type or the stream refuses entries.
--
-- The list has the field `changes`, the counters that the writes would change: {key, field, value, new value} for a
-- field of a hash, {key, '', value, amount} for a string. A counter is a whole number that the script reads before it
-- writes it, outside the entry's own hash, `own`.
--
-- Each read is added to `reads`, if given: {command, key, ...}.
local function recorder(server, own, reads)
  local writes, changes = {}, {}
  writes.changes = changes
  -- key -> field -> the value as the script last read or wrote it; the field of a string is ''.
  local known = {}
  local READS = {TIME = true}
  for name in string.gmatch(
    'EXISTS GET GETRANGE HEXISTS HGET HGETALL HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE XINFO ZCARD '
    .. 'ZSCORE', '%a+') do
    READS[name] = true
  end
  local find, WHOLE = string.find, '^%-?%d+$'
  local LAST_ID = '18446744073709551615-18446744073709551615'
  local FULL_STREAM = 'ERR The stream has exhausted the last possible ID, unable to add more items'

  local function remember(reply, command, key, ...)
    if reads then
      reads[#reads + 1] = {command, key, ...}
    end
    if key == own then
      return
    elseif command == 'HMGET' then
      local held = known[key] or {}
      known[key] = held
      for i = 1, #reply do
        held[select(i, ...)] = reply[i]
      end
    elseif command == 'HGET' or command == 'GET' then
      known[key] = known[key] or {}
      known[key][... or ''] = reply
    end
  end

  local function change(key, field, value, to)
    if type(value) == 'string' and find(value, WHOLE) and find(to, WHOLE) and value ~= to then
      changes[#changes + 1] = {key, field, value, to}
    end
  end

  -- Notes the counters that a write changes.
  local function note(command, key, ...)
    local held = known[key]
    if held and command == 'INCRBY' then
      change(key, '', held[''], (...))
    elseif held and command == 'HSET' then
      for i = 1, select('#', ...), 2 do
        local field, value = select(i, ...)
        change(key, field, held[field], value)
        held[field] = value
      end
    end
  end

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
  }
  -- These meet no error: the script has read its hashes and checked its plan, and ZADD follows a ZREM or ZCARD.
  for name in string.gmatch('HSET PEXPIRE ZADD DEL SET PERSIST HDEL INCRBY SADD SREM LPUSH RPUSH PUBLISH', '%a+') do
    WRITES[name] = function()
      return 1
    end
  end

  local function tried(command, ...)
    if READS[command] then
      local reply = server.pcall(command, ...)
      remember(reply, command, ...)
      return reply
    end
    -- A command missing from WRITES is a bug in this script, because no write may ever get through.
    local answer = WRITES[command](...)
    if type(answer) ~= 'table' then
      writes[#writes + 1] = {command, ...}
      note(command, ...)
    end
    return answer
  end

  local function sent(command, ...)
    if READS[command] then
      local reply = server.call(command, ...)
      remember(reply, command, ...)
      return reply
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
