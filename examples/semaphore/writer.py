"""Take a slot of a semaphore, renew and release it."""

import redis

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline = redis.call('ZSCORE', KEYS[2], ARGV[1])
-- Who holds a slot renews it, until its deadline. From then on the sweep may give it back.
if deadline and now > tonumber(deadline) then return 0 end
if not deadline then
  if tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or 0) < 1 then return 0 end
  redis.call('HINCRBY', KEYS[1], ARGV[2], -1)
end
redis.call('ZADD', KEYS[2], string.format('%d', now + ARGV[3]), ARGV[1])
return 1
"""
RELEASE = """
-- Only who is in the set gives a slot back, so that no slot comes back twice.
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
return 1
"""


class Semaphore:
    """A semaphore with so many slots."""

    def __init__(self, client: "redis.Redis", name: str) -> None:
        self._client = client
        self._name = name

    def open(self, slots: int) -> None:
        self._client.hset("semaphore:free", self._name, slots)

    def take(self, owner: str, for_ms: int) -> bool:
        """Take a slot, or renew it. False if none is free, or the owner's deadline has passed."""
        return self._run(TAKE, owner, for_ms)

    def release(self, owner: str) -> bool:
        """False if the slot was given back already."""
        return self._run(RELEASE, owner)

    def _run(self, script: str, owner: str, *words: int) -> bool:
        keys = ["semaphore:free", "semaphore:held"]
        return bool(self._client.eval(script, 2, *keys, f"{self._name}|{owner}", self._name, *words))
