-- One page of the index, with a look at each reservation: is it in grace, so that expire.lua would leave it alone?
--
-- Where a backlog of them waits for its grace to end, each tick has to pass it. To call expire.lua for each takes
-- several times as long. Nothing is decided here: whatever is not plainly in grace is for expire.lua.
--
-- KEYS[1] -> reservation:ttl  ZSET  bare id -> expires_at, ms on this server's clock
--
-- ARGV[1..4] -> as in page.lua
-- ARGV[5] -> what comes before the bare id in the name of a reservation (a HASH). Which there are is known only once
--            the page has been read, so they cannot be KEYS; they share the index's prefix, and so its slot.
-- ARGV[6] -> grace in ms for a reservation that has no grace_ms of its own
--
-- Returns {{id, score, id, score, ...}, flags}: a character for each id, '1' where it is in grace, else '0'.

-- @include clock
-- @include paging

local found = page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
local attempt, whole, now, stem, grace_text = redis.pcall, clock.whole, clock.now, ARGV[5], ARGV[6]
local flags = {}
for i = 1, #found, 2 do
  local row = attempt('HMGET', stem .. found[i], 'state', 'expires_at', 'grace_ms')
  local in_grace = false
  if row[1] == 'ACTIVE' then
    local expires_at, grace = whole(row[2]), whole(row[3] or grace_text)
    in_grace = expires_at and grace and expires_at < now and now <= expires_at + grace
  end
  flags[(i + 1) / 2] = in_grace and '1' or '0'
end
return {found, table.concat(flags)}
