-- Checks whether the index is right about one reservation now, and if asked mends the index in the same step.
--
-- KEYS[1] -> reservation:ttl        ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[2] -> sweeperd:quarantine    ZSET  bare id -> ms when the reservation was set aside
-- KEYS[3] -> reservation:res_<id>   HASH  the reservation
--
-- ARGV[1] -> the bare id;  ARGV[2] -> '1' to mend
--
-- Returns {} if all is well, else {fault, the right score, the score found}:
--   orphan              an entry without a hash; mended by removing the entry
--   lost                an ACTIVE hash without an entry; mended by adding an entry
--   wrong_score         an entry with another score than the hash says; mended by setting the score
--   foreign_quarantine  an ACTIVE hash set aside by another sweeper; not mended here
--
-- The check comes before the write in every case: what a walk saw earlier is a hint only. No ledger value changes. ZREM
-- is the first write and needs no memory: if Redis is at maxmemory, ZREM is still accepted, and so is ZADD after ZREM.

-- @include reservation_look
-- @include rights

local row, wrong_type = look.row(KEYS[3])
local fault, wanted, score = look.fault(KEYS[1], KEYS[2], ARGV[1], row, wrong_type)
if not fault or fault == 'dismissed' then
  return {}
end
if ARGV[2] == '1' and fault ~= 'foreign_quarantine' then
  local refused = no_right('ZREM', KEYS[1]) or fault ~= 'orphan' and no_right('ZADD', KEYS[1])
  if refused then
    return refused
  end
  redis.call('ZREM', KEYS[1], ARGV[1])
  if fault ~= 'orphan' then
    redis.call('ZADD', KEYS[1], wanted, ARGV[1])
  end
end
return {fault, wanted, score}
