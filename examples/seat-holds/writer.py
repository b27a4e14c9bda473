"""Hold seats of a show, and buy or release what is held."""

import redis

HOLD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The same request again, after a lost answer: nothing is held twice. An id that has ended is not used again.
if redis.call('EXISTS', KEYS[2]) == 1 then
  local hold = redis.call('HMGET', KEYS[2], 'state', 'show', 'qty', 'customer', 'expires_at')
  local same = hold[1] == 'HELD' and hold[2] == ARGV[3] and hold[3] == ARGV[2] and hold[4] == ARGV[4]
  return same and now <= tonumber(hold[5]) and 1 or 0
end
local qty = tonumber(ARGV[2])
if tonumber(redis.call('HGET', KEYS[1], 'free') or 0) < qty then return 0 end
local deadline = string.format('%d', now + ARGV[5])
redis.call('HINCRBY', KEYS[1], 'free', -qty)
redis.call('HINCRBY', KEYS[1], 'held', qty)
-- No TTL while the hold is active: it would end without an event, and its seats would stay held.
redis.call('HSET', KEYS[2], 'state', 'HELD', 'show', ARGV[3], 'qty', ARGV[2], 'customer', ARGV[4],
  'expires_at', deadline)
redis.call('ZADD', KEYS[3], deadline, ARGV[1])
return 1
"""
#: ARGV[3]: the state at the end, SOLD or RELEASED. Released seats are free again.
END = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local hold = redis.call('HMGET', KEYS[2], 'state', 'show', 'qty', 'expires_at')
if hold[2] ~= ARGV[2] then return 0 end
if hold[1] == ARGV[3] then return 1 end -- the same request again
-- After the deadline the sweep may give the seats back at any moment.
if hold[1] ~= 'HELD' or now > tonumber(hold[4]) then return 0 end
redis.call('HINCRBY', KEYS[1], 'held', -hold[3])
if ARGV[3] == 'RELEASED' then redis.call('HINCRBY', KEYS[1], 'free', hold[3]) end
redis.call('HSET', KEYS[2], 'state', ARGV[3])
redis.call('PEXPIRE', KEYS[2], 604800000) -- seven days, as the kind's retention
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""


class Box:
    """The box office. Every write is one script, so a hold and its index entry cannot come apart."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def open(self, show: str, seats: int) -> None:
        """Offer this many seats."""
        self._client.hset(f"seats:{show}", mapping={"free": seats, "held": 0})

    def hold(self, hold: str, show: str, qty: int, customer: str, for_ms: int) -> bool:
        """Hold seats. The same call again changes nothing. False if not enough are free, or the id was used."""
        return bool(self._client.eval(HOLD, 3, *_keys(hold, show), hold, qty, show, customer, for_ms))

    def buy(self, hold: str, show: str) -> bool:
        """Sell the held seats. False if the hold has ended, or its deadline has passed."""
        return bool(self._client.eval(END, 3, *_keys(hold, show), hold, show, "SOLD"))

    def release(self, hold: str, show: str) -> bool:
        """Give the held seats back. False if the hold has ended, or its deadline has passed."""
        return bool(self._client.eval(END, 3, *_keys(hold, show), hold, show, "RELEASED"))


def _keys(hold: str, show: str) -> list[str]:
    return [f"seats:{show}", f"seats:hold:{hold}", "seats:ttl"]
