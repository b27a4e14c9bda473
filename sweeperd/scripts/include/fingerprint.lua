-- What {id, score, id, score, ...} are known by: no other entries have the same one. Written as JSON, because an id may
-- hold any character. An imitation of Redis that has no SHA1 gives the JSON itself, which is as good and longer.

local function fingerprint(entries)
  local text = cjson.encode(entries)
  return redis.sha1hex and redis.sha1hex(text) or text
end
