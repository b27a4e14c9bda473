-- One page of the index, with each reservation's hash: is it in grace, so that expire.lua would leave it alone?
-- Nothing is decided here: expire.lua decides about every entry that is not plainly in grace.
--
-- KEYS[1] -> reservation:ttl  ZSET  bare id -> expires_at, ms on this server's clock
--
-- ARGV[1] -> the last score of interest
-- ARGV[2] -> the score at which to go on
-- ARGV[3] -> how many entries of exactly that score to pass over
-- ARGV[4] -> how many entries at most
-- ARGV[5] -> what comes before the bare id in the name of a reservation (a HASH). Which reservations there are is known
--            only once the page has been read, so they cannot be KEYS; they share the index's prefix, and so its slot.
-- ARGV[6] -> grace in ms for a reservation that has no grace_ms of its own
--
-- Returns {{id, score, id, score, ...}, flags, more, first_end, fingerprint}.
--   flags        one character for each id: '1' where it is in grace, else '0'
--   more         '1' where there may be more entries after the page, else '0'
--   first_end    ms when the first grace among them ends; '' where none is in grace
--   fingerprint  '' unless all are in grace. unchanged_ranges.lua recognises the page by it. The page is then cut after
--                the last score of which it has all entries, unless there is only one score.

-- @include paging
-- @include fingerprint
-- @include deadline

local count = tonumber(ARGV[4])
local found = page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], count)
local attempt, stem, grace_text = redis.pcall, ARGV[5], ARGV[6]
local flags, first_end, all = {}, math.huge, true
for i = 1, #found, 2 do
  local row = attempt('HMGET', stem .. found[i], 'state', 'expires_at', 'grace_ms')
  local in_grace = false
  if row[1] == 'ACTIVE' then
    local phase, expires_at, grace = deadline_phase(row[2], row[3] or grace_text)
    in_grace = phase == 'in_grace'
    if in_grace then
      first_end = math.min(first_end, expires_at + grace)
    end
  end
  flags[#flags + 1] = in_grace and '1' or '0'
  all = all and in_grace
end

local more = #flags == count and '1' or '0'
local end_text = first_end < math.huge and string.format('%d', first_end) or ''
if not all or #flags == 0 then
  return {found, table.concat(flags), more, end_text, ''}
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
return {found, string.rep('1', length), more, end_text, fingerprint(found)}
