-- Parses the scopes of a reservation from the text in its hash.

-- @include json

-- The strings of a JSON array; nil if the text is not a non-empty array of non-empty strings.
local function scopes_parse(text)
  -- The decoder silently stops at a NUL byte. An object has length 0.
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
