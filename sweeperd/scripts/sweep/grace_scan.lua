-- Reads one page of the index and finds the reservations in grace, which expire.lua would leave alone. Decides nothing:
-- expire.lua decides every entry that is not clearly in grace.
--
-- KEYS[1] -> reservation:ttl  ZSET  bare id -> expires_at, ms on this server's clock
-- ARGV[1..4] -> those of page.lua
-- ARGV[5] -> the prefix of a reservation's name (a HASH), before the bare id. The reservations are known only after the
--            page is read, so they cannot be KEYS; they share the index's key prefix, and so its slot.
-- ARGV[6] -> the grace of a reservation without grace_ms, ms
-- Returns {{id, score, id, score, ...}, ends, more, fingerprint}.
--   ends         for each id, when its grace ends, ms, if the reservation is in grace; else 0
--   more         '1' if more entries may follow the page, else '0'
--   fingerprint  '' unless all are in grace. unchanged_ranges.lua recognizes the page by it. The page is then cut after
--                the last score whose entries are all in the page, unless it has only one score.

-- @include paging
-- @include fingerprint
-- @include deadline

local count = tonumber(ARGV[4])
local found = page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], count)
local attempt, stem, grace_text = redis.pcall, ARGV[5], ARGV[6]
local ends, all = {}, true
for i = 1, #found, 2 do
  local row = attempt('HMGET', stem .. found[i], 'state', 'expires_at', 'grace_ms')
  local phase, expires_at, grace = deadline_phase(row[2], row[3] or grace_text)
  local ends_at = row[1] == 'ACTIVE' and phase == 'in_grace' and expires_at + grace or 0
  ends[#ends + 1] = ends_at
  all = all and ends_at > 0
end

local more = #ends == count and '1' or '0'
if not all or #ends == 0 then
  return {found, ends, more, ''}
end
local length = #ends
if length == count and found[2] ~= found[2 * length] then
  local last = found[2 * length]
  while found[2 * length] == last do
    length = length - 1
  end
end
for i = #ends, length + 1, -1 do
  ends[i], found[2 * i], found[2 * i - 1] = nil, nil, nil
end
return {found, ends, more, fingerprint(found)}
