-- Releases an unused reservation: returns its whole amount, in all of its budgets or in none.
--
-- KEYS[1..5], ARGV[1..7] -> those of reservations.lua
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
