-- Moves a reservation's deadline, in the hash and in the index. There is no grace for it.
--
-- KEYS[1..3], ARGV[1..7]: see reservations.lua
-- ARGV[8] -> by how much, ms
-- ARGV[9] -> what comes before the idempotency key in the name of a reserve's record (a STRING). The key is known
--            only once the reservation has been read.
--
-- Returns {'ok', answer} or {'refused', code, scope or reason}. The answer is JSON.

-- @include clock
-- @include amounts
-- @include budgets
-- @include idempotency
-- @include reservations

local reservation, reply = reservations.open(false)
if not reservation then
  return reply
end
local count, most = clock.whole(reservation.extension_count or '0'), clock.whole(reservation.max_extensions)
if not count or not most then
  return {'refused', 'INVALID_RESERVATION', 'INVALID_EXTENSIONS'}
end
if count >= most then
  return {'refused', 'TOO_MANY_EXTENSIONS', ''}
end
local by = tonumber(ARGV[8])
if not clock.reaches(reservation.expires_at, by, reservation.grace) then
  return {'refused', 'DEADLINE_TOO_FAR', ''}
end

reservation.expires_at = reservation.expires_at + by
local expires_text, count_text = string.format('%d', reservation.expires_at), string.format('%d', count + 1)
redis.call('HSET', KEYS[1], 'expires_at', expires_text, 'extension_count', count_text)
redis.call('ZADD', KEYS[2], expires_text, ARGV[2])
-- The record of its reserve lasts as long as it does: a late retry must not make a second reservation.
if reservation.idempotency_key then
  local record = ARGV[9] .. reservation.idempotency_key
  local rest = reservation.expires_at + reservation.grace - clock.now
  if redis.call('PTTL', record) < rest then
    redis.call('PEXPIRE', record, string.format('%d', rest))
  end
end
return reservations.answer(reservation, {expires_at = expires_text, extension_count = count_text})
