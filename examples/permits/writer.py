"""Take permits for a call, and put them back."""

import redis

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The same request again, after a lost answer: nothing is taken twice.
if redis.call('EXISTS', KEYS[2]) == 1 then
  local held = redis.call('HMGET', KEYS[2], 'client', 'count', 'until')
  return held[1] == ARGV[2] and held[2] == ARGV[3] and now <= tonumber(held[3]) and 1 or 0
end
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[3]) then return 0 end
local deadline = string.format('%d', now + ARGV[4])
redis.call('DECRBY', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[2], 'state', 'HELD', 'client', ARGV[2], 'count', ARGV[3], 'until', deadline)
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
return 1
"""
PUT_BACK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[2], 'client', 'count', 'until')
-- After the deadline the sweep puts them back.
if held[1] ~= ARGV[2] or now > tonumber(held[3]) then return 0 end
redis.call('INCRBY', KEYS[1], held[2])
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""


class Permits:
    """Permits of many clients."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def allow(self, name: str, count: int) -> None:
        """Give a client this many permits."""
        self._client.set(f"permits:free:{name}", count)

    def take(self, call: str, name: str, count: int, for_ms: int) -> bool:
        """Take permits. The same call again changes nothing. False if too few are left, or the id is in use."""
        keys = [f"permits:free:{name}", f"permits:held:{call}", "permits:ttl"]
        return bool(self._client.eval(TAKE, 3, *keys, call, name, count, for_ms))

    def put_back(self, call: str, name: str) -> bool:
        """False if they are back already, or their deadline has passed."""
        keys = [f"permits:free:{name}", f"permits:held:{call}", "permits:ttl"]
        return bool(self._client.eval(PUT_BACK, 3, *keys, call, name))
