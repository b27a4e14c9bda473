-- One page of the index, with a look at each reservation: is it in grace, so that expire.lua would leave it alone?
-- Nothing is decided here: whatever is not plainly in grace is for expire.lua.
--
-- KEYS[1] -> reservation:ttl  ZSET  bare id -> expires_at, ms on this server's clock
--
-- ARGV[1] -> the last score of interest
-- ARGV[2] -> the score at which to go on
-- ARGV[3] -> how many entries of exactly that score to pass over
-- ARGV[4] -> how many entries at most
-- ARGV[5] -> what comes before the bare id in the name of a reservation (a HASH). Which there are is known only once
--            the page has been read, so they cannot be KEYS; they share the index's prefix, and so its slot.
-- ARGV[6] -> grace in ms for a reservation that has no grace_ms of its own
--
-- Returns {{id, score, id, score, ...}, flags, more} or {.., .., .., fingerprint, until}. Each character of flags is an
-- id's: '1' where it is in grace, else '0'. more: '1' where there may be more behind them.
--
-- Where all are in grace, the page is cut behind the last score of which it has all entries, unless there is only one,
-- `fingerprint` is what stretches.lua will know it by, and `until` is when the first of these graces ends, ms.

-- @include clock
-- @include paging
-- @include fingerprint

local count = tonumber(ARGV[4])
local found = page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], count)
local attempt, whole, now, stem, grace_text = redis.pcall, clock.whole, clock.now, ARGV[5], ARGV[6]
local flags, ends, all = {}, {}, true
for i = 1, #found, 2 do
  local row = attempt('HMGET', stem .. found[i], 'state', 'expires_at', 'grace_ms')
  local in_grace = false
  if row[1] == 'ACTIVE' then
    local expires_at, grace = whole(row[2]), whole(row[3] or grace_text)
    in_grace = expires_at and grace and expires_at < now and now <= expires_at + grace
    ends[#ends + 1] = in_grace and expires_at + grace
  end
  flags[#flags + 1] = in_grace and '1' or '0'
  all = all and in_grace
end

local more = #flags == count and '1' or '0'
if not all or #flags == 0 then
  return {found, table.concat(flags), more}
end
local length = #flags
if length == count and found[2] ~= found[2 * length] then
  local last = found[2 * length]
  while found[2 * length] == last do
    length = length - 1
  end
end
for i = #found, 2 * length + 1, -1 do
  found[i] = nil
end
local first_end = ends[1]
for i = 2, length do
  first_end = math.min(first_end, ends[i])
end
return {found, string.rep('1', length), more, fingerprint(found), string.format('%d', first_end)}
