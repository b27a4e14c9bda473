-- The scopes of a reservation, as its hash has them.

-- @include json

-- The strings of a JSON array; nil where it is not a non-empty one of non-empty strings.
local function scopes_parse(text)
  -- The decoder stops at a NUL byte without a word; an object has no length.
  local decoded, scopes = pcall(json.decode, text)
  if not decoded or type(scopes) ~= 'table' or #scopes == 0 or string.find(text, '\0', 1, true) then
    return nil
  end
  for i = 1, #scopes do
    if type(scopes[i]) ~= 'string' or scopes[i] == '' then
      return nil
    end
  end
  return scopes
end
