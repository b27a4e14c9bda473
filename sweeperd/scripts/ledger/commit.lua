-- Ends a reservation: charges the amount really used, in all budgets of the reservation or in none, and gives back the
-- rest.
--
-- KEYS[1] -> reservation:res_<id>           HASH    the reservation
-- KEYS[2] -> reservation:ttl                ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> idem:commit:<tenant>:<key>     STRING  the answer given under this idempotency key
-- KEYS[4] -> tenant:<tenant>                STRING  the tenant's record, JSON; there may be none
--
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> the bare reservation id
-- ARGV[3] -> the tenant who asks
-- ARGV[4] -> the idempotency key
-- ARGV[5] -> the start of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only when the
--            reservation has been read, so they cannot be KEYS; they share the reservation's prefix, and so the slot.
-- ARGV[6] -> grace in ms if the reservation has no grace_ms
-- ARGV[7] -> how long an ended reservation stays readable, ms
-- ARGV[8] -> the amount used: decimal int64, not below 0
-- ARGV[9] -> the unit of the amount; '': the reservation's unit
--
-- Returns {'ok', answer, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.
--
-- A commit is accepted until the end of the grace, exactly as long as expire.lua leaves the reservation alone. The
-- amount has been used already, so it is charged even if the status of a budget is not ACTIVE. An amount above the
-- estimate follows the reservation's overage policy.

-- @include answered
-- @include clock
-- @include charges
-- @include reservations

local function run()
  local request = reservations.request(KEYS, ARGV)
  local reservation, reply = reservations.open(request, 'in_grace')
  if not reservation then
    return reply
  end

  if ARGV[9] ~= '' and ARGV[9] ~= reservation.unit then
    return {'refused', 'UNIT_MISMATCH', ''}
  end
  local refusal, charged, debt = charges.commit(reservation, ARGV[8])
  if refusal then
    return refusal
  end

  return reservations.finish(request, reservation, {charged = charged, debt = debt, at = clock.now_text},
    'state', 'COMMITTED', 'charged_amount', charged, 'debt_incurred', debt, 'committed_at', clock.now_text,
    'committed_idempotency_key', ARGV[4], 'committed_payload_hash', ARGV[1])
end

return answered(run(), ARGV[1])
