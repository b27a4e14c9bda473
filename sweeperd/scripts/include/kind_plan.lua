-- The plan of one entry: the writes that return what the entry held. Each write is checked in order, with the effects
-- of the writes before it, before any write is made. Nothing can fail after the checks.
--
-- Key names come without the prefix. This file adds it.

-- @include kind_checks
-- @include kind_rights
-- @include amounts
-- @include whole

local full_plan = {}
do
  local call, attempt, find, sub = redis.call, redis.pcall, string.find, string.sub
  local need, refuse = need_right, refuse_plan
  local MAX_KEY, MAX_BYTES = 1024, 65536

  -- The prefix; functions that say whether a key may be written and a channel published to; the most writes; the names
  -- of the permitted commands, nil for all.
  local prefix, writable, audible, most, usable
  -- Name of a key -> its use; and the uses in order. A use has the prefixed key; its type, if known; the values of its
  -- fields, with the sums so far; and for each field 'once', or the position of its sum in the HSET.
  local uses, order = {}, {}
  -- Name of a key -> the fields that the plan adds to.
  local added = {}
  local messages, missing
  local bytes = 0

  function full_plan.open(key_prefix, is_writable, is_audible, max_writes, usable_commands)
    prefix, writable, audible, most, usable = key_prefix, is_writable, is_audible, max_writes, usable_commands
  end

  -- Counts this many more bytes of the plan or the event.
  function full_plan.weigh(more)
    bytes = bytes + more
    if bytes > MAX_BYTES then
      refuse('the plan and the event have more than 65536 bytes')
    end
  end

  -- The value of a field named by a template. An empty field counts as missing.
  function full_plan.field(value, name)
    if not value or value == '' then
      fail_check('MISSING_FIELD', name)
    end
  end

  -- A field as an amount: plain decimal from 0 to 2^63-1. Only the template can change the sign.
  function full_plan.amount(text)
    if not whole.is_amount(text) then
      refuse('no amount: ' .. sub(text, 1, 32))
    end
  end

  local function use_of(name)
    local use = uses[name]
    if not use then
      if name == '' or #name > MAX_KEY then
        refuse('a key has 1 to 1024 bytes')
      end
      if not writable(name) then
        refuse('may not write ' .. name)
      end
      use = {name = name, key = prefix .. name, used = {}}
      uses[name] = use
      order[#order + 1] = use
    elseif use.alone then
      refuse('DEL and SET stand alone on a key: ' .. name)
    end
    return use
  end

  local function miss(use)
    use.missing = true
    missing = missing or {}
    missing[#missing + 1] = use.name
  end

  -- Reads the fields that the plan adds to. If the key has none of them, checks whether the key exists.
  local function read(use)
    local fields = added[use.name]
    if (use.kind and use.kind ~= 'hash') or (use.type and use.type ~= 'hash' and use.type ~= 'none') then
      refuse('not of type hash: ' .. use.name)
    end
    use.kind, use.values = 'hash', {}
    local row = attempt('HMGET', use.key, unpack(fields))
    if row.err then
      if find(row.err, 'WRONGTYPE', 1, true) then
        refuse('not of type hash: ' .. use.name)
      end
      error(row)
    end
    local found = false
    for i = 1, #fields do
      local value = row[i]
      if value then
        found = true
        use.values[fields[i]] = value
      end
    end
    if found then
      use.type = 'hash'
    elseif use.type == 'none' or (not use.type and call('EXISTS', use.key) == 0) then
      return miss(use)
    end
    need('HSET', use.key, 'f', 'v')
    use.sums = {'HSET', use.key}
  end

  local function int64(text, what)
    if text == '-0' then
      return '0'
    end
    if not amounts.is_int64(text) then
      refuse('no ' .. what .. ': ' .. sub(text, 1, 32))
    end
    return text
  end

  -- The sum, within int64 and at least the text after MIN. `at` is the position of MIN in the words.
  local function sum_of(use, field, before, amount, words, at)
    local sum = amounts.add(before, amount)
    if not sum then
      refuse('beyond int64: ' .. use.name .. ' ' .. field)
    end
    if words[at] then
      local least = int64(words[at + 1], 'whole number')
      if amounts.less(sum, least) then
        refuse('below MIN ' .. least .. ': ' .. use.name .. ' ' .. field)
      end
    end
    return sum
  end

  local function check_form(words, at)
    if #words ~= at - 1 and (#words ~= at + 1 or words[at] ~= 'MIN') then
      refuse('not the form of ' .. words[1])
    end
  end

  -- HINCRBY key field amount [MIN least]
  local function add(words)
    check_form(words, 5)
    local field, amount, use = words[3], int64(words[4], 'amount'), use_of(words[2])
    if not use.values then
      read(use)
    end
    local at = use.used[field]
    if at == 'once' then
      refuse('a field is used twice: ' .. use.name .. ' ' .. field)
    end
    if use.missing then
      use.used[field] = 0
      return
    end
    local before, made = use.values[field], use.sums
    if not before then
      refuse('no such field: ' .. use.name .. ' ' .. field)
    end
    if not at then
      if not amounts.is_int64(before) then
        refuse('no int64: ' .. use.name .. ' ' .. field)
      end
      at = #made + 2
      use.used[field] = at
      made[at - 1] = field
    end
    local sum = sum_of(use, field, before, amount, words, 5)
    use.values[field], made[at] = sum, sum
  end

  local others

  -- The checks of all other commands, loaded when first needed.
  local function other_commands()
    -- @include kind_commands
    return kind_commands
  end

  -- Checks these commands, each a list of texts.
  function full_plan.commands(list)
    if #list > most then
      refuse('more than ' .. most .. ' writes')
    end
    for i = 1, #list do
      local words = list[i]
      if words[1] == 'HINCRBY' and words[3] then
        local fields = added[words[2]]
        if fields then
          fields[#fields + 1] = words[3]
        else
          added[words[2]] = {words[3]}
        end
      end
    end
    for i = 1, #list do
      local words, more = list[i], 0
      for j = 2, #words do
        more = more + #words[j]
      end
      full_plan.weigh(more)
      if usable and not usable[words[1]] then
        refuse('not one of commands: ' .. sub(words[1], 1, 32))
      elseif words[1] == 'HINCRBY' then
        add(words)
      else
        others = others or other_commands()
        local command = others[words[1]]
        if not command then
          refuse('not allowed: ' .. sub(words[1], 1, 32))
        end
        command(words)
      end
    end
  end

  -- The result of the checked plan: the writes and the messages, each a list of words for redis.call, and a JSON array
  -- of the missing keys that the plan wanted to add to.
  function full_plan.checked()
    local writes = {}
    for i = 1, #order do
      local use = order[i]
      if not use.missing then
        if use.sums then
          writes[#writes + 1] = use.sums
        end
        for j = 1, use.commands and #use.commands or 0 do
          writes[#writes + 1] = use.commands[j]
        end
      end
    end
    local missing_text
    if missing then
      -- @include json
      missing_text = json.encode(missing)
    end
    return {writes = writes, messages = messages, missing = missing_text}
  end
end
