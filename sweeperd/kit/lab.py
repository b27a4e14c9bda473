"""One kind on one embedded Redis: load a sample, run the script, and see all that has changed."""

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import OWN_FIELDS, KindSettings
from sweeperd.kit.samples import DEADLINE, Sample
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Script
from sweeperd.sweep.configured_kinds import configured
from sweeperd.sweep.kind import Decision, Outcome

#: What no expiry may change, read by a function of the user.
Books = Callable[["redis.Redis"], object]
TRACE = "0" * 32
#: The longest that one run may take, seconds. Redis stops a script on request only after `lua-time-limit`, 5 s.
RUN_LIMIT = 6.0
#: The longest that Redis may take to stop a script, seconds.
STOP_LIMIT = 5.0
#: A key under a name of no kind, and the outcomes that leave everything but the index as it is.
BYSTANDER = b"prove:bystander"
_LEAVING = (Outcome.SKIPPED, Outcome.NOT_FOUND, Outcome.IN_GRACE)


class NoEnd(Exception):
    """A run of the script took longer than RUN_LIMIT, and was stopped."""


@dataclass(frozen=True)
class World:
    """The content of every key, to compare."""

    dumps: Mapping[bytes, Any]
    fields: Mapping[bytes, bytes]
    books: tuple[object, ...]
    events: int

    def changed_since(self, before: "World") -> set[bytes]:
        """The keys that were made, changed or removed."""
        names = self.dumps.keys() | before.dumps.keys()
        return {name for name in names if self.dumps.get(name) != before.dumps.get(name)}


