"""Fill a cart with several lines, and buy it."""

import json
from collections.abc import Mapping

import redis

FILL = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The same request again, after a lost answer: nothing is held twice. An id that has ended is not used again.
if redis.call('EXISTS', KEYS[1]) == 1 then
  local cart = redis.call('HMGET', KEYS[1], 'state', 'customer', 'lines', 'expires_at')
  local same = cart[1] == 'OPEN' and cart[2] == ARGV[3] and cart[3] == ARGV[4]
  return same and now <= tonumber(cart[4]) and 1 or 0
end
-- All lines are checked before the first one is held.
for i = 3, #KEYS do
  if tonumber(redis.call('HGET', KEYS[i], 'free') or 0) < tonumber(ARGV[i + 3]) then return 0 end
end
for i = 3, #KEYS do
  redis.call('HINCRBY', KEYS[i], 'free', -ARGV[i + 3])
  redis.call('HINCRBY', KEYS[i], 'held', ARGV[i + 3])
end
local deadline = string.format('%d', now + ARGV[5])
redis.call('HSET', KEYS[1], 'state', 'OPEN', 'shop', ARGV[2], 'customer', ARGV[3], 'lines', ARGV[4],
  'expires_at', deadline)
redis.call('ZADD', KEYS[2], deadline, ARGV[1])
return 1
"""
BUY = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local cart = redis.call('HMGET', KEYS[1], 'state', 'lines', 'expires_at')
if cart[1] == 'BOUGHT' then return 1 end -- the same request again
-- After the deadline the sweep may give the stock back at any moment.
if (cart[1] ~= 'OPEN' and cart[1] ~= 'PAYING') or cart[2] ~= ARGV[2] or now > tonumber(cart[3]) then return 0 end
for i = 3, #KEYS do redis.call('HINCRBY', KEYS[i], 'held', -ARGV[i]) end
redis.call('HSET', KEYS[1], 'state', 'BOUGHT')
redis.call('PEXPIRE', KEYS[1], 604800000) -- seven days, as the kind's retention
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""


class Carts:
    """The carts of one shop."""

    def __init__(self, client: "redis.Redis", shop: str) -> None:
        self._client = client
        self._shop = shop

    def stock(self, sku: str, count: int) -> None:
        """Put this many things on the shelf."""
        self._client.hset(f"stock:{sku}", mapping={"free": count, "held": 0})

    def fill(self, cart: str, customer: str, lines: Mapping[str, int], for_ms: int) -> bool:
        """Hold all lines or none. The same request again changes nothing. False if a line is short of stock."""
        keys = [f"carts:{cart}", "carts:ttl", *_stock(lines)]
        words = [cart, self._shop, customer, _text(lines), for_ms, *lines.values()]
        return bool(self._client.eval(FILL, len(keys), *keys, *words))

    def buy(self, cart: str, lines: Mapping[str, int]) -> bool:
        """False if the cart has other lines, is not open, or its deadline has passed."""
        keys = [f"carts:{cart}", "carts:ttl", *_stock(lines)]
        return bool(self._client.eval(BUY, len(keys), *keys, cart, _text(lines), *lines.values()))


def _stock(lines: Mapping[str, int]) -> list[str]:
    return [f"stock:{sku}" for sku in lines]


def _text(lines: Mapping[str, int]) -> str:
    return json.dumps([{"sku": sku, "qty": qty} for sku, qty in lines.items()])
