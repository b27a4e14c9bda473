"""Runs a kind's script on a temporary Redis, and reads everything that it changed."""

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.kit.samples import ANY, DEADLINE, NOW, Content, Sample, json_text, member_of
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Script
from sweeperd.sweep.configured import configured
from sweeperd.sweep.fields import json_fields, member_fields
from sweeperd.sweep.kind import Decision
from sweeperd.text import whole

#: A function of the user that reads what no expiry may change.
Books = Callable[["redis.Redis"], object]
TRACE = "0" * 32
#: The time limits of a run and of stopping its script, seconds.
RUN_LIMIT, STOP_LIMIT = 3.0, 5.0
#: How far a TTL may run down between two snapshots, ms.
SLACK_MS = 10_000
#: A key and members of index and quarantine that no run may touch.
BYSTANDER = b"prove:bystander"
NEIGHBOURS = (b"!prove", b"~prove")
_EMPTY: dict[str, Any] = {"hash": {}, "zset": {}, "stream": [], "set": frozenset(), "list": [], "string": b""}


class NoEnd(Exception):
    """A run exceeded RUN_LIMIT and was stopped."""


@dataclass(frozen=True)
class Snapshot:
    """The content of every key."""

    #: Name -> type and content; name -> TTL in ms, negative without one.
    contents: Mapping[bytes, tuple[str, Any]]
    ttls: Mapping[bytes, int]
    books: tuple[object, ...]
    #: Channel and text of each message since the sample was loaded.
    messages: tuple[tuple[bytes, bytes], ...]

    def changed_since(self, before: "Snapshot") -> set[bytes]:
        """The keys that were created, changed or removed, or whose TTL was."""
        names = self.contents.keys() | before.contents.keys()
        return {
            name
            for name in names
            if self.contents.get(name) != before.contents.get(name)
            or _ttl_changed(before.ttls.get(name, -1), self.ttls.get(name, -1))
        }

    def of(self, name: bytes, type_: str) -> Any:
        """The content of a key, empty if the key is missing or of another type."""
        held, content = self.contents.get(name, (type_, None))
        return _EMPTY[type_] if held != type_ or content is None else content


def _ttl_changed(before: int, now: int) -> bool:
    """Whether a TTL was set or removed, instead of only running down."""
    return (before < 0) != (now < 0) or not before - SLACK_MS <= now <= before


