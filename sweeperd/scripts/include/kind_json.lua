-- Entries and fields that hold JSON. Numbers keep their text: each is put in quotes before cjson, which would round it.

-- @include json

local json_read
do
  local find, gsub, sub = string.find, string.gsub, string.sub
  local MAX_BYTES = 65536

  -- The text with quotes around each number outside strings. A number follows a bracket, a comma or a colon, and is
  -- outside strings if the count of quotes before it is even.
  local function quoted(text)
    local bare = find(text, '\\', 1, true) and gsub(text, '\\.', '__') or text
    local parts, count, copied, counted, inside, at = {}, 0, 1, 1, false, 1
    while true do
      local _, last = find(bare, '[%[,:]%s*%-?%d', at)
      if not last then
        break
      end
      local _, quotes = gsub(sub(bare, counted, last), '"', '')
      counted, at = last + 1, last + 1
      if quotes % 2 == 1 then
        inside = not inside
      end
      if not inside then
        local first = sub(bare, last - 1, last - 1) == '-' and last - 1 or last
        local _, stop = find(bare, '^[%d%.eE+-]*', last)
        parts[count + 1], parts[count + 2] = sub(text, copied, first - 1), '"' .. sub(text, first, stop) .. '"'
        count, copied, counted, at = count + 2, stop + 1, stop + 1, stop + 1
      end
    end
    if count == 0 then
      return text
    end
    parts[count + 1] = sub(text, copied)
    return table.concat(parts)
  end

  -- A value as the text of a field; false for null, an object and an array.
  local function text_of(value)
    local kind = type(value)
    return kind == 'string' and value or kind == 'boolean' and tostring(value)
  end

  -- The value at a path of names; nil if there is none.
  local function at_path(document, path)
    for i = 1, #path do
      if type(document) ~= 'table' then
        return nil
      end
      document = document[path[i]]
    end
    return document
  end

  json_read = {
    text_of = text_of, at_path = at_path,

    -- The object or array that begins with this character; nil, and why, if the text is something else.
    decoded = function(text, begins)
      if #text > MAX_BYTES then
        return nil, 'more than 65536 bytes'
      end
      if not find(text, begins == '{' and '^%s*{' or '^%s*%[') then
        return nil, begins == '{' and 'not a JSON object' or 'not a JSON array'
      end
      local ok, value = pcall(json.decode, quoted(text))
      return ok and value or nil, not ok and 'not JSON' or nil
    end,

    -- The texts at these names or paths.
    row = function(document, names)
      local row = {}
      for i = 1, #names do
        local name = names[i]
        if type(name) == 'table' then
          row[i] = text_of(at_path(document, name)) or false
        else
          row[i] = text_of(document[name]) or false
        end
      end
      return row
    end,
  }
end
