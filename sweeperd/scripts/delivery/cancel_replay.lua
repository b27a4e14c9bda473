-- Marks a replay as cancelled, even at maxmemory.
--
-- KEYS[1] -> sweeperd:groups  HASH  group -> its note, JSON
-- ARGV[1] -> the group
-- ARGV[2] -> when the replay began, ms, to tell it from a later replay in this group
-- ARGV[3] -> the note of the cancelled replay
-- Returns 1; 0 if the replay has already ended.

-- @include json
-- @include set_fields

local note = redis.call('HGET', KEYS[1], ARGV[1])
if not note or json.decode(note).made_at ~= tonumber(ARGV[2]) then
  return 0
end
return set_fields(KEYS[1], {ARGV[1], ARGV[3]}) or 1
