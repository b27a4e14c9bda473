-- Records what an operator did, and counts it.
--
-- KEYS[1] -> sweeperd:actions        STREAM  one entry for each action
-- KEYS[2] -> sweeperd:action-counts  HASH    action -> how often it was done
--
-- ARGV[1] -> how many entries are kept
-- ARGV[2] -> who: user@host;  ARGV[3] -> the action;  ARGV[4] -> its target;  ARGV[5] -> how many entries it changed
--
-- Returns the id of the entry, whose time is that of this server.
--
-- The first write is an XTRIM: it needs no memory, so a full Redis accepts it, and the writes after it too.

-- @include effects

local counted = redis.call('HGET', KEYS[2], ARGV[3])
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
local id = redis.call('XADD', KEYS[1], '*', 'who', ARGV[2], 'action', ARGV[3], 'target', ARGV[4], 'count', ARGV[5])
redis.call('HSET', KEYS[2], ARGV[3], string.format('%.0f', (tonumber(counted) or 0) + 1))
return id
