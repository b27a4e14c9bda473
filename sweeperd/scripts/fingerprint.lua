-- What {id, score, id, score, ...} are known by: no other entries have the same one. Written as JSON, because an id may
-- hold any character.

local function fingerprint(entries)
  return redis.sha1hex(cjson.encode(entries))
end
