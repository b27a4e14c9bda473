"""Begin a session, use it, and list the sessions of a user."""

import redis

BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline = string.format('%d', now + ARGV[3])
redis.call('HSET', KEYS[1], 'user', ARGV[2], 'used_at', string.format('%d', now), 'idle_ms', ARGV[3],
  'expires_at', deadline)
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
"""
USE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'used_at', string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)))
return 1
"""


class Sessions:
    """Sessions with a deadline that slides."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def begin(self, session: str, user: str, idle_ms: int) -> None:
        """A session that ends when it has not been used for so long."""
        keys = [f"sessions:{session}", f"users:{user}:sessions", "sessions:ttl"]
        self._client.eval(BEGIN, 3, *keys, session, user, idle_ms)

    def use(self, session: str) -> bool:
        """False where it has ended."""
        return bool(self._client.eval(USE, 1, f"sessions:{session}"))

    def of(self, user: str) -> set[bytes]:
        """The user's sessions."""
        return set(self._client.smembers(f"users:{user}:sessions"))
