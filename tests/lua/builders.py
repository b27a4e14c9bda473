"""A small world of reservations and budgets on a real server, and a snapshot of all of it."""

import contextlib
import copy
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import redis

from sweeperd.store import Keys
from sweeperd.store.scripts import Call, Script

Value = bytes | str | int

RID = b"r1"
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

#: The default deadline, and a frozen clock's time. Neither is near the real time, so a real clock can't pass for NOW.
DEADLINE = 1_700_000_000_000
NOW = 2_500_000_000_123
FAR_FUTURE = 9_000_000_000_000

RETENTION = 30 * 86_400_000
TRACE = b"0123456789abcdef0123456789abcdef"
SCOPES = ("tenant:acme", "tenant:acme/workspace:prod")

#: The entry of a snapshot that names the keys which have a TTL.
VOLATILE = b"(keys with a TTL)"

Snapshot = dict[bytes, Any]


def json_bytes(*scopes: str | bytes) -> bytes:
    """The scopes as a JSON array, their bytes as they are."""
    return b"[" + b",".join(b'"' + (s if isinstance(s, bytes) else s.encode()) + b'"' for s in scopes) + b"]"


def scopes_of(json_array: bytes) -> list[bytes]:
    """The strings in a JSON array, in bytes; they need not be UTF-8."""
    text: list[str] = json.loads(json_array.decode("utf-8", "surrogateescape"))
    return [scope.encode("utf-8", "surrogateescape") for scope in text]


@functools.cache
def frozen(at: int, name: str = "sweep/expire") -> Script:
    """The script with its one reading of TIME replaced by a fixed one, for edges that a moving clock can't hit."""
    return frozen_text(at, name, Script(name).source)


@functools.cache
def frozen_text(at: int, name: str, text: str, readings: int = 1) -> Script:
    """The same of a script with this text, which reads TIME so often."""
    # The last 999 microseconds of the millisecond: rounding up would be seen.
    reading = f"({{'{at // 1000}', '{at % 1000 * 1000 + 999}'}})"
    source, count = re.subn(r"\b[\w.]*call\('TIME'\)", reading, text)
    assert count == readings, "the script reads TIME in one place"
    script = Script(name, source)
    script.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return script


