-- Extends a reservation's deadline, in the hash and in the index. No grace applies to an extension.
--
-- KEYS[1..5], ARGV[1..7] -> those of reservations.lua
-- KEYS[6] -> idem:<tenant>:extend:<id>:<key>  STRING  beside a Cycles service: the record of the service
-- ARGV[8] -> the length of the extension, ms
-- ARGV[9] -> the prefix of the name of a reserve's record (a STRING), before the idempotency key. That key is known
--            only after the reservation is read.
-- Returns {'ok', answer, ms to the deadline, hash} or {'refused', code, scope or reason, hash}. The answer is JSON. A
-- repeated request gets the first answer with the present extension_count, as from the Cycles services.

-- @include answered
-- @include clock
-- @include remaining
-- @include reservations
-- @include rights

local function run()
  local request = reservations.request('extend', KEYS, ARGV)
  local reservation, reply = reservations.open(request, 'not_due')
  if not reservation then
    if reply[1] == 'ok' then
      reply[3] = remaining_ttl(KEYS[1], string.match(reply[2], '"expires_at":"(%d+)"'))
    end
    local present = reply[1] == 'ok' and redis.pcall('HGET', KEYS[1], 'extension_count')
    if type(present) == 'string' and clock.whole(present) then
      reply[2] = string.gsub(reply[2], '"extension_count":"%d+"', '"extension_count":"' .. present .. '"')
    end
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
  -- HSET first, as in the writes: at maxmemory Redis refuses it.
  local refusal = no_right('HSET', KEYS[1]) or no_right('ZADD', KEYS[2])
  -- The reserve's record lives as long as the reservation, so that a late retry cannot create a second reservation.
  local reserve_record, rest
  if not refusal and reservation.idempotency_key then
    reserve_record = ARGV[9] .. reservation.idempotency_key
    local lifetime = reservation.expires_at + reservation.grace - clock.now
    if redis.call('PTTL', reserve_record) < lifetime then
      rest = string.format('%d', lifetime)
      refusal = no_right('PEXPIRE', reserve_record)
    end
  end
  if refusal then
    return refusal
  end
  local record
  reply, record = reservations.prepare(request, reservation, {expires_at = expires_text, extension_count = count_text})
  if not reply then
    return record
  end
  reply[3] = string.format('%d', reservation.expires_at - clock.now)

  redis.call('HSET', KEYS[1], 'expires_at', expires_text, 'extension_count', count_text)
  redis.call('ZADD', KEYS[2], expires_text, ARGV[2])
  if rest then
    redis.call('PEXPIRE', reserve_record, rest)
  end
  redis.call(unpack(record))
  return reply
end

return answered(run(), ARGV[1])
