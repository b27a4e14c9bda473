-- Renews a lease if the calling process still holds it. If another process holds the lease, its token states the
-- longest TTL the lease can have. A longer TTL means that the clock was set back since, and none that another program
-- removed it (PERSIST), so the TTL is set to that length. Otherwise a dead process would keep the lease until the clock
-- has caught up, or for ever.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of the holder
-- ARGV[1] -> the token of the calling process;  ARGV[2] -> TTL, ms
-- Returns 1 if the lease is held under this token and was renewed for the TTL; 0 if it has expired or has another
-- holder; -n if another holder's token states a TTL of n ms.

-- @include effects

local LENGTH = '%-' .. string.rep('%x', 16) .. ':([1-9]%d*)$'
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
-- The lease of the Cycles services has no such token and is left alone.
local length = held and string.match(ARGV[1], LENGTH) and tonumber(string.match(held, LENGTH))
if not length then
  return 0
end
local left = redis.pcall('PTTL', KEYS[1]) -- an error if the user lacks the right
if type(left) == 'number' and (left < 0 or left > length) then
  redis.call('PEXPIRE', KEYS[1], length)
end
return -length
