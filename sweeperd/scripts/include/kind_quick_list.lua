-- The fast check of a user's everyday plan (kind_quick.lua). Reuses fields that the script has read with HMGET.

-- @include kind_quick
-- @include kind_sandbox
-- @include whole

local kind_quick_list
do
  local DIGITS, INTEGER, MAX_BYTES, MAX_KEYS = whole.EXACT_DIGITS, whole.SIGNED, 65536, 16
  local attempt, find, type, next, unpack = redis.pcall, string.find, type, next, unpack
  local row = {false, false}

  -- Texts that are already checked, because a plan repeats a few of them: text -> number for amounts, and the names of
  -- keys and fields.
  local numbers, names = {}, {}

  -- The text as a number; nil if it isn't one, or is too long for the fast check.
  local function number_of(text)
    if type(text) == 'string' and #text <= DIGITS and (text == '0' or find(text, INTEGER)) then
      numbers[text] = text + 0
      return numbers[text]
    end
  end

  local function is_name(text)
    if type(text) == 'string' then
      names[text] = true
      return true
    end
  end

  -- The name, field, amount, least sum and bytes of a HINCRBY; nil for any other command. Words are read with raw
  -- access.
  local function parsed(words)
    local length = 0
    for _ in next, words do
      length = length + 1
    end
    local command, name, field, text, word, least_text = unpack(words, 1, 6)
    if command ~= 'HINCRBY' or (length ~= 4 and (length ~= 6 or word ~= 'MIN'))
      or not (names[name] or is_name(name)) or not (names[field] or is_name(field)) then
      return nil
    end
    local amount = numbers[text] or number_of(text)
    if amount and length == 4 then
      return name, field, amount, nil, #name + #field + #text
    end
    local least = amount and (numbers[least_text] or number_of(least_text))
    if least then
      return name, field, amount, least, #name + #field + #text + #least_text + 3
    end
  end

  -- The values of `count` fields of a key, if the script has read all of them. A later call reuses the table.
  local function read_before(name, count, fields)
    local pairs_read = sandbox.known[name]
    for i = 1, count do
      local field, value = fields[i], nil
      for j = 1, pairs_read and 7 or 0, 2 do
        if pairs_read[j] == field then
          value = pairs_read[j + 1]
          break
        end
      end
      if value == nil then
        return nil
      end
      row[i] = value
    end
    return row
  end

  -- Adds the HSET of all sums of one key to the writes. Returns true on success.
  local function add(writes, name, key, writable, count, fields, amounts, leasts)
    for i = 1, #writes do
      if writes[i][2] == key then
        return false
      end
    end
    if not quick_writable(name, key, writable) then
      return false
    end
    local values = read_before(name, count, fields) or attempt('HMGET', key, unpack(fields, 1, count))
    for i = 1, count do
      values[i] = quick_sum(values[i], amounts[i], leasts[i])
      if not values[i] then
        return false
      end
    end
    local write = count == 1 and {'HSET', key, fields[1], values[1]}
      or {'HSET', key, fields[1], values[1], fields[2], values[2]}
    for i = 3, count do
      write[2 * i + 1], write[2 * i + 2] = fields[i], values[i]
    end
    writes[#writes + 1] = write
    return #writes <= MAX_KEYS
  end

  -- list: commands from a user's script. bytes: the size of the event. Returns the result of the plan, or nil.
  function kind_quick_list(list, prefix, writable, most, bytes)
    local writes, place = {}, 0
    -- The current key, and what is added to its fields.
    local name, count, fields, amounts, leasts = nil, 0, {'', ''}, {0, 0}, {0, 0}
    for at, words in next, list do
      place = place + 1
      if at ~= place or place > most or type(words) ~= 'table' then
        return nil
      end
      local key, field, amount, least, size = parsed(words)
      if not key then
        return nil
      end
      if key ~= name then
        if name and not add(writes, name, prefix .. name, writable, count, fields, amounts, leasts) then
          return nil
        end
        name, count = key, 0
      end
      for i = 1, count do
        if fields[i] == field then
          return nil
        end
      end
      count, bytes = count + 1, bytes + size
      fields[count], amounts[count], leasts[count] = field, amount, least
    end
    if bytes > MAX_BYTES
      or (name and not add(writes, name, prefix .. name, writable, count, fields, amounts, leasts)) then
      return nil
    end
    return {writes = writes}
  end
end
