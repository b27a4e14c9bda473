-- Ends a reservation that was not used: gives back everything, in all of its budgets or in none.
--
-- KEYS[1..3], ARGV[1..7]: see reservations.lua
--
-- Returns {'ok', answer} or {'refused', code, scope or reason}. The answer is JSON.
--
-- It is accepted until the end of the grace, exactly as long as expire.lua leaves the reservation alone.

-- @include clock
-- @include amounts
-- @include budgets
-- @include idempotency
-- @include reservations

local reservation, reply = reservations.open(true)
if not reservation then
  return reply
end
local refusal = budgets.unreserve(reservation.mentions, reservation.amount, reservation.amount)
if refusal then
  return refusal
end

budgets.write(reservation.each)
reservations.finish('state', 'RELEASED', 'released_at', clock.now_text, 'released_idempotency_key', ARGV[4],
  'released_payload_hash', ARGV[1])
return reservations.answer(reservation, {amount = reservation.amount, at = clock.now_text})
