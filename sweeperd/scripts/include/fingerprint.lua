-- A fingerprint of {id, score, id, score, ...}. Made from JSON, because an id may hold any character. Without SHA1 on
-- the server (fakeredis), the fingerprint is the JSON itself.

-- @include json

local function fingerprint(entries)
  local text = json.encode(entries)
  return redis.sha1hex and redis.sha1hex(text) or text
end
