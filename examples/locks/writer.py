"""Take a lock with a fencing token, renew it, release it."""

import redis

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local token = string.format('%d', redis.call('INCR', KEYS[2]))
local deadline = string.format('%d', now + ARGV[3])
redis.call('SET', KEYS[1], token)
local id = ARGV[1] .. ':' .. token
redis.call('HSET', KEYS[3] .. id, 'state', 'HELD', 'resource', ARGV[1], 'token', token, 'owner', ARGV[2],
  'until', deadline)
redis.call('ZADD', KEYS[4], deadline, id)
return token
"""
RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
local id = ARGV[1] .. ':' .. ARGV[2]
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2] .. id, 'state', 'RELEASED')
redis.call('ZREM', KEYS[3], id)
return 1
"""


class Locks:
    """Every storage behind a lock refuses a token that is smaller than one it has seen."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def take(self, resource: str, owner: str, for_ms: int) -> int:
        """The token; 0 where another owner has the lock."""
        keys = [f"locks:owner:{resource}", f"locks:fence:{resource}", "locks:lease:", "locks:ttl"]
        return int(self._client.eval(TAKE, 4, *keys, resource, owner, for_ms))  # type: ignore[arg-type]

    def release(self, resource: str, token: int) -> bool:
        """False where the lock was lost before."""
        keys = [f"locks:owner:{resource}", "locks:lease:", "locks:ttl"]
        return bool(self._client.eval(RELEASE, 3, *keys, resource, token))
