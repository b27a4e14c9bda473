-- Looks at a few reservations for `sweeperd reconcile`: is the index right about each, and what does it hold?
--
-- KEYS[1] -> reservation:ttl       ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[2] -> sweeperd:quarantine   ZSET  bare id -> ms when it was set aside
-- KEYS[3..] -> reservation:res_<id>  HASH  the reservations
--
-- ARGV[1] -> grace in ms for a reservation that has no grace_ms of its own
-- ARGV[2] -> what was held only before this moment, ms, is not told; '': what is held is not asked for
-- ARGV[3..] -> the bare ids
--
-- Returns for each: 0 where there is nothing to tell, else {fault or '', what it holds}. What it holds is
--   {}                                             nothing, or nothing that is asked for
--   {'unreadable'}                                 it is ACTIVE, and its amount, unit or scopes cannot be read
--   {from, until, amount, unit, scope, scope, ...} from: ms when it began, '' where that cannot be told; until: ms when
--                                                  it ended, '' where it still holds, '?' where that cannot be told

-- @include clock
-- @include deadline
-- @include reservation_look
-- @include scopes

local ENDINGS = {COMMITTED = 10, RELEASED = 11, EXPIRED = 12}
local INT64_MAX, MAX_SCOPES = '9223372036854775807', 256
local since = tonumber(ARGV[2])

local function is_amount(text)
  return text and (text == '0' or string.find(text, '^[1-9]%d*$')) and #text <= 19
    and (#text < 19 or text <= INT64_MAX)
end

-- Until when it holds, as above; nil where that was over before `since`.
local function held_until(row)
  if row[1] == 'ACTIVE' then
    return ''
  end
  local ending = ENDINGS[row[1]]
  if not ending then
    return '?' -- no state that says whether it holds
  end
  local ended = clock.whole(row[ending])
  if ended then
    return ended >= since and row[ending] or nil
  end
  -- Commits and releases are taken until the end of the grace; a sweep may come at any time after it.
  if row[1] ~= 'EXPIRED' and deadline_phase(row[2], row[9] or ARGV[1], since) == 'overdue' then
    return nil
  end
  return '?'
end

local function holding(row)
  local ending = held_until(row)
  if not ending then
    return {}
  end
  local scopes = scopes_parse(row[7] or row[8] or '')
  if not scopes or #scopes > MAX_SCOPES or not is_amount(row[5]) or not row[6] or row[6] == '' then
    return row[1] == 'ACTIVE' and {'unreadable'} or {}
  end
  local began = clock.whole(row[4])
  -- What began after now, or after its own end, was not written by this server's clock.
  local told = began and began <= clock.now and began <= (clock.whole(ending) or began)
  local held = {told and row[4] or '', ending, row[5], row[6]}
  for i = 1, #scopes do
    held[i + 4] = scopes[i]
  end
  return held
end

local found = {}
for i = 3, #KEYS do
  local row, wrong_type = look.row(KEYS[i])
  local fault = look.fault(KEYS[1], KEYS[2], ARGV[i], row, wrong_type)
  local held = row and since and holding(row) or {}
  found[i - 2] = (fault or #held > 0) and {fault or '', held} or 0
end
return found
