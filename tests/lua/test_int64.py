"""int64.lua against Python's integers."""

import random
from typing import Any

import pytest
import redis

from sweeperd.store.scripts import source
from tests.lua.builders import INT64_MAX, INT64_MIN

EDGES = [0, 1, 9, 10**9, 10**10 - 1, 10**10, 10**10 + 1, 10**15, 2**53, 2**53 + 1, 10**18, INT64_MAX - 1, INT64_MAX]
EDGES += [-value for value in EDGES[1:]] + [INT64_MIN]

ROUND_TRIP = """
local texts = {}
for i = 1, #ARGV do
  local high, low = int64_parse(ARGV[i])
  texts[i] = high and int64_text(high, low) or 'none'
end
return texts
"""
SUM_AND_DIFFERENCE = """
local texts = {}
for i = 1, #ARGV, 2 do
  local a_high, a_low = int64_parse(ARGV[i])
  local b_high, b_low = int64_parse(ARGV[i + 1])
  texts[i] = int64_text(int64_normal(a_high + b_high, a_low + b_low)) or 'none'
  texts[i + 1] = int64_text(int64_normal(a_high - b_high, a_low - b_low)) or 'none'
end
return texts
"""


def run(client: "redis.Redis", body: str, values: list[Any]) -> list[bytes]:
    texts: list[bytes] = client.eval(source("include/int64") + body, 0, *values)
    return texts


def random_int(rng: random.Random) -> int:
    return rng.choice([-1, 1]) * rng.getrandbits(rng.randint(1, 63))


def test_values_come_back_as_they_went_in(client: redis.Redis) -> None:
    rng = random.Random(0)
    texts = [b"%d" % value for value in [*EDGES, *(random_int(rng) for _ in range(3000))]]
    assert run(client, ROUND_TRIP, texts) == texts


def test_sums_and_differences(client: redis.Redis) -> None:
    rng = random.Random(1)
    pairs = [(a, b) for a in EDGES for b in EDGES] + [(random_int(rng), random_int(rng)) for _ in range(5000)]
    # Sums below int64 are left out: an amount is never negative, so none can come up.
    pairs = [(a, b) for a, b in pairs if a + b >= INT64_MIN and a - b >= INT64_MIN]
    texts = run(client, SUM_AND_DIFFERENCE, [value for pair in pairs for value in pair])
    wanted = [value for a, b in pairs for value in (a + b, a - b)]
    assert texts == [b"%d" % value if value <= INT64_MAX else b"none" for value in wanted]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"-", b"+1", b"-0", b"00", b"007", b"-01", b"--1", b"1-", b" 1", b"1 ", b"1\n", b"1\x00", b"\x001"),
        *(b"1.0", b"1e3", b"0x1F", b"nan", b"inf", b"\xff", b"9223372036854775808", b"-9223372036854775809"),
        *(b"9999999999999999999", b"10000000000000000000", b"18446744073709551617", b"9" * 500),
    ],
)
def test_what_is_not_canonical_is_refused(client: redis.Redis, text: bytes) -> None:
    assert run(client, ROUND_TRIP, [text]) == [b"none"]
