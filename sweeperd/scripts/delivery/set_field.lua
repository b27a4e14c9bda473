-- Sets fields of a hash, even at maxmemory.
--
-- KEYS[1] -> HASH
-- ARGV[1], ARGV[2] -> a field and its value;  ARGV[3], ARGV[4] -> the next ones, and so on
-- Returns 1.

-- @include set_fields

return set_fields(KEYS[1], ARGV) or 1
