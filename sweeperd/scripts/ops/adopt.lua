-- Moves a reservation that another sweeper set aside to the quarantine, so that operators can list and requeue it.
--
-- KEYS[1] -> reservation:res_<id>  HASH  the reservation
-- KEYS[2] -> reservation:ttl       ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> sweeperd:quarantine   ZSET  bare id -> ms when the reservation was quarantined
-- ARGV[1] -> the bare reservation id
-- Returns 'adopted', or 'not_foreign' unless the reservation is ACTIVE and carries the mark of another sweeper.

-- @include clock
-- @include reservation_look
-- @include rights

local row = look.row(KEYS[1])
if look.fault(KEYS[2], KEYS[3], ARGV[1], row) ~= 'foreign_quarantine' then
  return 'not_foreign'
end
local refused = no_right('ZREM', KEYS[2]) or no_right('ZADD', KEYS[3])
if refused then
  return refused
end
local since = clock.whole(row[3]) and row[3] or clock.now_text
redis.call('ZREM', KEYS[2], ARGV[1]) -- first, for maxmemory: see rights.lua
redis.call('ZADD', KEYS[3], since, ARGV[1])
return 'adopted'
