-- The functions for a user's script, and the checks of what it returns. Everything it returns is copied with raw access
-- before the check, so that no metatable and no later change can act between check and write.

-- @include kind_checks

local sandbox
do
  local attempt, find, format = redis.pcall, string.find, string.format
  local MAX_READS, MAX_TIME, MAX_EVENT = 64, 9007199254740992, 64
  -- The first server trouble met by a read. Kept even if the script's own pcall has caught the error.
  local trouble
  -- The fields that the script has read with HMGET: name of a key -> {field, value, field, value, ...}, up to four
  -- fields of the last call. Nothing is written before the plan is checked, so the check reuses these values. They are
  -- a copy, because the script may change the table that HMGET returned.
  local known = {}

  local function is_read(name)
    return name == 'HMGET' or name == 'HGET' or name == 'GET' or name == 'EXISTS' or name == 'HEXISTS' or name == 'HLEN'
      or name == 'LLEN' or name == 'PTTL' or name == 'SCARD' or name == 'SISMEMBER' or name == 'STRLEN'
      or name == 'TYPE' or name == 'ZCARD' or name == 'ZSCORE'
  end

  -- Whether the error is the script's mistake instead of server trouble.
  local function is_mistake(problem)
    return find(problem, 'WRONGTYPE', 1, true) or find(problem, 'number of args', 1, true)
      or find(problem, 'must be strings', 1, true)
  end

  -- The function `get`: runs a command that reads one key.
  local function reader(prefix, readable)
    local reads = 0
    return function(name, key, ...)
      reads = reads + 1
      if reads > MAX_READS then
        error('more than 64 reads', 2)
      end
      if not is_read(name) then
        error('get reads with one of EXISTS GET HEXISTS HGET HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE ZCARD '
          .. 'ZSCORE', 2)
      end
      if type(key) ~= 'string' or not readable(key) then
        error('may not read ' .. shown(key), 2)
      end
      if (name == 'EXISTS' or name == 'TYPE') and select('#', ...) > 0 then
        error('get reads one key', 2)
      end
      local reply = attempt(name, prefix .. key, ...)
      if type(reply) ~= 'table' then
        return reply or nil
      end
      if name == 'HMGET' and reply[1] ~= nil then
        local first, second, third, fourth = ...
        known[key] = {first, reply[1], second, reply[2], third, reply[3], fourth, reply[4]}
        return reply
      end
      if reply.err then
        if not is_mistake(reply.err) then
          trouble = reply
        end
        error(reply.err, 2)
      end
      return reply.ok or reply
    end
  end

  -- The two functions of the user's file; nil, nil and an error if the file fails. The error starts with `word`.
  local function load_file(user, word, ...)
    local ok, decide, plan = pcall(user, ...)
    if ok and not trouble then
      return decide, plan
    end
    return nil, nil, trouble or {err = word .. ' the script file fails: ' .. shown(decide)}
  end

  local function garbage(why)
    fail_check('SCRIPT_ERROR', why)
  end

  -- Runs a function of the script. Raises {reason = .., why = ..}, or server trouble.
  local function run(name, body, ...)
    if type(body) ~= 'function' then
      garbage('the file defines no function ' .. name)
    end
    local ok, first, second = pcall(body, ...)
    if trouble then
      error(trouble)
    end
    if not ok then
      garbage(name .. ': ' .. (type(first) == 'string' and first or type(first) == 'table'
        and type(rawget(first, 'err')) == 'string' and rawget(first, 'err') or 'an error that is no text'))
    end
    return first, second
  end

  local function moment(ms, now, latest)
    if type(ms) ~= 'number' or ms ~= math.floor(ms) or ms <= now or ms > MAX_TIME or (latest and ms > latest) then
      garbage('no time in ms between now and its limit: ' .. shown(ms))
    end
    return format('%.0f', ms)
  end

  local function reason_of(reason)
    if type(reason) ~= 'string' or #reason > 64 or not find(reason, '^[A-Z][A-Z0-9_]*$') then
      garbage('no reason of a quarantine: ' .. shown(reason))
    end
    return reason
  end

  -- Runs `decide`. Returns 'expire', or the verdict and the checked detail.
  local function decided(decide, max_wait, hash, now, id)
    local verdict, detail = run('decide', decide, hash, now, id)
    if verdict == 'expire' then
      return verdict
    elseif verdict == 'skip' then
      if detail ~= nil and type(detail) ~= 'string' then
        garbage('why it is skipped is no string')
      end
      return verdict, detail or ''
    elseif verdict == 'wait' then
      return verdict, moment(detail, now, now + max_wait)
    elseif verdict == 'extend' then
      return verdict, moment(detail, now)
    elseif verdict == 'quarantine' then
      return verdict, reason_of(detail)
    end
    garbage('decide returned ' .. shown(verdict))
  end

  -- Runs `plan`, and adds the returned fields to the event. Returns the plan's list, and the size of the fields in
  -- bytes.
  local function planned(plan, event, hash, now, id)
    local list, fields = run('plan', plan, hash, now, id)
    if list == 'quarantine' then
      fail_check(reason_of(fields), '')
    end
    if type(list) ~= 'table' or (fields ~= nil and type(fields) ~= 'table') then
      garbage('plan returns a list of commands and a table of event fields')
    end
    local count, bytes, length = 0, 0, #event
    for name, value in next, fields or {} do
      count = count + 1
      if type(name) ~= 'string' or name == '' or type(value) ~= 'string' or count > MAX_EVENT
        or name == 'id' or name == 'expires_at' or name == 'expired_at' or name == 'missing' then
        garbage('no field of an event: ' .. shown(name))
      end
      bytes = bytes + #name + #value
      event[length + 1], event[length + 2] = 'data.' .. name, value
      length = length + 2
    end
    return list, bytes
  end

  sandbox = {reader = reader, load = load_file, decided = decided, planned = planned, known = known}
end
