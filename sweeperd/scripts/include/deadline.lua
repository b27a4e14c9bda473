-- Whether a reservation's deadline has passed, and the grace after it. Every script uses this one test.

-- @include clock

-- Takes the text of both, ms, and a moment, by default now. Returns nil if a text is not a whole number that a double
-- holds exactly; else 'not_due', 'in_grace' or 'overdue', then both as numbers. A reservation at its deadline is not
-- yet due, and the last ms of grace is in grace.
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
