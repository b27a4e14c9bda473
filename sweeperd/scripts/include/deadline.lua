-- Has a reservation's deadline passed, and the grace after the deadline? Included by every script that asks.

-- @include clock

-- Takes the text of both, ms, and the moment in question, by default now. Returns nil if a text is no whole number that
-- a double holds exactly; else 'not_due', 'in_grace' or 'overdue', then both as numbers. At the deadline itself a
-- reservation is not past the deadline, and the last ms of grace is in grace.
local function deadline_phase(expires_text, grace_text, at)
  local expires_at, grace = clock.whole(expires_text), clock.whole(grace_text)
  if not expires_at or not grace then
    return nil
  end
  at = at or clock.now
  if at <= expires_at then
    return 'not_due', expires_at, grace
  end
  return at <= expires_at + grace and 'in_grace' or 'overdue', expires_at, grace
end
