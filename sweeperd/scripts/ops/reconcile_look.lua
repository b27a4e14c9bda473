-- Reads several reservations for `sweeperd reconcile`: the fault of each index entry, and what each reservation holds.
--
-- KEYS[1] -> reservation:ttl       ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[2] -> sweeperd:quarantine   ZSET  bare id -> ms when the reservation was quarantined
-- KEYS[3..] -> reservation:res_<id>  HASH  the reservations
-- ARGV[1] -> the grace of a reservation without grace_ms, ms
-- ARGV[2] -> ms: holdings that ended before this moment are left out; '' to return no holdings
-- ARGV[3..] -> the bare ids
-- Returns an answer for each id, followed by the shortest time for which ended reservations stay readable, ms; '' if
-- unknown or if no holdings were requested. An answer is 0 if there is nothing to report, else {mark or '', holding}.
-- Marks are the faults of reconcile_entry.lua, `dismissed`, and `foreign_expiry` (EXPIRED without `expired_event`). A
-- holding is
--   {}                                             nothing, or no holdings were requested
--   {'unreadable', unit, scope, ...}               ACTIVE with a malformed amount
--   {'unreadable'}                                 the same, with a malformed unit or malformed scopes
--   {'left_out', ...}                              as `unreadable`, but an operator dismissed the reservation; a key
--                                                  that is not a hash counts as such in neither index nor quarantine
--   {from, until, amount, unit, scope, scope, ...} from: ms when the holding began, '' if unknown; until: ms when it
--                                                  ended, '' if it still holds, '?' if unknown. An end in the future
--                                                  comes from a clock that was set back since

-- @include clock
-- @include deadline
-- @include reservation_look
-- @include scopes
-- @include whole

local ENDINGS = {COMMITTED = 10, RELEASED = 11, EXPIRED = 12}
local MAX_SCOPES = 256
local since = tonumber(ARGV[2])

-- The `until` of a holding, as above; nil if it ended before `since`.
local function held_until(row)
  if row[1] == 'ACTIVE' then
    return ''
  end
  local ending = ENDINGS[row[1]]
  if not ending then
    return '?' -- an unknown state may or may not hold the amount
  end
  local ended = clock.whole(row[ending])
  if ended and ended > clock.now then
    return '?'
  elseif ended then
    return ended >= since and row[ending] or nil
  end
  -- Commits and releases are accepted until the grace ends. A sweep may come at any time after that.
  if row[1] ~= 'EXPIRED' and deadline_phase(row[2], row[9] or ARGV[1], since) == 'overdue' then
    return nil
  end
  return '?'
end

-- How long the reservation stays readable after it ended, ms; infinite if it has no TTL, hasn't ended, or ended at an
-- unknown time.
local function retention(key, row)
  local ended = clock.whole(row[ENDINGS[row[1]]])
  local left = ended and ended <= clock.now and redis.call('PTTL', key) or -1
  return left >= 0 and clock.now - ended + left or math.huge
end

local function holding(row, dismissed)
  local ending = held_until(row)
  if not ending then
    return {}
  end
  local scopes = row[6] and row[6] ~= '' and scopes_parse(row[7] or row[8] or '')
  if scopes and #scopes > MAX_SCOPES then
    scopes = nil
  end
  if not scopes or not whole.is_amount(row[5]) then
    if row[1] ~= 'ACTIVE' then
      return {}
    end
    local word = dismissed and 'left_out' or 'unreadable'
    return scopes and {word, row[6], unpack(scopes)} or {word}
  end
  local began = clock.whole(row[4])
  -- This server's clock did not write a time in the future, or one after the end.
  local known = began and began <= clock.now and began <= (clock.whole(ending) or began)
  local held = {known and row[4] or '', ending, row[5], row[6]}
  for i = 1, #scopes do
    held[i + 4] = scopes[i]
  end
  return held
end

-- The mark, as above; nil if there is none.
local function mark(key, id, row, wrong_type)
  if row and row[1] == 'EXPIRED' then
    return not row[14] and 'foreign_expiry' or nil
  end
  return look.fault(KEYS[1], KEYS[2], id, row, wrong_type)
    or row and look.too_short(key, row, ARGV[1]) and 'short_ttl' or nil
end

local found, shortest = {}, math.huge
for i = 3, #KEYS do
  local row, wrong_type = look.row(KEYS[i])
  local seen = mark(KEYS[i], ARGV[i], row, wrong_type)
  local held = {}
  if since then
    shortest = row and math.min(shortest, retention(KEYS[i], row)) or shortest
    if wrong_type then
      local listed = redis.call('ZSCORE', KEYS[1], ARGV[i]) or redis.call('ZSCORE', KEYS[2], ARGV[i])
      held = {listed and 'unreadable' or 'left_out'}
    elseif row then
      held = holding(row, seen == 'dismissed')
    end
  end
  found[i - 2] = (seen or #held > 0) and {seen or '', held} or 0
end
found[#found + 1] = shortest < math.huge and string.format('%.0f', shortest) or ''
return found
