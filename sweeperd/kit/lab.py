"""A kind on an embedded Redis: load a sample, run the script, and see all changes."""

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.kit.samples import DEADLINE, Content, Sample
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Script
from sweeperd.sweep.configured import configured
from sweeperd.sweep.kind import Decision

#: The books that no expiry may change, read by a function of the user.
Books = Callable[["redis.Redis"], object]
TRACE = "0" * 32
#: The longest time of one run, seconds. Redis stops a script on request only after `lua-time-limit`, 5 s if not set.
RUN_LIMIT = 3.0
#: The longest time for Redis to stop a script, seconds.
STOP_LIMIT = 5.0
#: How far a TTL may have run down between two looks, ms.
SLACK_MS = 10_000
#: A key under a name of no kind; and members of index and quarantine that no run may touch.
BYSTANDER = b"prove:bystander"
NEIGHBOURS = (b"!prove", b"~prove")
_EMPTY: dict[str, Any] = {"hash": {}, "zset": {}, "stream": [], "set": frozenset(), "list": [], "string": b""}


class NoEnd(Exception):
    """A run of the script took longer than RUN_LIMIT, and was stopped."""


@dataclass(frozen=True)
class World:
    """The content of every key, to compare."""

    #: Name to type and content, and to the TTL in ms, negative if there is none.
    contents: Mapping[bytes, tuple[str, Any]]
    ttls: Mapping[bytes, int]
    books: tuple[object, ...]
    #: The messages since the sample was loaded: channel and text.
    messages: tuple[tuple[bytes, bytes], ...]

    def changed_since(self, before: "World") -> set[bytes]:
        """The keys made, changed or removed, or whose TTL was set or taken away."""
        names = self.contents.keys() | before.contents.keys()
        return {
            name
            for name in names
            if self.contents.get(name) != before.contents.get(name)
            or _is_set(before.ttls.get(name, -1), self.ttls.get(name, -1))
        }

    def of(self, name: bytes, type_: str) -> Any:
        """The content of a key, or an empty content if the key is absent or of another type."""
        held, content = self.contents.get(name, (type_, None))
        return _EMPTY[type_] if held != type_ or content is None else content


def _is_set(before: int, now: int) -> bool:
    """True if a TTL was set or taken away, and not only run down."""
    return (before < 0) != (now < 0) or not before - SLACK_MS <= now <= before


