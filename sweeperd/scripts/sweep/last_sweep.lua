-- Records the end of a tick for operators: who swept last and when, and the total number of expiries.
--
-- KEYS[1] -> sweeperd:ticks  HASH  the last tick, the running total, and the total a minute or two before
-- ARGV[1] -> when the tick ended, ms on this server's clock
-- ARGV[2] -> how many entries have expired since this process's last record
-- ARGV[3..] -> fields and values of the tick; without `seen` the hash loses that field
-- Returns the total.

-- @include rights

local MINUTE = 60000
local row = redis.call('HMGET', KEYS[1], 'expired', 'mark_at', 'mark_expired', 'earlier_at', 'earlier_expired')
local at, before = tonumber(ARGV[1]), tonumber(row[1]) or 0
local total = before + ARGV[2]
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
local words = {'at', ARGV[1], 'expired', total_text, 'mark_at', text(mark_at), 'mark_expired', text(mark_expired),
  'earlier_at', text(earlier_at), 'earlier_expired', text(earlier_expired), unpack(ARGV, 3)}
redis.call('HDEL', KEYS[1], 'seen') -- first, for maxmemory: see rights.lua
redis.call('HSET', KEYS[1], unpack(words))
return total_text
