"""Take a lock with a fencing token, renew it, release it."""

import redis

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('GET', KEYS[1])
if held then
  -- The same request again, after a lost answer: the holder gets its token again.
  local lease = redis.call('HMGET', KEYS[3] .. ARGV[1] .. ':' .. held, 'owner', 'until')
  return lease[1] == ARGV[2] and now <= tonumber(lease[2]) and held or 0
end
local token = string.format('%d', redis.call('INCR', KEYS[2]))
local deadline = string.format('%d', now + ARGV[3])
redis.call('SET', KEYS[1], token)
local id = ARGV[1] .. ':' .. token
redis.call('HSET', KEYS[3] .. id, 'state', 'HELD', 'resource', ARGV[1], 'token', token, 'owner', ARGV[2],
  'until', deadline)
redis.call('ZADD', KEYS[4], deadline, id)
return token
"""
RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = ARGV[1] .. ':' .. ARGV[2]
local lease = redis.call('HMGET', KEYS[2] .. id, 'state', 'until')
-- After the deadline the lock may lapse at any moment.
if lease[1] ~= 'HELD' or now > tonumber(lease[2]) then return 0 end
local deadline = string.format('%d', now + ARGV[3])
redis.call('HSET', KEYS[2] .. id, 'until', deadline)
redis.call('ZADD', KEYS[3], deadline, id)
return 1
"""
RELEASE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = ARGV[1] .. ':' .. ARGV[2]
local lease = redis.call('HMGET', KEYS[2] .. id, 'state', 'until')
if lease[1] == 'RELEASED' then return 1 end -- the same request again
if lease[1] ~= 'HELD' or now > tonumber(lease[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2] .. id, 'state', 'RELEASED')
redis.call('PEXPIRE', KEYS[2] .. id, 3600000) -- an hour, as the kind's retention
redis.call('ZREM', KEYS[3], id)
return 1
"""


class Locks:
    """Every storage behind a lock refuses a token that is smaller than one it has seen."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def take(self, resource: str, owner: str, for_ms: int) -> int:
        """The token; 0 if another owner has the lock. The same owner gets the same token again."""
        keys = [f"locks:owner:{resource}", f"locks:fence:{resource}", "locks:lease:", "locks:ttl"]
        return int(self._client.eval(TAKE, 4, *keys, resource, owner, for_ms))  # type: ignore[arg-type]

    def renew(self, resource: str, token: int, for_ms: int) -> bool:
        """Set a new deadline. False if the lock was lost before."""
        keys = [f"locks:owner:{resource}", "locks:lease:", "locks:ttl"]
        return bool(self._client.eval(RENEW, 3, *keys, resource, token, for_ms))

    def release(self, resource: str, token: int) -> bool:
        """False if the lock was lost before."""
        keys = [f"locks:owner:{resource}", "locks:lease:", "locks:ttl"]
        return bool(self._client.eval(RELEASE, 3, *keys, resource, token))
