"""What is in Redis: an atomic reading of the index while the load runs, and a count of everything at the end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from sweeperd.ledger import Balance, Ledger
from sweeperd.store import Keys
from sweeperd.store.scripts import Call, Script
from tests.support.traffic.plan import BUDGETS, UNIT

# One script is one moment: a reservation that ends between two commands of a client would seem a fault.
#
# KEYS[1] -> reservation:ttl  ZSET  the index
# ARGV[1] -> what comes before the id in the name of a reservation's HASH
# ARGV[2..] -> ids of reservations that may be ACTIVE
#
# Returns {entries of the index, those of them without an ACTIVE hash, ACTIVE hashes among the ids without an entry}.
_LOOK = Script(
    "look",
    """
    local entries = redis.call('ZRANGE', KEYS[1], 0, -1)
    local without_hash, without_entry = 0, 0
    for i = 1, #entries do
      if redis.call('HGET', ARGV[1] .. entries[i], 'state') ~= 'ACTIVE' then
        without_hash = without_hash + 1
      end
    end
    for i = 2, #ARGV do
      if redis.call('HGET', ARGV[1] .. ARGV[i], 'state') == 'ACTIVE' and not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
        without_entry = without_entry + 1
      end
    end
    return {#entries, without_hash, without_entry}
    """,
)


@dataclass(frozen=True)
class IndexLook:
    """The index and the hashes at one moment."""

    entries: int
    #: Entries whose hash is not there or not ACTIVE.
    without_hash: int
    #: ACTIVE hashes that have no entry.
    without_entry: int


@dataclass(frozen=True)
class Census:
    """All that is in Redis when it is quiet."""

    #: State -> reservation hashes.
    reservations: dict[str, int]
    #: Records of answers under idempotency keys.
    idempotency_keys: int
    #: Entries of the event stream.
    events: int
    #: Over all hashes that there are.
    index: IndexLook
    budgets: tuple[Balance, ...]


def look(client: redis.Redis, keys: Keys, recent: Sequence[bytes]) -> IndexLook:
    """
    The index and these reservations, atomically: all entries are read, but only ACTIVE hashes among `recent`.
    Raises redis.RedisError.
    """
    return IndexLook(*_LOOK.run(client, Call([keys.reservation_index], [keys.reservation(b""), *recent])))


def take(client: redis.Redis, keys: Keys, ledger: Ledger) -> Census:
    """Count everything; right only while no client writes. Raises redis.RedisError, LedgerError."""
    stem = keys.reservation(b"")
    found: set[bytes] = set()  # SCAN may return a key twice
    idempotency_keys: set[bytes] = set()
    for key in client.scan_iter(count=1000):
        if key.startswith(stem):
            found.add(key.removeprefix(stem))
        elif key.startswith(b"idem:"):
            idempotency_keys.add(key)
    states: Counter[str] = Counter()
    active: set[bytes] = set()
    ids = list(found)
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        pipeline = client.pipeline(transaction=False)
        for reservation_id in some:
            pipeline.hget(stem + reservation_id, "state")
        for reservation_id, state in zip(some, pipeline.execute(), strict=True):
            states[(state or b"none").decode()] += 1
            if state == b"ACTIVE":
                active.add(reservation_id)
    entries = set(client.zrange(keys.reservation_index, 0, -1))
    return Census(
        dict(states),
        len(idempotency_keys),
        client.xlen(keys.events),
        IndexLook(len(entries), len(entries - active), len(active - entries)),
        tuple(ledger.budget(scope, UNIT) for scope in BUDGETS),
    )
