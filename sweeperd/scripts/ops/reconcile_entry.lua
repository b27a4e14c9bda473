-- Is the index right about one reservation, now? And where it is not and that is wanted: mend it, in the same step.
--
-- KEYS[1] -> reservation:ttl        ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[2] -> sweeperd:quarantine    ZSET  bare id -> ms when it was set aside
-- KEYS[3] -> reservation:res_<id>   HASH  the reservation
--
-- ARGV[1] -> the bare id;  ARGV[2] -> '1' to mend
--
-- Returns {} where all is well, else {fault, the score that it should have, the score that it has}:
--   orphan       an entry without a hash; mended by removing it
--   lost         an ACTIVE hash without an entry; mended by adding it
--   wrong_score  an entry with another score than the hash says; mended by setting it
--
-- It looks again before it writes, so whatever a walk saw before is no more than a hint. No ledger value is touched.
-- The first write is a ZREM, of nothing perhaps: Redis at maxmemory takes it, and after it the ZADD too.

-- @include reservation_look

local row, wrong_type = look.row(KEYS[3])
local fault, wanted, score = look.fault(KEYS[1], KEYS[2], ARGV[1], row, wrong_type)
if not fault then
  return {}
end
if ARGV[2] == '1' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  if fault ~= 'orphan' then
    redis.call('ZADD', KEYS[1], wanted, ARGV[1])
  end
end
return {fault, wanted, score}
