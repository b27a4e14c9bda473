-- The fingerprint of {id, score, id, score, ...}: different for all other entries. Made of JSON, because an id may hold
-- any character. If the server has no SHA1 (fakeredis), the fingerprint is the JSON itself: as good, but longer.

-- @include json

local function fingerprint(entries)
  local text = json.encode(entries)
  return redis.sha1hex and redis.sha1hex(text) or text
end
