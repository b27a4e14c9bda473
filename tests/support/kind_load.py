"""The examples' kinds under load: their own writers, and the books of each that must balance at the end."""

import importlib.util
import itertools
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import redis

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Folder -> kind.
KINDS = {"seat-holds": "seat-hold", "locks": "lock", "permits": "permit", "sessions": "session"}
#: The examples of other forms, which hold no books under load.
FORMS = {"carts": "cart", "spring-sessions": "spring-session", "semaphore": "semaphore"}
#: Every so many holds, the writer itself ends or uses one.
EACH = 5


def writer_of(example: str) -> ModuleType:
    """The example's writer.py."""
    spec = importlib.util.spec_from_file_location(f"writer_{example}", EXAMPLES / example / "writer.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of_all(directory: Path) -> Path:
    """A settings file with the kinds of all examples beside reservations, and the scripts that it names."""
    texts = []
    for example in KINDS:
        text = (EXAMPLES / example / "config.toml").read_text(encoding="utf-8")
        texts.append(text.replace("[reservations]\nenabled = false\n", ""))
        for script in (EXAMPLES / example).glob("*.lua"):
            (directory / script.name).write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    path = directory / "kinds.toml"
    path.write_text("\n".join(texts), encoding="utf-8")
    assert [kind["name"] for kind in tomllib.loads("\n".join(texts))["kinds"]] == list(KINDS.values())
    return path


class Prefixed:
    """The part of a client that the writers use, with a prefix before each key."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client: Any = client
        self._prefix = prefix

    def eval(self, script: str, count: int, *words: Any) -> Any:
        keys = [self._prefix + key for key in words[:count]]
        return self._client.eval(script, count, *keys, *words[count:])

    def hset(self, key: str, **values: Any) -> Any:
        return self._client.hset(self._prefix + key, **values)

    def set(self, key: str, value: Any) -> Any:
        return self._client.set(self._prefix + key, value)


class Writer:
    """One kind's client. `made`: all ids that were held; `over`: those that the client itself has ended."""

    kind: str
    index: str

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client: Any = client
        self.prefix = prefix
        self.made: set[str] = set()
        self.over: set[str] = set()

    @property
    def expired(self) -> set[str]:
        """What the sweep has to end, each once."""
        return self.made - self.over

    def hold(self, number: int, for_ms: int) -> None:
        """Take the hold of this number, and end or use it at once if it is one of the fifth."""
        raise NotImplementedError

    def check(self) -> None:
        """The books, to the unit, once all has ended."""
        raise NotImplementedError

    def key(self, name: str) -> str:
        return self.prefix + name


class Seats(Writer):
    kind, index = "seat-hold", "seats:ttl"
    SEATS = 10**6

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self._box = writer_of("seat-holds").Box(Prefixed(client, prefix))
        self._box.open("hamlet", self.SEATS)

    def hold(self, number: int, for_ms: int) -> None:
        entry = f"hold-{number}"
        assert self._box.hold(entry, "hamlet", 1 + number % 3, "ada", for_ms)
        self.made.add(entry)
        if number % EACH == 0 and self._box.buy(entry, "hamlet"):
            self.over.add(entry)

    def check(self) -> None:
        sold = sum(1 + int(entry.removeprefix("hold-")) % 3 for entry in self.over)
        free, held = self.client.hmget(self.key("seats:hamlet"), "free", "held")
        assert (int(free), int(held)) == (self.SEATS - sold, 0)
        states = Counter(self.client.hget(self.key(f"seats:hold:{entry}"), "state") for entry in self.made)
        assert states == Counter({b"EXPIRED": len(self.expired), b"SOLD": len(self.over)})


class Locks(Writer):
    kind, index = "lock", "locks:ttl"
    #: Resources are taken again, with the next token, once they are free.
    RESOURCES = 400

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self._locks = writer_of("locks").Locks(Prefixed(client, prefix))

    def hold(self, number: int, for_ms: int) -> None:
        resource = f"disk-{number % self.RESOURCES}"
        token = self._locks.take(resource, "worker", for_ms)
        if not token:
            return
        self.made.add(f"{resource}:{token}")
        if number % EACH == 0 and self._locks.release(resource, token):
            self.over.add(f"{resource}:{token}")

    def check(self) -> None:
        lapsed = Counter(entry.partition(":")[0].encode() for entry in self.expired)
        assert Counter(self.client.lrange(self.key("locks:waiting:free"), 0, -1)) == lapsed, "each freed once"
        taken = Counter(entry.partition(":")[0] for entry in self.made)
        for resource, times in taken.items():
            assert self.client.get(self.key(f"locks:fence:{resource}")) == b"%d" % times
            assert not self.client.exists(self.key(f"locks:owner:{resource}"))
        states = Counter(self.client.hget(self.key(f"locks:lease:{entry}"), "state") for entry in self.made)
        assert states == Counter({b"LAPSED": len(self.expired), b"RELEASED": len(self.over)})


class Permits(Writer):
    kind, index = "permit", "permits:ttl"
    PERMITS = 10**6

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self._permits = writer_of("permits").Permits(Prefixed(client, prefix))
        self._permits.allow("acme", self.PERMITS)

    def hold(self, number: int, for_ms: int) -> None:
        entry = f"call-{number}"
        assert self._permits.take(entry, "acme", 1 + number % 3, for_ms)
        self.made.add(entry)
        if number % EACH == 0 and self._permits.put_back(entry, "acme"):
            self.over.add(entry)

    def check(self) -> None:
        assert int(self.client.get(self.key("permits:free:acme"))) == self.PERMITS
        assert not self.client.exists(*(self.key(f"permits:held:{entry}") for entry in self.made))


class Sessions(Writer):
    """Each fifth session is used once, some time after its begin, so that the sweep may have to extend it first."""

    kind, index = "session", "sessions:ttl"
    USERS = 10

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        super().__init__(client, prefix)
        self._sessions = writer_of("sessions").Sessions(Prefixed(client, prefix))
        self._last = ""

    def hold(self, number: int, for_ms: int) -> None:
        entry = f"session-{number}"
        self._sessions.begin(entry, f"user-{number % self.USERS}", for_ms)
        self.made.add(entry)
        if number % EACH == 0:
            self._sessions.use(self._last)
            self._last = entry

    def check(self) -> None:
        users = (self.key(f"users:user-{number}:sessions") for number in range(self.USERS))
        assert not self.client.exists(*users), "a user without sessions has no set"
        assert not self.client.exists(*(self.key(f"sessions:{entry}") for entry in self.made))


WRITERS: tuple[type[Writer], ...] = (Seats, Locks, Permits, Sessions)


class KindLoad:
    """All writers, each with a thread that goes on making short holds; `burst` makes many that fall due at once."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.writers = [make(client, prefix) for make in WRITERS]
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[writer]) for writer in self.writers]
        #: What ended a thread before its time.
        self.errors: list[BaseException] = []

    def _run(self, writer: Writer) -> None:
        try:
            while not self._stop.wait(0.04):
                writer.hold(next(self._numbers), 300)
        except BaseException as error:
            self.errors.append(error)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident:
                thread.join()
        assert self.errors == []

    def burst(self, count: int, due: float) -> None:
        """Make so many holds of each kind with a deadline at `due`, as of time.time()."""
        for _ in range(count):
            number = next(self._numbers)
            for writer in self.writers:
                writer.hold(number, max(1, int((due - time.time()) * 1000)))

    def totals(self) -> dict[str, int]:
        """By kind, how many the sweep has to end."""
        return {writer.kind: len(writer.expired) for writer in self.writers}

    def check(self, events: Iterable[dict[bytes, bytes]]) -> None:
        """One event for each end, and the books of each kind. `events`: those of the stream."""
        told = Counter((fields.get(b"kind", b"reservations"), fields[b"id"]) for fields in events)
        for writer in self.writers:
            kind = writer.kind.encode()
            ends = {entry.decode(): times for (name, entry), times in told.items() if name == kind}
            assert ends == dict.fromkeys(writer.expired, 1), f"{writer.kind}: one event for each end"
            assert writer.client.zcard(writer.key(writer.index)) == 0
            assert writer.client.zcard(writer.key(f"sweeperd:quarantine:{writer.kind}")) == 0
            writer.check()
