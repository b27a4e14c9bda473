"""Entries of the example of seat holds expired a second, beside reservations."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from benchmarks.lab import WARM, Lab
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server

SETTINGS = Path(__file__).parents[2] / "examples" / "seat-holds" / "config.toml"
#: Seats of each hold, and how many holds one call makes.
SEATS, PIECE = 3, 1000

#: What the example's writer writes, for the holds ARGV[1] to ARGV[2], with deadlines that passed a minute ago.
FILL = """
local deadline = (redis.call('TIME')[1] - 60) * 1000
for number = ARGV[1], ARGV[2] do
  local id, until_ = string.format('%036d', number), string.format('%d', deadline + number % 1000)
  redis.call('HSET', 'seats:hold:' .. id, 'state', 'HELD', 'show', 'hamlet', 'qty', ARGV[3], 'customer', 'acme',
    'expires_at', until_)
  redis.call('ZADD', 'seats:ttl', until_, id)
end
redis.call('HINCRBY', 'seats:hamlet', 'held', (ARGV[2] - ARGV[1] + 1) * ARGV[3])
"""


@contextlib.contextmanager
def overdue_seats(lab: Lab, entries: int) -> Iterator[Server]:
    """A warm server with so many overdue holds, which the block is to expire: the books are checked at its end."""
    with lab.server() as server, redis.Redis.from_url(server.url, protocol=2) as client:
        client.hset("seats:hamlet", "free", 0)
        for first in range(0, entries, PIECE):
            client.eval(FILL, 0, first, min(first + PIECE, entries) - 1, SEATS)
        yield server
        found = (client.xlen("sweeperd:events"), *client.hmget("seats:hamlet", "free", "held"))
        if found != (WARM + entries, b"%d" % (entries * SEATS), b"0"):
            raise RuntimeError(f"the books do not balance: events, free and held are {found}")


def measure(lab: Lab) -> Sample:
    """One `--once` of the installed command on each."""
    entries = lab.size("entries", 50_000, 5_000)
    with lab.overdue(entries) as server:
        reservations = lab.once(server).entries_per_second
    with overdue_seats(lab, entries) as server:
        seats = lab.once(server, config=SETTINGS).entries_per_second
    return Sample(
        {"seats": seats / reservations},
        {"seats_per_second": seats, "reservations_per_second": reservations},
    )


ROW = Row(
    "seats",
    "seat holds expired a second, a kind without a script, one process, default settings",
    "reservations of four scopes",
    {"seats": Goal("at_least", 0.7)},
    measure,
)
