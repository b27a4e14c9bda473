-- A session ends when it has not been used for idle_ms. A use writes used_at and nothing else, which is one HSET; here
-- the deadline slides.

local function whole(text)
  return text and string.find(text, '^%d+$') and #text <= 15 and tonumber(text)
end

function decide(session, now)
  local used_at, idle = whole(session.used_at), whole(session.idle_ms)
  if not used_at or not idle then
    return 'quarantine', 'INVALID_USE'
  end
  if used_at + idle > now then
    return 'extend', used_at + idle
  end
  return 'expire'
end

function plan(session, _, id)
  if not session.user then
    return 'quarantine', 'NO_USER'
  end
  return {{'SREM', 'users:' .. session.user .. ':sessions', id}}, {user = session.user}
end
