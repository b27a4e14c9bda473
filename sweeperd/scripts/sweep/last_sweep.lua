-- Records the end of a tick for operators: who swept last and when, and the total number of expiries.
--
-- KEYS[1] -> sweeperd:ticks  HASH  the last tick, the running total, and the total a minute or two before
--
-- ARGV[1] -> when the tick ended, ms on this server's clock
-- ARGV[2] -> the process that swept
-- ARGV[3] -> how long the tick took, seconds
-- ARGV[4] -> 1; 0 if the tick stopped before the end of the due entries
-- ARGV[5] -> how many entries have expired since this process's last record
-- ARGV[6] -> the score up to which every entry was decided, ms; '' if the tick was cut short or had failures
-- ARGV[7] -> how many entries an unproven kind held back; '' if unknown.  ARGV[8] -> the likely cause
-- ARGV[9] -> how many expiries were deferred because the server is full; '' if unknown
--
-- Returns the total.
--
-- HDEL comes first. It removes `seen`, or nothing, and needs no memory: at maxmemory Redis accepts it, and then HSET.

-- @include rights

local MINUTE = 60000
local row = redis.call('HMGET', KEYS[1], 'expired', 'mark_at', 'mark_expired', 'earlier_at', 'earlier_expired')
local at, before = tonumber(ARGV[1]), tonumber(row[1]) or 0
local total = before + ARGV[5]
local mark_at, mark_expired = tonumber(row[2]), tonumber(row[3])
local earlier_at, earlier_expired = tonumber(row[4]), tonumber(row[5])
if not (mark_at and mark_expired and earlier_at and earlier_expired) or at < mark_at then
  -- This is the first record, or the server's clock was set back.
  mark_at, mark_expired, earlier_at, earlier_expired = at, total, at, total
elseif at - mark_at >= MINUTE then
  earlier_at, earlier_expired, mark_at, mark_expired = mark_at, mark_expired, at, total
end
local function text(number)
  return string.format('%.0f', number)
end
local refused = no_right('HDEL', KEYS[1]) or no_right('HSET', KEYS[1])
if refused then
  return refused
end
local total_text = text(total)
local words = {'at', ARGV[1], 'by', ARGV[2], 'seconds', ARGV[3], 'complete', ARGV[4], 'expired', total_text,
  'mark_at', text(mark_at), 'mark_expired', text(mark_expired),
  'earlier_at', text(earlier_at), 'earlier_expired', text(earlier_expired)}
if ARGV[6] ~= '' then
  words[#words + 1] = 'seen'
  words[#words + 1] = ARGV[6]
end
if ARGV[7] ~= '' then
  words[#words + 1] = 'held'
  words[#words + 1] = ARGV[7]
  words[#words + 1] = 'held_because'
  words[#words + 1] = ARGV[8]
end
if ARGV[9] ~= '' then
  words[#words + 1] = 'deferred'
  words[#words + 1] = ARGV[9]
end
redis.call('HDEL', KEYS[1], ARGV[6] == '' and 'seen' or '')
redis.call('HSET', KEYS[1], unpack(words))
return total_text