class Lab:
    """
    `script` replaces the text of the kind's script, for tests of the kit itself. `books` returns values that no expiry
    may change, in addition to the books of the samples.
    """

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
        #: The last run: the moments before and after its reading of the clock, ms; and how long an ended hash has to
        #: stay, ms.
        self.moment = (0, 0)
        self.retention = 0
        self.keys = Keys(prefix)
        self.kind = configured(kind, settings, self.keys)
        self.text = self.kind.script.source if script is None else script
        self._script = Script("prove", self.text)

    def with_prefix(self, prefix: str) -> "Lab":
        """The same kind and script, with a prefix before each key."""
        return Lab(self.client, self._all_settings, self.settings, self.text, prefix=prefix)

    def load(self, sample: Sample, *, more: int = 0) -> None:
        """An empty Redis with this sample; with `more` copies under other ids."""
        self.client.flushall()
        pipeline = self.client.pipeline(transaction=False)
        pipeline.set(BYSTANDER, "untouched")
        self.write(sample.keys, pipeline)
        pipeline.zadd(self.kind.index, dict.fromkeys(NEIGHBOURS, DEADLINE))
        pipeline.zadd(self.kind.quarantine, dict.fromkeys(NEIGHBOURS, DEADLINE))
        if self.kind.protected:
            pipeline.zadd(self.kind.protected, dict.fromkeys(NEIGHBOURS, DEADLINE))
        pipeline.xadd(self.keys.events, {"type": "prove"}, id="1-1")
        for entry in self.entries(sample, more):
            pipeline.hset(self.hash_key(entry), mapping=sample.hash)
            pipeline.zadd(self.kind.index, {entry: DEADLINE})
        pipeline.execute()
        self._heard()
        self._messages.clear()

    def write(self, keys: dict[str, Content], client: Any = None) -> None:
        """Writes these keys anew."""
        client = client or self.client
        for name, content in keys.items():
            ((type_, value),) = content.items()
            client.delete(self.named(name))
            _WRITERS[type_](client, self.named(name), value)

    def named(self, key: str) -> bytes:
        """The key in Redis."""
        return self.keys.prefix + key.encode("utf-8", "surrogateescape")

    @staticmethod
    def entries(sample: Sample, more: int = 0) -> list[bytes]:
        """The ids of the sample and of `more` like it."""
        return [sample.id.encode(), *(f"{sample.id}-{number}".encode() for number in range(more))]

    def hash_key(self, entry: bytes) -> bytes:
        """The entry's hash."""
        return self.kind.call(entry, TRACE).keys[0]

    def run(
        self,
        entry: bytes,
        *,
        at: int | None = None,
        bogus: tuple[str, ...] = (),
        client: Any = None,
        proven: bool = True,
    ) -> Decision | redis.RedisError:
        """
        Run the script once, on a clock that stands still at `at`, if given; as a kind that is `proven` or not. Raises
        NoEnd.
        """
        call = self.kind.call(entry, TRACE, proven)
        script = self._script if at is None else _at_moment(self.text, at)
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
        """The server's clock, ms."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _stop(self) -> None:
        """
        Stop the running script, since other proofs may follow on this Redis. A script can be stopped: the code of a
        user runs before the first write. Redis confirms at once, and stops the script a little later.
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
        """Everything at this moment."""
        read = sorted(self.client.eval(_WORLD, 0))
        contents = {name: _as_read(type_.decode(), value) for name, type_, _, value in read}
        books: list[object] = [self._sum(group, contents) for group in sample.books]
        if self.books is not None:
            books.append(self.books(self.client))
        self._heard()
        return World(contents, {name: ttl for name, _, ttl, _ in read}, tuple(books), tuple(self._messages))

    def _heard(self) -> None:
        """Takes the messages sent until now. If the kind has no channel, nothing listens."""
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
        """None if a counter is absent or no number."""

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
        """The value of a counter, "KEY FIELD" or "KEY"; empty if the counter is absent. Raises redis.ResponseError."""
        key, _, field = name.partition(" ")
        value = self.client.hget(self.named(key), field) if field else self.client.get(self.named(key))
        return "" if value is None else value.decode(errors="backslashreplace")


@functools.cache
def _at_moment(text: str, now: int) -> Script:
    """The script with a clock that stands still in place of each reading of TIME."""
    reading = f"({{'{now // 1000}', '{now % 1000 * 1000 + 999}'}})"
    return Script("prove", re.sub(r"\b[\w.]*call\('TIME'\)", reading, text))


def normal(type_: str, value: Any) -> tuple[str, Any]:
    """A type and its content, from Redis or from a sample, in the form of a world."""
    match type_:
        case "hash":
            return type_, {_bytes(name): _bytes(held) for name, held in value.items()}
        case "zset":
            return type_, {_bytes(member): float(score) for member, score in dict(value).items()}
        case "set":
            return type_, frozenset(map(_bytes, value))
        case "list":
            return type_, list(map(_bytes, value))
        case "string":
            return type_, _bytes(value)
    return type_, value


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _as_read(type_: str, value: Any) -> tuple[str, Any]:
    """A type and its content, from the reply of _WORLD, in the form of a world."""
    match type_:
        case "hash" | "zset":
            value = _paired(value)
        case "stream":
            value = [(id_, _paired(fields)) for id_, fields in value]
    return normal(type_, value)


def _paired(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


#: Name, type, TTL in ms and content of every key.
_WORLD = """
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
