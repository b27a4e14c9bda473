"""Hold seats of a show, and buy or release what is held."""

import redis

HOLD = """
local free = tonumber(redis.call('HGET', KEYS[1], 'free') or 0)
local qty = tonumber(ARGV[2])
if free < qty then return 0 end
local time = redis.call('TIME')
local deadline = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5])
redis.call('HINCRBY', KEYS[1], 'free', -qty)
redis.call('HINCRBY', KEYS[1], 'held', qty)
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'state', 'HELD', 'show', ARGV[3], 'qty', ARGV[2], 'customer', ARGV[4],
  'expires_at', deadline)
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
return 1
"""
BUY = """
if redis.call('HGET', KEYS[2], 'state') ~= 'HELD' then return 0 end
redis.call('HINCRBY', KEYS[1], 'held', -redis.call('HGET', KEYS[2], 'qty'))
redis.call('HSET', KEYS[2], 'state', 'SOLD')
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""


class Box:
    """The box office. Every write is one script, so a hold and its index entry cannot come apart."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def open(self, show: str, seats: int) -> None:
        """Offer so many seats."""
        self._client.hset(f"seats:{show}", mapping={"free": seats, "held": 0})

    def hold(self, hold: str, show: str, qty: int, customer: str, for_ms: int) -> bool:
        """Hold seats for so long. False where there are not enough."""
        keys = [f"seats:{show}", f"seats:hold:{hold}", "seats:ttl"]
        return bool(self._client.eval(HOLD, 3, *keys, hold, qty, show, customer, for_ms))

    def buy(self, hold: str, show: str) -> bool:
        """Sell the held seats. False where the hold has ended."""
        keys = [f"seats:{show}", f"seats:hold:{hold}", "seats:ttl"]
        return bool(self._client.eval(BUY, 3, *keys, hold))
