-- Whether a reservation's deadline, and the grace after it, has passed. Every script that asks includes this.

-- @include clock

-- Takes the text of both, ms. Returns nil where one of them is no whole number that a double holds exactly; else
-- 'not_due', 'in_grace' or 'overdue', then both as numbers. The deadline itself, and the last ms of grace, still count.
local function deadline_phase(expires_text, grace_text)
  local expires_at, grace = clock.whole(expires_text), clock.whole(grace_text)
  if not expires_at or not grace then
    return nil
  end
  if clock.now <= expires_at then
    return 'not_due', expires_at, grace
  end
  return clock.now <= expires_at + grace and 'in_grace' or 'overdue', expires_at, grace
end
