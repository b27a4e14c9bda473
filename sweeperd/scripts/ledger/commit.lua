-- Commits a reservation: charges the amount used and releases the rest, in all of its budgets or in none.
--
-- KEYS[1..5], ARGV[1..7] -> those of reservations.lua
-- ARGV[8] -> the amount used: a decimal int64, 0 or more
-- ARGV[9] -> the unit of the amount; '' for the reservation's unit
-- Returns {'ok', answer, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.
--
-- A commit is accepted until the grace ends, exactly as long as expire.lua leaves the reservation alone. The amount is
-- already used, so it is charged even if a budget is not ACTIVE. An amount above the estimate follows the reservation's
-- overage policy.

-- @include answered
-- @include clock
-- @include charges
-- @include reservations

local function run()
  local request = reservations.request('commit', KEYS, ARGV)
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
