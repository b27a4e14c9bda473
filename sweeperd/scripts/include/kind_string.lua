-- An entry that is a JSON object in a string.

-- @include kind_entry
-- @include kind_json

-- The texts at these names or paths, and the document. Nil and the reply if the key holds none.
local function read_string(key, names)
  local text = redis.pcall('GETRANGE', key, 0, 65536)
  if type(text) == 'table' then
    return nil, string.find(text.err, 'WRONGTYPE', 1, true) and entry.set_aside('WRONG_TYPE') or text
  end
  if text == '' and redis.call('EXISTS', key) == 0 then
    return nil, entry.drop_unknown('not_found')
  end
  local document, why = json_read.decoded(text, '{')
  if not document then
    return nil, entry.set_aside('INVALID_JSON', why)
  end
  return json_read.row(document, names), document
end