class Lab:
    """
    `script` replaces the text of the kind's script, for tests of the kit itself. `books` returns what no expiry may
    change, in addition to the books of the samples.
    """

    def __init__(
        self,
        client: "redis.Redis",
        settings: Settings,
        kind: KindSettings,
        script: str | None = None,
        books: Books | None = None,
    ) -> None:
        self.client: Any = client
        self.settings = kind
        self._books = books
        self.keys = Keys()
        self.kind = configured(kind, settings, self.keys)
        self.text = self.kind.script.source if script is None else script
        self._script = Script("prove", self.text)

    def load(self, sample: Sample, *, more: int = 0) -> None:
        """An empty Redis with this sample; with `more` of them under ids of their own."""
        self.client.flushall()
        pipeline = self.client.pipeline(transaction=False)
        pipeline.set(BYSTANDER, "untouched")
        for name, content in sample.keys.items():
            ((type_, value),) = content.items()
            _WRITERS[type_](pipeline, name, value)
        for entry in self.entries(sample, more):
            pipeline.hset(self.hash_key(entry), mapping=sample.hash)
            pipeline.zadd(self.kind.index, {entry: DEADLINE})
        pipeline.execute()

    @staticmethod
    def entries(sample: Sample, more: int = 0) -> list[bytes]:
        """The ids of the sample and of `more` like it."""
        return [sample.id.encode(), *(f"{sample.id}-{number}".encode() for number in range(more))]

    def hash_key(self, entry: bytes) -> bytes:
        """The entry's hash."""
        return self.kind.call(entry, TRACE).keys[0]

    def run(
        self, entry: bytes, *, at: int | None = None, bogus: tuple[str, ...] = (), client: Any = None
    ) -> Decision | redis.RedisError:
        """Run the script once, on a clock that stands still at `at` where that is given. Raises NoEnd."""
        call = self.kind.call(entry, TRACE)
        script = self._script if at is None else _at_moment(self.text, at)
        try:
            reply = (client or self.client).eval(script.source, len(call.keys), *call.keys, *call.args, *bogus)
        except redis.TimeoutError as error:
            self._stop()
            raise NoEnd(f"no end after {RUN_LIMIT:g} s") from error
        except redis.RedisError as error:
            return error
        return self.kind.decision(entry, reply)

    def _stop(self) -> None:
        """
        Stop the script that runs, since other proofs may follow on this Redis. It can be stopped: the code of a user
        runs before the first write. Redis says so at once, and does it a little later.
        """
        until = time.monotonic() + STOP_LIMIT
        while time.monotonic() < until:
            try:
                self.client.script_kill()
            except redis.RedisError as error:
                if str(error).startswith("NOTBUSY"):
                    return
            time.sleep(0.01)

    def world(self, sample: Sample) -> World:
        """Everything as it is now."""
        names = sorted(self.client.keys("*"))
        types = [self.client.type(name) for name in names]
        pipeline = self.client.pipeline(transaction=False)
        for name, type_ in zip(names, types, strict=True):
            # The dump of a hash is another one after a read may have moved its fields.
            (pipeline.hgetall if type_ == b"hash" else pipeline.dump)(name)
        dumps = dict(zip(names, pipeline.execute(), strict=True))
        entry = self.hash_key(sample.id.encode())
        fields = self.client.hgetall(entry) if self.client.type(entry) == b"hash" else {}
        events = self.client.xlen(self.keys.events) if self.client.type(self.keys.events) == b"stream" else 0
        books: list[object] = [self._sum(group) for group in sample.books]
        if self._books is not None:
            books.append(self._books(self.client))
        return World(dumps, fields, tuple(books), events)

    def _sum(self, group: tuple[str, ...]) -> int | None:
        """None where a counter is absent or no number."""
        try:
            return sum(int(self.counter(counter)) for counter in group)
        except (ValueError, redis.ResponseError):
            return None

    def counter(self, name: str) -> str:
        """What a counter holds, "KEY FIELD" or "KEY"; empty where it is absent. Raises redis.ResponseError."""
        key, _, field = name.partition(" ")
        value = self.client.hget(key, field) if field else self.client.get(key)
        return "" if value is None else value.decode(errors="backslashreplace")

    # ---- judgement

    def problem(self, sample: Sample, result: Decision | redis.RedisError, before: World) -> str:
        """What is wrong with the result of one run; empty where nothing is."""
        after = self.world(sample)
        changed = after.changed_since(before)
        if isinstance(result, redis.RedisError):
            return f"an error, and {_names(changed)} changed: {result}" if changed else f"an error: {result}"
        index, entry = self.kind.index, self.hash_key(sample.id.encode())
        if result.outcome is Outcome.EXPIRED:
            return self._problem_of_expiry(sample, before, after, changed)
        allowed = {index}
        if result.outcome is Outcome.QUARANTINED:
            allowed |= {entry, self.kind.quarantine}
            own = {name.encode() for name in OWN_FIELDS}
            if {n: v for n, v in after.fields.items() if n not in own} != dict(before.fields):
                return "a quarantine changed the hash itself"
            if before.fields and b"quarantine_reason" not in after.fields:
                return "a quarantine without its reason in the hash"
            if self.client.zscore(self.kind.quarantine, sample.id) is None:
                return "a quarantine that holds no entry"
        elif result.outcome not in _LEAVING:
            allowed |= {entry}
        if changed - allowed:
            return f"{result.outcome} ({result.detail} {result.why}), and {_names(changed - allowed)} changed"
        return ""

    def _problem_of_expiry(self, sample: Sample, before: World, after: World, changed: set[bytes]) -> str:
        entry = self.hash_key(sample.id.encode())
        if after.events != before.events + 1:
            return f"{after.events - before.events} events for one expiry"
        if self.client.zscore(self.kind.index, sample.id) is not None:
            return "expired, and still in the index"
        ended = {name.encode(): value.encode() for name, value in self.settings.ended.items()}
        if self.settings.retention_ms and not (ended.items() <= after.fields.items() and b"expired_at" in after.fields):
            return "expired, and the hash does not say so"
        if self.settings.retention_ms and self.client.pttl(entry) < self.settings.retention_ms - 10_000:
            return "expired, and the hash has no TTL, or a shorter one than its retention"
        if not self.settings.retention_ms and self.client.exists(entry):
            return "expired without retention, and the hash is still there"
        if BYSTANDER in changed:
            return "a key outside the declared patterns changed"
        if self._books is not None and before.books[-1] != after.books[-1]:
            return f"the books changed from {before.books[-1]!r} to {after.books[-1]!r}"
        pairs = zip(sample.books, before.books, after.books, strict=False)
        differing = [group for group, then, now in pairs if then != now]
        if differing:
            return f"the sum of {' + '.join(differing[0])} changed"
        return ""


@functools.cache
def _at_moment(text: str, now: int) -> Script:
    """The script with each reading of TIME replaced by a clock that stands still."""
    reading = f"({{'{now // 1000}', '{now % 1000 * 1000 + 999}'}})"
    return Script("prove", re.sub(r"\b[\w.]*call\('TIME'\)", reading, text))


def _names(keys: set[bytes]) -> str:
    return ", ".join(sorted(key.decode(errors="backslashreplace") for key in keys))


_WRITERS: dict[str, Any] = {
    "hash": lambda pipeline, name, value: pipeline.hset(name, mapping=value),
    "string": lambda pipeline, name, value: pipeline.set(name, value),
    "set": lambda pipeline, name, value: pipeline.sadd(name, *value),
    "zset": lambda pipeline, name, value: pipeline.zadd(name, value),
    "list": lambda pipeline, name, value: pipeline.rpush(name, *value),
}
