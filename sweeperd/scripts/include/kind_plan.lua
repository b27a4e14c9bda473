-- The plan of one entry: the writes that give back what it held. All of them are checked, in order and each with the
-- effect of the writes before it, before the first is made. After that nothing can fail.
--
-- Names of keys come without the prefix, and it is put before each here. A check that fails raises
-- {reason = .., why = ..}, which is a quarantine; trouble of the server is raised as it is.

local plan = {}
do
  -- @include sums
  local call, attempt, find = redis.call, redis.pcall, string.find
  -- Redis 7.0 and newer can be asked before a write. On 6.2 the rights are tried before the sweep starts.
  local allowed = redis.acl_check_cmd
  local MAX_KEY, MAX_WORDS, MAX_BYTES, MAX_TTL = 1024, 128, 65536, '3155760000000'
  local MAX_AMOUNT = '9223372036854775807'

  -- The prefix; functions that say whether a key may be written and a channel published to; the most writes.
  local prefix, writable, audible, most
  -- Name of a key -> its use: key, type, values and sums of fields, commands. And the uses in order.
  local uses, order, messages, missing = {}, {}, {}, nil
  local count, bytes = 0, 0

  function plan.open(key_prefix, is_writable, is_audible, max_writes)
    prefix, writable, audible, most = key_prefix, is_writable, is_audible, max_writes
  end

  local function refuse(why)
    error({reason = 'INVALID_PLAN', why = why}, 0)
  end
  plan.refuse = refuse

  -- Fails the call, with nothing written, where the user has no right to the command.
  function plan.need(...)
    if allowed and not allowed(...) then
      local name, key = ...
      error({err = 'NOPERM this user has no permission to run ' .. name .. ' on ' .. (key or '')})
    end
  end
  local need = plan.need

  -- Counts the bytes that the plan and the event carry.
  function plan.weigh(value)
    bytes = bytes + #value
    if bytes > MAX_BYTES then
      refuse('the plan and the event have more than 65536 bytes')
    end
    return value
  end
  local weigh = plan.weigh

  -- Whether a key begins and ends with these texts and has the rest, in order, between them: `first*...*last`.
  function plan.like(key, first, last, ...)
    local from, to = #first + 1, #key - #last
    if to < from - 1 or string.sub(key, 1, #first) ~= first or string.sub(key, to + 1) ~= last then
      return false
    end
    for i = 1, select('#', ...) do
      local _, stop = find(key, (select(i, ...)), from, true)
      if not stop or stop > to then
        return false
      end
      from = stop + 1
    end
    return true
  end

  -- The value of a field that a template names; an empty one counts as missing.
  function plan.field(value, name)
    if not value or value == '' then
      error({reason = 'MISSING_FIELD', why = name}, 0)
    end
  end

  -- A field as an amount: plain decimal from 0 to 2^63-1. Only the template may turn its sign.
  function plan.amount(text)
    if text == '0' or (find(text, '^[1-9]%d*$') and (#text < 19 or (#text == 19 and text <= MAX_AMOUNT))) then
      return text
    end
    refuse('no amount: ' .. string.sub(text, 1, 32))
  end

  function plan.negative(text)
    return plan.amount(text) == '0' and '0' or '-' .. text
  end

  local function use_of(name)
    count = count + 1
    if count > most then
      refuse('more than ' .. most .. ' writes')
    end
    local use = uses[name]
    if not use then
      if name == '' or #name > MAX_KEY then
        refuse('a key has 1 to 1024 bytes')
      end
      if not writable(name) then
        refuse('may not write ' .. name)
      end
      use = {name = name, key = prefix .. name, values = {}, used = {}, commands = {}}
      uses[name] = use
      order[#order + 1] = use
    end
    if use.alone then
      refuse('DEL and SET stand alone on a key: ' .. name)
    end
    return use
  end

  -- Reads the type of a key. It fails where the user has no right to the key, or it lies in another slot.
  local function touch(use)
    use.type = use.type or call('TYPE', use.key).ok
  end

  -- The use of a key that has this type, or does not exist.
  local function typed(name, kind)
    local use = use_of(name)
    touch(use)
    if use.type ~= kind and (use.type ~= 'none' or (use.kind and use.kind ~= kind)) then
      refuse('not of type ' .. kind .. ': ' .. name)
    end
    use.kind = kind
    return use
  end

  local function queue(use, ...)
    need(...)
    use.commands[#use.commands + 1] = {...}
  end

  -- A field is set or deleted once, or added to.
  local function claim(use, field, how)
    local before = use.used[field]
    if before and (before == 'once' or how == 'once') then
      refuse('a field is used twice: ' .. use.name .. ' ' .. field)
    end
    use.used[field] = how
  end

  -- Reads fields that are going to be added to. Whether the key exists is asked where it has none of them.
  local function read(use, ...)
    local row = attempt('HMGET', use.key, ...)
    if row.err then
      if find(row.err, 'WRONGTYPE', 1, true) then
        refuse('not of type hash: ' .. use.name)
      end
      error(row)
    end
    local found = false
    for i = 1, #row do
      local value = row[i]
      if value then
        found = true
        if not sums.is_int64(value) then
          refuse('no int64: ' .. use.name .. ' ' .. (select(i, ...)))
        end
      end
      local field = (select(i, ...))
      if use.values[field] == nil then -- else it holds a sum by now
        use.values[field] = value
      end
    end
    if not found and not use.type and call('EXISTS', use.key) == 0 then
      use.missing = true
    end
    use.type = use.type or 'hash'
    need('HSET', use.key, 'f', 'v')
  end

  local function miss(use)
    if use.missing and not use.named then
      use.named = true
      missing = missing or {}
      missing[#missing + 1] = use.name
    end
    return use.missing
  end

  local function check_sum(use, what, before, amount, least)
    local sum = sums.add(before, amount)
    if not sum then
      refuse('beyond int64: ' .. use.name .. what)
    end
    if least and sums.less(sum, least) then
      refuse('below MIN ' .. least .. ': ' .. use.name .. what)
    end
    return sum
  end

  -- HINCRBY name field amount [MIN least]; `...` are all fields of this key that the plan adds to, where that is known.
  function plan.add(name, field, amount, least, ...)
    local use = use_of(name)
    if (use.kind and use.kind ~= 'hash') or (use.type and use.type ~= 'hash' and use.type ~= 'none') then
      refuse('not of type hash: ' .. name)
    end
    use.kind = 'hash'
    if use.type == 'none' then
      use.missing = true
    end
    if not use.missing and use.values[field] == nil then
      if ... then
        read(use, ...)
      else
        read(use, field)
      end
    end
    claim(use, field, 'sum')
    if miss(use) then
      return
    end
    local before = use.values[field]
    if not before then
      refuse('no such field: ' .. name .. ' ' .. field)
    end
    use.values[field] = check_sum(use, ' ' .. field, before, amount, least)
    local pairs_of = use.sums
    if not pairs_of then
      pairs_of = {}
      use.sums, use.at = pairs_of, {}
    end
    local at = use.at[field]
    if not at then
      at = #pairs_of + 2
      use.at[field] = at
      pairs_of[at - 1] = field
    end
    pairs_of[at] = use.values[field]
  end

  local function int64(text, what)
    if text == '-0' then
      return '0'
    end
    if not sums.is_int64(text) then
      refuse('no ' .. what .. ': ' .. string.sub(text, 1, 32))
    end
    return text
  end

  -- A whole number between two others, given as text.
  local function bounded(text, lowest, highest, what)
    text = int64(text, what)
    if sums.less(text, lowest) or sums.less(highest, text) then
      refuse('no ' .. what .. ': ' .. text)
    end
    return text
  end

  local function least_of(words, at)
    if #words == at - 1 then
      return nil
    end
    if #words ~= at + 1 or words[at] ~= 'MIN' then
      refuse('not the form of ' .. words[1])
    end
    return int64(words[at + 1], 'whole number')
  end

  local function form(words, fewest, largest)
    if #words < fewest or #words > largest then
      refuse('not the form of ' .. words[1])
    end
  end

  local function members(kind)
    return function(words)
      form(words, 3, MAX_WORDS)
      local use = typed(words[2], kind)
      queue(use, words[1], use.key, unpack(words, 3))
    end
  end

  -- Each command and its check. words: the command with all its words.
  local commands = {
    ZREM = members('zset'), SADD = members('set'), SREM = members('set'),
    LPUSH = members('list'), RPUSH = members('list'),
  }

  function commands.HSET(words)
    form(words, 4, MAX_WORDS)
    if #words % 2 == 1 then
      refuse('not the form of HSET')
    end
    local use = typed(words[2], 'hash')
    for i = 3, #words, 2 do
      claim(use, words[i], 'once')
    end
    queue(use, 'HSET', use.key, unpack(words, 3))
  end

  function commands.HDEL(words)
    form(words, 3, MAX_WORDS)
    local use = typed(words[2], 'hash')
    for i = 3, #words do
      claim(use, words[i], 'once')
    end
    queue(use, 'HDEL', use.key, unpack(words, 3))
  end

  function commands.HINCRBY(words)
    form(words, 4, 6)
    plan.add(words[2], words[3], int64(words[4], 'amount'), least_of(words, 5))
  end

  function commands.INCRBY(words)
    form(words, 3, 5)
    local amount, least = int64(words[3], 'amount'), least_of(words, 4)
    local use = typed(words[2], 'string')
    if use.type == 'none' then
      use.missing = true
      miss(use)
      return
    end
    local before = use.total or call('GET', use.key)
    if not sums.is_int64(before) then
      refuse('no int64: ' .. use.name)
    end
    use.total = check_sum(use, '', before, amount, least)
    queue(use, 'INCRBY', use.key, amount)
  end

  function commands.SET(words)
    form(words, 3, 5)
    local use = typed(words[2], 'string')
    if #use.commands > 0 or use.missing then
      refuse('DEL and SET stand alone on a key: ' .. use.name)
    end
    use.alone = true
    if #words == 3 then
      queue(use, 'SET', use.key, words[3])
    elseif #words == 5 and words[4] == 'PX' then
      queue(use, 'SET', use.key, words[3], 'PX', bounded(words[5], '1', MAX_TTL, 'time'))
    else
      refuse('not the form of SET')
    end
  end

  function commands.DEL(words)
    form(words, 2, 2)
    local use = use_of(words[2])
    if #use.commands > 0 or use.kind then
      refuse('DEL and SET stand alone on a key: ' .. use.name)
    end
    use.alone = true
    touch(use)
    queue(use, 'DEL', use.key)
  end

  function commands.ZADD(words)
    form(words, 4, 4)
    local score = bounded(words[3], '-9007199254740992', '9007199254740992', 'score')
    local use = typed(words[2], 'zset')
    queue(use, 'ZADD', use.key, score, words[4])
  end

  function commands.PEXPIRE(words)
    form(words, 3, 3)
    local use = use_of(words[2])
    touch(use)
    queue(use, 'PEXPIRE', use.key, bounded(words[3], '1', MAX_TTL, 'time'))
  end

  function commands.PUBLISH(words)
    form(words, 3, 3)
    count = count + 1
    if count > most then
      refuse('more than ' .. most .. ' writes')
    end
    if not audible(words[2]) then
      refuse('may not publish to ' .. words[2])
    end
    need('PUBLISH', words[2], words[3])
    messages[#messages + 1] = words
  end

  -- Checks one command and puts it into the plan.
  function plan.command(words)
    local command = commands[words[1]]
    if not command then
      refuse('not allowed: ' .. string.sub(words[1], 1, 32))
    end
    for i = 2, #words do
      weigh(words[i])
    end
    command(words)
  end

  -- The keys that were to be added to and do not exist, as a JSON array.
  function plan.missing()
    return missing and cjson.encode(missing) or '[]'
  end

  -- Sends the messages, before anything is written. Returns the error of the first that is refused.
  function plan.publish()
    for i = 1, #messages do
      local reply = attempt(unpack(messages[i]))
      if type(reply) == 'table' then
        return reply
      end
    end
  end

  -- Makes the writes.
  function plan.apply()
    for i = 1, #order do
      local use = order[i]
      if not use.missing then
        if use.sums then
          call('HSET', use.key, unpack(use.sums))
        end
        for j = 1, #use.commands do
          call(unpack(use.commands[j]))
        end
      end
    end
  end

  -- Runs these checks. Returns the {reason = .., why = ..} of one that failed; or nil and the error of the server.
  function plan.check(checks)
    local ok, problem = pcall(checks)
    if ok then
      return nil
    end
    if type(problem) ~= 'table' then
      error(problem, 0)
    end
    if problem.reason then
      return problem
    end
    return nil, problem
  end
end
