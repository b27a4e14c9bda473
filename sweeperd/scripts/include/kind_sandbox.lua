-- What a user's script may use, and how its answers are taken. Every answer is copied raw before it is checked, so that
-- no metatable and no later change can come between a check and a write.

-- @include kind_plan

local sandbox = {}
do
  local attempt, find, format = redis.pcall, string.find, string.format
  local MAX_READS, MAX_TIME, MAX_EVENT = 64, 9007199254740992, 64
  local READS = {}
  for name in string.gmatch('EXISTS GET HEXISTS HGET HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE ZCARD ZSCORE',
    '%u+') do
    READS[name] = true
  end
  -- The first trouble of the server that a read met. It stays, also where the script's own pcall has caught it.
  sandbox.trouble = nil

  -- The function `get`: a command that reads one key.
  function sandbox.reader(prefix, readable)
    local reads = 0
    return function(name, key, ...)
      reads = reads + 1
      if reads > MAX_READS then
        error('more than 64 reads', 2)
      end
      if type(name) ~= 'string' or not READS[name] then
        error('get reads with one of EXISTS GET HEXISTS HGET HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE ZCARD '
          .. 'ZSCORE', 2)
      end
      if type(key) ~= 'string' or not readable(key) then
        error('may not read ' .. tostring(key), 2)
      end
      for i = 1, select('#', ...) do
        if type((select(i, ...))) ~= 'string' then
          error('get takes strings', 2)
        end
      end
      if (name == 'EXISTS' or name == 'TYPE') and select('#', ...) > 0 then
        error('get reads one key', 2)
      end
      local reply = attempt(name, prefix .. key, ...)
      if type(reply) ~= 'table' then
        return reply or nil
      end
      if reply.err then
        if find(reply.err, 'WRONGTYPE', 1, true) or find(reply.err, 'number of args', 1, true) then
          error(reply.err, 2)
        end
        sandbox.trouble = reply
        error(reply.err, 2)
      end
      return reply.ok or reply
    end
  end

  local function copy(from, names)
    local to = {}
    for name in string.gmatch(names, '%S+') do
      to[name] = from[name]
    end
    return to
  end

  -- The libraries that a script sees, as arguments of its function: copies, so that nothing that it changes stays.
  function sandbox.libraries()
    return {decode = cjson.decode, encode = cjson.encode},
      copy(string, 'byte char find format gmatch gsub len lower match rep reverse sub upper'),
      copy(table, 'concat insert maxn remove sort'),
      copy(math, 'abs ceil floor fmod huge max min')
  end

  local function garbage(why)
    error({reason = 'SCRIPT_ERROR', why = why}, 0)
  end

  -- Runs a function of the script. Raises {reason = .., why = ..}, or the server's trouble.
  function sandbox.run(name, body, ...)
    if type(body) ~= 'function' then
      garbage('the file defines no function ' .. name)
    end
    local ok, first, second = pcall(body, ...)
    if sandbox.trouble then
      error(sandbox.trouble)
    end
    if not ok then
      garbage(name .. ': ' .. (type(first) == 'string' and first or type(first) == 'table'
        and type(rawget(first, 'err')) == 'string' and rawget(first, 'err') or 'an error that is no text'))
    end
    return first, second
  end

  local function moment(ms, now, latest)
    if type(ms) ~= 'number' or ms ~= math.floor(ms) or ms <= now or ms > MAX_TIME or (latest and ms > latest) then
      garbage('no whole time in ms between now and its limit: ' .. tostring(ms))
    end
    return format('%.0f', ms)
  end

  local function reason_of(reason)
    if type(reason) ~= 'string' or #reason > 64 or not find(reason, '^[A-Z][A-Z0-9_]*$') then
      garbage('no reason of a quarantine: ' .. tostring(reason))
    end
    return reason
  end

  -- What `decide` returned: 'expire', or the verdict and its checked detail.
  function sandbox.verdict(verdict, detail, now, max_wait)
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
    garbage('decide returned ' .. tostring(verdict))
  end

  -- The items of a list whose keys are exactly 1 to n.
  local function items(list, most)
    if type(list) ~= 'table' then
      plan.refuse('no list')
    end
    local length, copied = 0, {}
    for _ in next, list do
      length = length + 1
      if length > most then
        plan.refuse('a list of more than ' .. most)
      end
    end
    for i = 1, length do
      copied[i] = rawget(list, i)
      if copied[i] == nil then
        plan.refuse('a list with a hole')
      end
    end
    return copied
  end

  -- Checks what `plan` returned, and adds the fields to the event.
  function sandbox.plan(list, fields, most, event)
    if list == 'quarantine' then
      error({reason = reason_of(fields), why = ''}, 0)
    end
    if type(list) ~= 'table' or (fields ~= nil and type(fields) ~= 'table') then
      garbage('plan returns a list of commands and a table of event fields')
    end
    local writes = items(list, most)
    for i = 1, #writes do
      local words = items(writes[i], 128)
      if #words == 0 then
        plan.refuse('a command without words')
      end
      for j = 1, #words do
        if type(words[j]) ~= 'string' then
          plan.refuse('a word that is no string: ' .. tostring(words[j]))
        end
      end
      plan.command(words)
    end
    local names = {}
    for name, value in next, fields or {} do
      if type(name) ~= 'string' or name == '' or type(value) ~= 'string' or #names == MAX_EVENT
        or name == 'id' or name == 'expires_at' or name == 'expired_at' or name == 'missing' then
        garbage('no field of an event: ' .. tostring(name))
      end
      names[#names + 1] = name
    end
    table.sort(names)
    for i = 1, #names do
      event[#event + 1] = 'data.' .. plan.weigh(names[i])
      event[#event + 1] = plan.weigh(rawget(fields, names[i]))
    end
  end
end
