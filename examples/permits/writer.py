"""Take permits for a call, and put them back."""

import redis

TAKE = """
local free = tonumber(redis.call('GET', KEYS[1]) or 0)
if free < tonumber(ARGV[3]) then return 0 end
local time = redis.call('TIME')
local deadline = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4])
redis.call('DECRBY', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[2], 'state', 'HELD', 'client', ARGV[2], 'count', ARGV[3], 'until', deadline)
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
return 1
"""
PUT_BACK = """
local count = redis.call('HGET', KEYS[2], 'count')
if not count then return 0 end
redis.call('INCRBY', KEYS[1], count)
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""


class Permits:
    """Permits of many clients."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def allow(self, name: str, count: int) -> None:
        """Give a client so many permits."""
        self._client.set(f"permits:free:{name}", count)

    def take(self, call: str, name: str, count: int, for_ms: int) -> bool:
        """False where the client has not so many left."""
        keys = [f"permits:free:{name}", f"permits:held:{call}", "permits:ttl"]
        return bool(self._client.eval(TAKE, 3, *keys, call, name, count, for_ms))

    def put_back(self, call: str, name: str) -> bool:
        """False where they came back by themselves."""
        keys = [f"permits:free:{name}", f"permits:held:{call}", "permits:ttl"]
        return bool(self._client.eval(PUT_BACK, 3, *keys, call))
