"""Write sessions as spring-session does, and the index of their deadlines with them."""

import redis

TOUCH = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline = redis.call('ZSCORE', KEYS[2], ARGV[1])
-- A session that has ended is not revived: the sweep may have reported its end.
if deadline and now > tonumber(deadline) or not deadline and ARGV[2] == '' then return 0 end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'creationTime', now, 'maxInactiveInterval', ARGV[3], 'sessionAttr:user', ARGV[2])
  redis.call('SADD', KEYS[3], ARGV[2])
end
local idle = redis.call('HGET', KEYS[1], 'maxInactiveInterval')
redis.call('HSET', KEYS[1], 'lastAccessedTime', string.format('%d', now))
redis.call('PERSIST', KEYS[1]) -- spring-session sets a TTL, and Redis might remove the hash before the sweep
redis.call('ZADD', KEYS[2], string.format('%d', now + idle * 1000), ARGV[1])
return 1
"""
END = """
redis.call('SREM', KEYS[3], ARGV[2])
redis.call('DEL', KEYS[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""


class Sessions:
    """The sessions of one service."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def start(self, session: str, user: str, idle_seconds: float) -> bool:
        return self._run(TOUCH, session, user, idle_seconds)

    def use(self, session: str) -> bool:
        """False if the session has ended."""
        return self._run(TOUCH, session, "", "")

    def end(self, session: str, user: str) -> bool:
        """The user signs out."""
        return self._run(END, session, user)

    def _run(self, script: str, session: str, *words: str | float) -> bool:
        keys = [f"spring:session:sessions:{session}", "spring:session:deadlines", "users:online"]
        return bool(self._client.eval(script, 3, *keys, session, *words))
