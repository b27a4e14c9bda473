-- The commands of a plan except HINCRBY, each with a check that takes all words of the command. Part of kind_plan.lua,
-- which explains what a use of a key is.

-- @include amounts

local kind_commands
do
  local MAX_WORDS, MAX_TTL = 128, '3155760000000'

  -- Reads the type of a key. Fails if the user lacks the right to the key, or if the key is in another slot.
  local function touch(use)
    use.type = use.type or call('TYPE', use.key).ok
  end

  -- The use of a key that has this type or is missing.
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
    use.commands = use.commands or {}
    use.commands[#use.commands + 1] = {...}
  end

  -- The use of a key that a single command writes.
  local function alone(use)
    if use.commands or use.sums or use.missing then
      refuse('DEL and SET stand alone on a key: ' .. use.name)
    end
    use.alone = true
    return use
  end

  -- A field is either set or deleted once, or added to.
  local function claim(use, field)
    if use.used[field] then
      refuse('a field is used twice: ' .. use.name .. ' ' .. field)
    end
    use.used[field] = 'once'
  end

  -- A whole number within bounds, given as text.
  local function bounded(text, lowest, highest, what)
    text = int64(text, what)
    if amounts.less(text, lowest) or amounts.less(highest, text) then
      refuse('no ' .. what .. ': ' .. text)
    end
    return text
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

  -- HSET and HDEL, where each field has `words_each` words.
  local function hash_fields(words_each)
    return function(words)
      form(words, 2 + words_each, MAX_WORDS)
      if #words % words_each == 1 then
        refuse('not the form of ' .. words[1])
      end
      local use = typed(words[2], 'hash')
      for i = 3, #words, words_each do
        claim(use, words[i])
      end
      queue(use, words[1], use.key, unpack(words, 3))
    end
  end

  kind_commands = {
    ZREM = members('zset'), SADD = members('set'), SREM = members('set'),
    LPUSH = members('list'), RPUSH = members('list'), HSET = hash_fields(2), HDEL = hash_fields(1),
  }

  -- INCRBY key amount [MIN least]
  function kind_commands.INCRBY(words)
    check_form(words, 4)
    local amount, use = int64(words[3], 'amount'), typed(words[2], 'string')
    if use.type == 'none' then
      if not use.missing then
        miss(use)
      end
      return
    end
    local before = use.total or call('GET', use.key)
    if not amounts.is_int64(before) then
      refuse('no int64: ' .. use.name)
    end
    use.total = sum_of(use, '', before, amount, words, 4)
    queue(use, 'INCRBY', use.key, amount)
  end

  function kind_commands.SET(words)
    form(words, 3, 5)
    local use = alone(typed(words[2], 'string'))
    if #words == 3 then
      queue(use, 'SET', use.key, words[3])
    elseif #words == 5 and words[4] == 'PX' then
      queue(use, 'SET', use.key, words[3], 'PX', bounded(words[5], '1', MAX_TTL, 'time'))
    else
      refuse('not the form of SET')
    end
  end

  function kind_commands.DEL(words)
    form(words, 2, 2)
    local use = alone(use_of(words[2]))
    touch(use)
    queue(use, 'DEL', use.key)
  end

  function kind_commands.ZADD(words)
    form(words, 4, 4)
    local score = bounded(words[3], '-9007199254740992', '9007199254740992', 'score')
    local use = typed(words[2], 'zset')
    queue(use, 'ZADD', use.key, score, words[4])
  end

  function kind_commands.PEXPIRE(words)
    form(words, 3, 3)
    local use = use_of(words[2])
    touch(use)
    queue(use, 'PEXPIRE', use.key, bounded(words[3], '1', MAX_TTL, 'time'))
  end

  function kind_commands.PUBLISH(words)
    form(words, 3, 3)
    if not audible(words[2]) then
      refuse('may not publish to ' .. words[2])
    end
    need(unpack(words))
    messages = messages or {}
    messages[#messages + 1] = words
  end
end
