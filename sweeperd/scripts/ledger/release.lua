-- Releases an unused reservation: returns its whole amount, in all of its budgets or in none.
--
-- KEYS[1] -> reservation:res_<id>           HASH    the reservation
-- KEYS[2] -> reservation:ttl                ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> idem:release:<tenant>:<key>    STRING  the answer recorded under this idempotency key
-- KEYS[4] -> tenant:<tenant>                STRING  the tenant's record, JSON; optional
-- KEYS[5] -> sweeperd:events                STREAM  gets an entry if a budget crosses a threshold
--
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> the bare reservation id
-- ARGV[3] -> the requesting tenant
-- ARGV[4] -> the idempotency key
-- ARGV[5] -> the prefix of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only after the
--            reservation is read, so they cannot be KEYS; they share its key prefix, and so its slot.
-- ARGV[6] -> the grace of a reservation without grace_ms, ms
-- ARGV[7] -> how long an ended reservation stays readable, ms
--
-- Returns {'ok', answer, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.
--
-- A release is accepted until the grace ends, exactly as long as expire.lua leaves the reservation alone.

-- @include answered
-- @include clock
-- @include budgets
-- @include reservations

local function run()
  local request = reservations.request('release', KEYS, ARGV)
  local reservation, reply = reservations.open(request, 'in_grace')
  if not reservation then
    return reply
  end
  local refusal = budgets.settle(reservation.each, reservation.amount, reservation.amount)
  if refusal then
    return refusal
  end

  return reservations.finish(request, reservation, {amount = reservation.amount, at = clock.now_text},
    'state', 'RELEASED', 'released_at', clock.now_text, 'released_idempotency_key', ARGV[4],
    'released_payload_hash', ARGV[1])
end

return answered(run(), ARGV[1])