class Lab:
    """A kind on a temporary Redis. `script` replaces the kind's script; `books` adds to the books of the samples."""

    def __init__(
        self,
        client: "redis.Redis",
        settings: Settings,
        kind: KindSettings,
        script: str | None = None,
        books: Books | None = None,
        prefix: str = "",
    ) -> None:
        self.client: Any = client
        self.settings = kind
        self._all_settings = settings
        self.books = books
        self._messages: list[tuple[bytes, bytes]] = []
        self._listener: Any = None
        #: Of the last run: bounds of the time that the script read, and the TTL of an ended hash; ms.
        self.moment = (0, 0)
        self.retention = 0
        self.keys = Keys(prefix)
        self.kind = configured(kind, settings, self.keys)
        self.text = self.kind.script.source if script is None else script
        self._script = Script("prove", self.text)

    def with_prefix(self, prefix: str) -> "Lab":
        return Lab(self.client, self._all_settings, self.settings, self.text, prefix=prefix)

    def load(self, sample: Sample, *, more: int = 0) -> None:
        """Empty Redis and load this sample, with `more` copies under other ids."""
        self.client.flushall()
        pipeline = self.client.pipeline(transaction=False)
        pipeline.set(BYSTANDER, "untouched")
        self.write(sample.keys, pipeline)
        pipeline.zadd(self.kind.index, dict.fromkeys(NEIGHBOURS, self.score(DEADLINE)))
        pipeline.zadd(self.kind.quarantine, dict.fromkeys(NEIGHBOURS, DEADLINE))
        if self.kind.protected:
            pipeline.zadd(self.kind.protected, dict.fromkeys(NEIGHBOURS, DEADLINE))
        for key in filter(None, (self.kind.notes, self.kind.marks)):
            pipeline.hset(key, mapping=dict.fromkeys(NEIGHBOURS, "another"))
        pipeline.xadd(self.keys.events, {"type": "prove"}, id="1-1")
        for entry in self.entries(sample, more):
            self.put(sample, entry, pipeline)
        pipeline.execute()
        self._collect_messages()
        self._messages.clear()

    def write(self, keys: dict[str, Content], client: Any = None) -> None:
        client = client or self.client
        for name, content in keys.items():
            ((type_, value),) = content.items()
            client.delete(self.named(name))
            _WRITERS[type_](client, self.named(name), value)

    def named(self, key: str) -> bytes:
        return self.keys.prefix + key.encode("utf-8", "surrogateescape")

    def id(self, sample: Sample) -> bytes:
        """The sample's id. A member is its fields."""
        member = self.kind.form == "member" and sample.hash
        return _bytes_of(member_of(self.settings, sample.hash) if member else sample.id)

    def entries(self, sample: Sample, more: int = 0) -> list[bytes]:
        first = self.id(sample)
        return [first, *(first + f"-{number}".encode() for number in range(more))]

    def entry_key(self, entry: bytes) -> bytes:
        return self.kind.call(entry, TRACE).keys[0]

    def put(self, sample: Sample, entry: bytes, client: Any = None) -> None:
        """Write an entry with the sample's fields, and its index entry."""
        client, key = client or self.client, self.entry_key(entry)
        if self.kind.form == "json":
            client.set(key, _bytes_of(json_text(sample.hash, self.settings.each)))
        elif self.kind.form == "hash":
            client.delete(key)
            if sample.hash:  # Redis has no empty hash
                client.hset(key, mapping=sample.hash)
        client.zadd(self.kind.index, {entry: self.score(sample.due)})

    def remove(self, sample: Sample) -> None:
        """Remove the entry without its index entry; of a member the index entry."""
        entry = self.id(sample)
        if self.kind.form == "member":
            self.client.zrem(self.kind.index, entry)
        else:
            self.client.delete(self.entry_key(entry))

    def score(self, ms: int) -> float:
        return ms / self.kind.unit_ms

    def fields(self, snapshot: Snapshot, entry: bytes) -> dict[bytes, bytes]:
        if self.kind.form == "member":
            return member_fields(self.kind.parts, entry)
        if self.kind.form == "json":
            return json_fields(snapshot.of(self.entry_key(entry), "string"))
        fields: dict[bytes, bytes] = snapshot.of(self.entry_key(entry), "hash")
        return fields

    def deadline(self, snapshot: Snapshot, entry: bytes) -> int | None:
        """The entry's deadline, ms; None if it cannot be read."""
        text = self.due_text(snapshot, entry)
        if self.settings.deadline is not None and self.kind.unit_ms == 1:
            return whole(text)
        try:
            return round(float(text) * self.kind.unit_ms)
        except (ValueError, OverflowError):
            return None

    def due_text(self, snapshot: Snapshot, entry: bytes) -> bytes:
        """The deadline as it is stored. If it is the score of the index, a note counts that has this score."""
        if self.settings.deadline is not None:
            return self.fields(snapshot, entry).get(self.settings.deadline.encode(), b"")
        score = snapshot.of(self.kind.index, "zset").get(entry)
        noted, _, stands_for = snapshot.of(self.kind.notes or b"", "hash").get(entry, b"").partition(b" ")
        if noted and stands_for and float(stands_for) == score:
            return bytes(noted)
        return b"" if score is None else b"%.17g" % score

    def run(
        self,
        entry: bytes,
        *,
        at: int | None = None,
        bogus: tuple[str, ...] = (),
        client: Any = None,
        proven: bool = True,
    ) -> Decision | redis.RedisError:
        """Run the script once, with its clock fixed at `at` if given. Raises NoEnd."""
        call = self.kind.call(entry, TRACE, proven)
        script = self._script if at is None else at_moment(self.text, at)
        self.retention = int(call.args[2])
        since = self.now() if at is None else at
        try:
            reply = (client or self.client).eval(script.source, len(call.keys), *call.keys, *call.args, *bogus)
        except redis.TimeoutError as error:
            self._stop()
            raise NoEnd(f"no end after {RUN_LIMIT:g} s") from error
        except redis.RedisError as error:
            return error
        finally:
            self.moment = (since, self.now() if at is None else at)
        try:
            return self.kind.decision(entry, reply)
        except (ValueError, LookupError, TypeError, AttributeError):
            return redis.InvalidResponse(f"the script replied {reply!r}")

    def now(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _stop(self) -> None:
        """Stop the script, so that Redis stays usable. SCRIPT KILL works, because user code runs before any write."""
        until = time.monotonic() + STOP_LIMIT
        while time.monotonic() < until:
            try:
                self.client.script_kill()
            except redis.RedisError as error:
                if str(error).startswith("NOTBUSY"):
                    return
            time.sleep(0.01)

    def snapshot(self, sample: Sample) -> Snapshot:
        read = sorted(self.client.eval(_READ_ALL, 0))
        contents = {name: _as_read(type_.decode(), value) for name, type_, _, value in read}
        books: list[object] = [self._sum(group, contents) for group in sample.books]
        if self.books is not None:
            books.append(self.books(self.client))
        self._collect_messages()
        return Snapshot(contents, {name: ttl for name, _, ttl, _ in read}, tuple(books), tuple(self._messages))

    def _collect_messages(self) -> None:
        if not self.settings.channels:
            return
        if self._listener is None:
            self._listener = self.client.pubsub()
            self._listener.psubscribe("*")
        self._listener.ping("until here")
        while (message := self._listener.get_message(timeout=RUN_LIMIT)) is not None:
            if message["type"] == "pong":
                return
            if message["type"] == "pmessage":
                self._messages.append((message["channel"], message["data"]))

    def _sum(self, group: tuple[str, ...], contents: Mapping[bytes, tuple[str, Any]]) -> int | None:
        """None if a counter is missing or not a number."""

        def held(counter: str) -> Any:
            key, _, field = counter.partition(" ")
            type_, value = contents.get(self.named(key), ("", b""))
            if type_ != ("hash" if field else "string"):
                return b""
            return value.get(field.encode(), b"") if field else value

        try:
            return sum(int(held(counter)) for counter in group)
        except ValueError:
            return None

    def counter(self, name: str) -> str:
        """The value of a counter, "KEY FIELD" or "KEY", or "". Raises redis.ResponseError."""
        key, _, field = name.partition(" ")
        value = self.client.hget(self.named(key), field) if field else self.client.get(self.named(key))
        return "" if value is None else value.decode(errors="backslashreplace")


@functools.cache
def at_moment(text: str, now: int) -> Script:
    """The script with a fixed time instead of each call of TIME."""
    reading = f"({{'{now // 1000}', '{now % 1000 * 1000 + 999}'}})"
    return Script("prove", re.sub(r"\b[\w.]*call\('TIME'\)", reading, text))


def normal(type_: str, value: Any) -> tuple[str, Any]:
    """A type and its content in the form that snapshots compare."""
    match type_:
        case "hash":
            return type_, {_bytes(name): _bytes(held) for name, held in value.items()}
        case "zset":
            return type_, {_bytes(member): _score(score) for member, score in dict(value).items()}
        case "set":
            return type_, frozenset(map(_bytes, value))
        case "list":
            return type_, list(map(_bytes, value))
        case "string":
            return type_, _bytes(value)
    return type_, value


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _score(value: Any) -> float | bytes:
    return value.encode() if value in (ANY, NOW) else float(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _as_read(type_: str, value: Any) -> tuple[str, Any]:
    match type_:
        case "hash" | "zset":
            value = _paired(value)
        case "stream":
            value = [(id_, _paired(fields)) for id_, fields in value]
    return normal(type_, value)


def _paired(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


#: Name, type, TTL in ms and content of every key.
_READ_ALL = """
local reads = {
  hash = {'HGETALL'}, string = {'GET'}, set = {'SMEMBERS'}, list = {'LRANGE', 0, -1},
  zset = {'ZRANGE', 0, -1, 'WITHSCORES'}, stream = {'XRANGE', '-', '+'},
}
local world = {}
for number, name in ipairs(redis.call('KEYS', '*')) do
  local type_ = redis.call('TYPE', name).ok
  local read = reads[type_]
  local content = redis.call(read[1], name, unpack(read, 2))
  world[number] = {name, type_, redis.call('PTTL', name), content}
end
return world
"""
_WRITERS: dict[str, Any] = {
    "hash": lambda pipeline, name, value: pipeline.hset(name, mapping=value),
    "string": lambda pipeline, name, value: pipeline.set(name, value),
    "set": lambda pipeline, name, value: pipeline.sadd(name, *value),
    "zset": lambda pipeline, name, value: pipeline.zadd(name, value),
    "list": lambda pipeline, name, value: pipeline.rpush(name, *value),
}
