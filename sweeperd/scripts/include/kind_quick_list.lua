-- The everyday plan of a user's script (kind_quick.lua). What the script has read of a key by HMGET is not read again.

-- @include kind_quick
-- @include kind_sandbox

local kind_quick_list
do
  local DIGITS, INTEGER, MAX_BYTES, MAX_KEYS = 15, '^%-?[1-9]%d*$', 65536, 16
  local attempt, find, type, next, unpack = redis.pcall, string.find, type, next, unpack
  local row = {false, false}

  local function is_number(text)
    return type(text) == 'string' and #text <= DIGITS and (find(text, INTEGER) or text == '0')
  end

  -- The name, field, amount, least sum and bytes of a HINCRBY; nil where it is not so plain. Its words are read raw.
  local function parsed(words)
    local length = 0
    for _ in next, words do
      length = length + 1
      if length > 6 then
        return nil
      end
    end
    local command, name, field, amount, word, least = unpack(words, 1, 6)
    if command ~= 'HINCRBY' or type(name) ~= 'string' or type(field) ~= 'string' or not is_number(amount) then
      return nil
    end
    if length == 4 then
      return name, field, amount + 0, nil, #name + #field + #amount
    elseif length == 6 and word == 'MIN' and is_number(least) then
      return name, field, amount + 0, least + 0, #name + #field + #amount + #least + 3
    end
  end

  -- The values of so many fields, where the script's last HMGET of the key named all of them. A later call uses the table
  -- again.
  local function known(name, count, fields)
    local read, values = sandbox.fields_read[name], sandbox.values_read[name]
    for i = 1, count do
      local field, found = fields[i], nil
      for j = 1, read and #read or 0 do
        if read[j] == field then
          found = values[j]
          break
        end
      end
      if found == nil then
        return nil
      end
      row[i] = found
    end
    return row
  end

  -- Adds the HSET of all sums of one key to the writes. Whether that could be done.
  local function add(writes, name, key, writable, count, fields, amounts, leasts)
    for i = 1, #writes do
      if writes[i][2] == key then
        return false
      end
    end
    if not quick_writable(name, key, writable) then
      return false
    end
    local values = known(name, count, fields) or attempt('HMGET', key, unpack(fields, 1, count))
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

  -- list: a list of commands from a user's script. bytes: those of the event. Returns what the plan comes to, or nil.
  function kind_quick_list(list, prefix, writable, most, bytes)
    local writes, place = {}, 0
    -- The key in hand, and what is added to how many of its fields.
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
