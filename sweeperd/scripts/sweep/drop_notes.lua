-- Drops what is noted about entries of a kind for which it no longer holds.
--
-- KEYS[1] -> the notes or the marks  HASH  id -> note
-- KEYS[2] -> the index               ZSET  id -> deadline
-- KEYS[3] -> the quarantine          ZSET  id -> ms when the entry was quarantined
-- KEYS[4..] -> the entries; the index in their place if they have no keys
-- ARGV[1..] -> the ids
-- Returns how many were dropped.
--
-- A deadline is kept while the entry is in the index or in the quarantine, a reason while it is in the quarantine, and
-- `dismissed` while its key exists and it is in neither.

-- @include rights

local gone = {}
for i = 1, #ARGV do
  local note = redis.call('HGET', KEYS[1], ARGV[i])
  local indexed, aside = redis.call('ZSCORE', KEYS[2], ARGV[i]), redis.call('ZSCORE', KEYS[3], ARGV[i])
  local kept = indexed or aside
  if note and string.find(note, '^dismissed') then
    kept = not kept and redis.call('EXISTS', KEYS[i + 3]) == 1
  elseif note and string.find(note, '^%u') then
    kept = aside
  end
  if note and not kept then
    gone[#gone + 1] = ARGV[i]
  end
end
if #gone == 0 then
  return 0
end
return no_right('HDEL', KEYS[1]) or redis.call('HDEL', KEYS[1], unpack(gone))
