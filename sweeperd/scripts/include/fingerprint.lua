-- The fingerprint of {id, score, id, score, ...}: no other entries have the same one. It is made of JSON, because an id
-- may hold any character. Where the server has no SHA1 (fakeredis) it is the JSON itself, which is as good and longer.

-- @include json

local function fingerprint(entries)
  local text = json.encode(entries)
  return redis.sha1hex and redis.sha1hex(text) or text
end
