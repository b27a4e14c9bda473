-- Ends a reservation: charges what was really used, in all of its budgets or in none, and gives back the rest.
--
-- KEYS[1..3], ARGV[1..7]: see reservations.lua
-- ARGV[8] -> what was used: decimal int64, not below 0
--
-- Returns {'ok', answer} or {'refused', code, scope or reason}. The answer is JSON.
--
-- It is accepted until the end of the grace, exactly as long as expire.lua leaves the reservation alone. What was
-- reserved is charged whatever a budget's status is by now; what is above it is new spending, and follows the
-- reservation's overage policy.

-- @include clock
-- @include amounts
-- @include budgets
-- @include charges
-- @include idempotency
-- @include reservations

local reservation, reply = reservations.open(true)
if not reservation then
  return reply
end

local amount, policy = ARGV[8], reservation.overage_policy
local held, back, extra = amount, '0', '0'
if amounts.less(reservation.amount, amount) then
  if not charges.POLICIES[policy] then
    return {'refused', 'INVALID_RESERVATION', 'INVALID_POLICY'}
  end
  if policy == 'REJECT' then
    return {'refused', 'ESTIMATE_EXCEEDED', ''}
  end
  local refusal = budgets.closed_to_spending(reservation.each)
  if refusal then
    return refusal
  end
  held, extra = reservation.amount, amounts.subtract(amount, reservation.amount)
else
  back = amounts.subtract(reservation.amount, amount)
end

local refusal = budgets.unreserve(reservation.mentions, reservation.amount, back)
if refusal then
  return refusal
end
local charged, debt
refusal, charged, debt = charges.make(reservation.mentions, reservation.each, held, extra, policy)
if refusal then
  return refusal
end

budgets.write(reservation.each)
reservations.finish('state', 'COMMITTED', 'charged_amount', charged, 'debt_incurred', debt,
  'committed_at', clock.now_text, 'committed_idempotency_key', ARGV[4], 'committed_payload_hash', ARGV[1])
return reservations.answer(reservation, {charged = charged, debt = debt, at = clock.now_text})
