"""Begin a session, use it, and list the sessions of a user."""

import redis

BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The same request again, after a lost answer: the session stays as it is.
if redis.call('EXISTS', KEYS[1]) == 1 then
  local session = redis.call('HMGET', KEYS[1], 'user', 'used_at', 'idle_ms')
  return session[1] == ARGV[2] and now < session[2] + session[3] and 1 or 0
end
local deadline = string.format('%d', now + ARGV[3])
redis.call('HSET', KEYS[1], 'user', ARGV[2], 'used_at', string.format('%d', now), 'idle_ms', ARGV[3],
  'expires_at', deadline)
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
return 1
"""
USE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local session = redis.call('HMGET', KEYS[1], 'used_at', 'idle_ms')
-- A session that was idle for too long has ended, even if the sweep has not come by yet.
if not session[1] or now >= session[1] + session[2] then return 0 end
redis.call('HSET', KEYS[1], 'used_at', string.format('%d', now))
return 1
"""


class Sessions:
    """Sessions with a deadline that slides."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def begin(self, session: str, user: str, idle_ms: int) -> bool:
        """
        A session that ends when it has not been used for `idle_ms`. The same call again changes nothing. False if the
        id is in use.
        """
        keys = [f"sessions:{session}", f"users:{user}:sessions", "sessions:ttl"]
        return bool(self._client.eval(BEGIN, 3, *keys, session, user, idle_ms))

    def use(self, session: str) -> bool:
        """False if it has ended."""
        return bool(self._client.eval(USE, 1, f"sessions:{session}"))

    def of(self, user: str) -> set[bytes]:
        """The user's sessions."""
        return set(self._client.smembers(f"users:{user}:sessions"))
