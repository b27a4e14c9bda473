-- Makes a lease last longer, if the lease is still held by the calling process. If another process has the lease, its
-- token says how long the lease lasts at most. A lease with more time left was taken before the clock was set back, and
-- is cut to this length: else a dead process would keep the lease until the clock has caught up.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of the holder
--
-- ARGV[1] -> the token of the process that calls
-- ARGV[2] -> TTL, ms
--
-- Returns 1 if the lease is held under this token and lasts for the TTL from now on; 0 if the lease is gone or has
-- another holder; -n if the token of another holder says that the lease lasts n ms.

-- @include effects

local LENGTH = '%-' .. string.rep('%x', 16) .. ':([1-9]%d*)$'
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
-- The lease of the Cycles services has no such token, and is left alone.
local length = held and string.match(ARGV[1], LENGTH) and tonumber(string.match(held, LENGTH))
if not length then
  return 0
end
local left = redis.pcall('PTTL', KEYS[1]) -- an error if the user lacks the right
if type(left) == 'number' and left > length then
  redis.call('PEXPIRE', KEYS[1], length)
end
return -length