class World:
    """Writes what the reservation service writes, runs the script, and reads back everything."""

    def __init__(self, client: "redis.Redis", prefix: str = "", *, rivals: bool = False) -> None:
        #: Others run the script at the same time, so that what explain.lua says need not hold any more.
        self.rivals = rivals
        #: Whether grace_scan.lua scans all of the index before each run.
        self.looks = True
        self.client: Any = client
        self.keys = Keys(prefix)
        self.script = Script("sweep/expire")
        self.explaining = Script("ops/explain")
        self.looking = Script("sweep/grace_scan")

    @property
    def version(self) -> tuple[int, ...]:
        """Of the server."""
        return tuple(map(int, self.client.info("server")["redis_version"].split(".")))

    @contextlib.contextmanager
    def batch(self) -> Iterator["World"]:
        """The same world, written in one round trip when the block ends."""
        world = copy.copy(self)
        world.client = self.client.pipeline(transaction=False)
        yield world
        world.client.execute()

    def now(self) -> int:
        """Redis's clock, ms."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def budget_key(self, scope: str | bytes, unit: str | bytes = "TOKENS") -> bytes:
        parts = [part if isinstance(part, bytes) else part.encode() for part in (scope, unit)]
        return self.keys.budget_stem + b":".join(parts)

    def reservation(self, rid: bytes = RID, /, *, indexed: bool = True, **fields: Value | None) -> bytes:
        """An overdue reservation of 100 TOKENS. A field given as None is left out. Returns its key."""
        default: dict[str, Value | None] = {
            "reservation_id": rid,
            "tenant": "acme",
            "state": "ACTIVE",
            "estimate_amount": "100",
            "estimate_unit": "TOKENS",
            "scope_path": SCOPES[-1],
            "affected_scopes": json_bytes(*SCOPES, "tenant:acme/no:budget"),
            "budgeted_scopes": json_bytes(*SCOPES),
            "created_at": DEADLINE - 60_000,
            "expires_at": DEADLINE,
            "grace_ms": "5000",
            "extension_count": "2",
            "metadata_json": '{"left": "alone"}',
        }
        key = self.keys.reservation(rid)
        present = {name: value for name, value in (default | fields).items() if value is not None}
        if present:
            self.client.hset(key, mapping=present)
        if indexed:
            self.index(rid)
        return key

    def index(self, rid: bytes = RID, score: int = DEADLINE) -> None:
        self.client.zadd(self.keys.reservation_index, {rid: score})

    def budget(
        self,
        scope: str | bytes,
        unit: str | bytes = "TOKENS",
        *,
        reserved: Value | None = 1000,
        remaining: Value | None = 5000,
    ) -> bytes:
        """A budget; a field given as None is left out. Returns its key."""
        key = self.budget_key(scope, unit)
        fields: dict[str, Value | None] = {
            "allocated": "10000",
            "remaining": remaining,
            "reserved": reserved,
            "spent": "4000",
            "debt": "7",
            "overdraft_limit": "0",
            "is_over_limit": "false",
            "status": "ACTIVE",
        }
        self.client.hset(key, mapping={name: value for name, value in fields.items() if value is not None})
        return key

    def amounts(self, scope: str | bytes, unit: str | bytes = "TOKENS") -> tuple[bytes, bytes]:
        """What the budget holds: reserved, remaining."""
        (amounts,) = self.amounts_of([scope], unit).values()
        return amounts

    def amounts_of(
        self, scopes: Iterable[str | bytes], unit: str | bytes = "TOKENS"
    ) -> dict[str | bytes, tuple[bytes, bytes]]:
        """What each budget holds: reserved, remaining."""
        scopes, pipeline = list(scopes), self.client.pipeline(transaction=False)
        for scope in scopes:
            pipeline.hmget(self.budget_key(scope, unit), "reserved", "remaining")
        return dict(zip(scopes, map(tuple, pipeline.execute()), strict=True))

    def call(
        self, rid: bytes = RID, *, grace: int = 0, retention: int = RETENTION, extra: Sequence[Value] = ()
    ) -> Call:
        keys = self.keys
        return Call(
            keys=[keys.reservation(rid), keys.reservation_index, keys.events, keys.quarantine],
            args=[rid, keys.budget_stem, grace, retention, TRACE, *extra],
        )

    def expire(self, rid: bytes = RID, *, at: int | None = None, **call: Any) -> list[Any]:
        """
        Run the script once; on a clock frozen at `at` if that is given. What explain.lua says that it will do comes
        first, and what grace_scan.lua says, so each test of the script is one of these too: they say what happens,
        and change nothing.
        """
        if self.rivals:
            return cast(list[Any], self.script.run(self.client, self.call(rid, **call)))
        script, explaining = (self.script, self.explaining) if at is None else (frozen(at), frozen(at, "ops/explain"))
        in_grace = self.looked(rid, at, call.get("grace", 0))
        (told,) = explaining.run_many(self.client, [self.call(rid, **call)])
        try:
            reply: list[Any] = script.run(self.client, self.call(rid, **call))
        except redis.ResponseError:
            assert isinstance(told, redis.ResponseError), told
            raise
        assert not isinstance(told, Exception), told
        same = 2 if at is None and reply[0] == b"expired" else len(reply)  # then comes how late it is
        assert told[0][:same] == reply[:same]
        assert in_grace in (None, reply[0] == b"in_grace")
        return reply

    def looked(self, rid: bytes, at: int | None, grace: int) -> bool | None:
        """Whether the page says that it is in grace; None if it is not in the index, or not scanned."""
        if not self.looks:
            return None
        script = self.looking if at is None else frozen(at, "sweep/grace_scan")
        stem = self.keys.reservation(b"")
        call = Call([self.keys.reservation_index], ["+inf", "-inf", 0, 1000, stem, grace])
        try:
            entries, ends, *_ = script.run(self.client, call)
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return None
        end = dict(zip(entries[::2], ends, strict=True)).get(rid)
        return None if end is None else end > 0

    def events(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = self.client.xrange(self.keys.events)
        return entries

    def snapshot(self) -> Snapshot:
        """The content of every key of the database, under the prefix or not, and which of them have a TTL."""
        names = self.client.keys("*")
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name).pttl(name)
        told = pipeline.execute()
        # One with a TTL may have ended meanwhile.
        found = [each for each in zip(names, told[::2], told[1::2], strict=True) if each[1] != b"none"]
        names, types, ttls = zip(*found, strict=True) if found else ((), (), ())
        readers = {
            b"string": pipeline.get,
            b"hash": pipeline.hgetall,
            b"zset": lambda name: pipeline.zrange(name, 0, -1, withscores=True),
            b"set": pipeline.smembers,
            b"list": lambda name: pipeline.lrange(name, 0, -1),
            b"stream": pipeline.xrange,
        }
        for name, kind in zip(names, types, strict=True):
            readers[kind](name)
        content: Snapshot = dict(zip(names, pipeline.execute(), strict=True))
        for name, kind in zip(names, types, strict=True):
            if kind == b"zset":
                content[name] = dict(content[name])
        return content | {VOLATILE: {name for name, ttl in zip(names, ttls, strict=True) if ttl >= 0}}

    def without_stream_ids(self, snapshot: Snapshot) -> Snapshot:
        """What two runs have in common: all but the ids that the stream gave to their events."""
        key = self.keys.reservation(RID)
        row: Any = snapshot.get(key)
        if isinstance(row, dict):
            row = {name: value for name, value in row.items() if name != b"expired_event"}
        return snapshot | {self.keys.events: [fields for _, fields in self.events()], key: row}

    def without_index_entry(self, before: Snapshot, rid: bytes = RID) -> Snapshot:
        """What `before` is to become if the index entry goes and nothing else happens."""
        after = copy.deepcopy(before)
        del after[self.keys.reservation_index][rid]
        return after

    def check_quarantined(self, reason: bytes, rid: bytes = RID) -> None:
        """Run at NOW: the entry is set aside, its hash is marked, and nothing else has changed anywhere."""
        before = self.snapshot()
        key, marked = self.keys.reservation(rid), reason != b"WRONG_TYPE"
        tenant = before[key].get(b"tenant", b"") if marked else b""
        assert self.expire(rid, at=NOW) == [b"quarantined", reason, tenant]
        after = self.without_index_entry(before, rid)
        after.setdefault(self.keys.quarantine, {})[rid] = NOW
        if marked:
            after[key] |= {b"quarantined_at": b"%d" % NOW, b"quarantine_reason": reason}
        assert self.snapshot() == after


def seed_bystanders(world: World) -> World:
    """An entry of each kind that no call is about."""
    with world.batch() as batch:
        batch.reservation(b"bystander", budgeted_scopes='["tenant:bystander"]')
        batch.budget("tenant:bystander")
        batch.budget(SCOPES[0], "USD")
        batch.client.zadd(batch.keys.quarantine, {b"earlier": 1})
    return world


def seed(world: World) -> World:
    """An overdue reservation RID whose two budgets exist, among bystanders."""
    seed_bystanders(world)
    with world.batch() as batch:
        batch.reservation(RID)
        for scope in SCOPES:
            batch.budget(scope)
    return world
