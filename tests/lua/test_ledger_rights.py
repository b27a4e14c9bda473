"""
What happens where a right is missing, or another client has changed the settings of cjson: nothing at all, however
often the same request comes. When the right is back, it is done once.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis

from sweeperd import ledger
from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger, LedgerError, MissingRight
from sweeperd.ops.acl import ledger_grants
from sweeperd.store import Shard
from tests.lua.builders import SCOPES
from tests.lua.ledger_book import BOTTOM, MINUTE, TOP, Book
from tests.support.acl import PASSWORD
from tests.support.servers import Binary, Server

pytestmark = pytest.mark.every_redis

KEY = b"one-key"
#: What each operation writes: command -> keys, as `Clerk.keys` names them.
WRITES: dict[str, dict[str, tuple[str, ...]]] = {
    "reserve": {"hset": ("top", "bottom", "reservation"), "zadd": ("index",), "set": ("record",), "xadd": ("stream",)},
    "commit": {
        "hset": ("top", "bottom", "reservation"),
        "zrem": ("index",),
        "pexpire": ("reservation",),
        "set": ("record",),
        "xadd": ("stream",),
    },
    "release": {
        "hset": ("top", "bottom", "reservation"),
        "zrem": ("index",),
        "pexpire": ("reservation",),
        "set": ("record",),
        "xadd": ("stream",),
    },
    "extend": {"hset": ("reservation",), "zadd": ("index",), "pexpire": ("reserve record",), "set": ("record",)},
    "settle": {
        "hset": ("top", "bottom", "reservation"),
        "zrem": ("index",),
        "pexpire": ("reservation",),
        "set": ("event record",),
        "xadd": ("stream",),
    },
    "event": {"hset": ("top", "bottom"), "set": ("record",), "xadd": ("stream",)},
    "open_budget": {"hset": ("new",)},
}
OPERATIONS = list(WRITES)
COMMANDS = sorted({name.lower() for grant in ledger_grants(Shard(RedisSettings()).keys) for name in grant.commands})
PATTERNS = (
    "reservation", "index", "record", "tenant", "top", "bottom", "reserve record", "event record", "new", "stream",
)  # fmt: skip


class Clerk:
    """A book, and a ledger that works on it as a user with fewer rights."""

    def __init__(self, server: Server, client: redis.Redis) -> None:
        self.book = Book(server)
        self._open_budgets()
        self._client = client
        url = server.url.replace("redis://", f"redis://clerk:{PASSWORD}@")
        self._shard = Shard(RedisSettings.model_validate({"url": url}))
        self.ledger = Ledger(self._shard, new_id=lambda: b"new")
        self.rid = b""
        self.announced = 0  # events before the operation
        self.allow("reset", "on", f">{PASSWORD}", "~*", *(f"+{name}" for name in COMMANDS), "+client|setname")

    def begin_anew(self) -> None:
        """Nothing but two open budgets."""
        self.book.check_invariants()
        self._client.flushall()
        self._open_budgets()
        self.rid = b""

    def _open_budgets(self) -> None:
        self.book.open(*SCOPES)
        # Each operation that changes a budget crosses one of these.
        self.book.ledger.open_budget(TOP, "TOKENS", 0, thresholds=(1, 8))

    def close(self) -> None:
        self._shard.close()
        self.book.shard.close()
        self._client.acl_deluser("clerk")

    def allow(self, *changes: str) -> None:
        self._client.execute_command("ACL", "SETUSER", "clerk", *changes)

    def keys(self, operation: str) -> dict[str, bytes]:
        names = self.book.keys
        return {
            "reservation": names.reservation(self.rid or b"new"),
            "index": names.reservation_index,
            "record": names.idempotency(b"acme", operation, KEY),
            "tenant": names.tenant(b"acme"),
            "top": names.budget(TOP.encode(), b"TOKENS"),
            "bottom": names.budget(BOTTOM.encode(), b"TOKENS"),
            "event record": names.idempotency(b"acme", "event", KEY),
            "reserve record": names.idempotency(b"acme", "reserve", b"first"),
            "stream": names.events,
            "new": names.budget(b"new", b"TOKENS"),
        }

    def allow_keys(self, operation: str, without: str, *, read: bool = False) -> None:
        """All keys but one, or that one for reading only."""
        rules = ["resetkeys"]
        names = self.keys(operation)
        for name, key in names.items():
            if key != names[without]:
                rules.append(f"~{key.decode()}")
            elif read and name == without:
                rules.append(f"%R~{key.decode()}")
        self.allow(*rules)

    def prepare(self, operation: str) -> Callable[[], Any]:
        """What the operation needs; the call, always under one key."""
        if operation not in ("reserve", "event", "open_budget"):
            # The record of the reserve ends before an extended reservation does.
            held = self.book.reserve(100, idempotency_key=b"first")
            self.rid = held.reservation_id.encode()
            self.book.client.pexpire(self.keys(operation)["reserve record"], 1000)
        calls: Mapping[str, Callable[[], Any]] = {
            "reserve": lambda: self.ledger.reserve("acme", SCOPES, "TOKENS", 100, ttl=MINUTE, idempotency_key=KEY),
            "commit": lambda: self.ledger.commit("acme", self.rid, 70, idempotency_key=KEY),
            "release": lambda: self.ledger.release("acme", self.rid, idempotency_key=KEY),
            "extend": lambda: self.ledger.extend("acme", self.rid, MINUTE, idempotency_key=KEY),
            "settle": lambda: self.ledger.settle("acme", self.rid, 70, idempotency_key=KEY),
            "event": lambda: self.ledger.event("acme", SCOPES, "TOKENS", 10, idempotency_key=KEY),
            "open_budget": self._open,
        }
        self.announced = self.book.client.xlen(self.book.keys.events)
        return calls[operation]

    def _open(self) -> None:
        with contextlib.suppress(ledger.BudgetExists):
            self.ledger.open_budget("new", "TOKENS", 1000)


@pytest.fixture
def clerk(server: Server, client: redis.Redis) -> Iterator[Clerk]:
    clerk = Clerk(server, client)
    yield clerk
    clerk.book.check_invariants()
    clerk.close()


#: (remaining, reserved, spent, debt) of each budget, after the operation was done once.
AFTER = {
    "reserve": (900, 100, 0, 0),
    "commit": (930, 0, 70, 0),
    "settle": (930, 0, 70, 0),
    "release": (1000, 0, 0, 0),
    "extend": (900, 100, 0, 0),
    "event": (990, 0, 10, 0),
    "open_budget": (1000, 0, 0, 0),
}


def moved_once(clerk: Clerk, operation: str, call: Callable[[], Any]) -> None:
    """The call succeeds now, again and again, and has moved what it moves once."""
    first = call()
    assert [call(), call()] == [first, first]
    assert clerk.book.client.xlen(clerk.book.keys.events) == clerk.announced + ("xadd" in WRITES[operation])
    assert {clerk.book.amounts(scope) for scope in SCOPES} == {AFTER[operation]}
    if operation == "open_budget":
        assert clerk.book.amounts("new") == (1000, 0, 0, 0)
    if operation == "extend":
        assert clerk.book.row(clerk.rid)[b"extension_count"] == b"1"
    held = clerk.book.client.zcard(clerk.book.keys.reservation_index)
    assert held == (1 if operation in ("reserve", "extend") else 0)


def refused_three_times(clerk: Clerk, call: Callable[[], Any]) -> None:
    with clerk.book.unchanged():
        for _ in range(3):
            with pytest.raises(MissingRight) as raised:
                call()
            assert isinstance(raised.value, LedgerError)
            assert raised.value.detail


def is_refused(clerk: Clerk, call: Callable[[], Any]) -> bool:
    """Whether the user lacks a right to the call."""
    try:
        call()
    except MissingRight:
        return True
    return False


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_a_command(clerk: Clerk, operation: str) -> None:
    """Each command of the ledger in turn. What an operation does not use, it does not need."""
    for command in COMMANDS:
        clerk.begin_anew()
        call = clerk.prepare(operation)
        clerk.ledger.budget(TOP, "TOKENS")  # the connection is open, as that of a service
        clerk.book.client.script_flush()
        clerk.allow(f"-{command.partition('|')[0]}")  # 6.2 takes no right to a subcommand away
        with clerk.book.unchanged() if command in WRITES[operation] else contextlib.nullcontext():
            needed = is_refused(clerk, call)
        assert needed or command not in WRITES[operation], command
        if needed:
            refused_three_times(clerk, call)
        clerk.allow(f"+{command}")
        moved_once(clerk, operation, call)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("read", [False, True], ids=["no right", "read only"])
def test_without_a_key(clerk: Clerk, operation: str, read: bool) -> None:
    """Each key in turn, which may not be used, or only be read."""
    if read and clerk.book.client.info("server")["redis_version"].startswith("6."):
        pytest.skip("6.2 has no right to read only")
    for key in PATTERNS:
        clerk.begin_anew()
        call = clerk.prepare(operation)
        clerk.allow_keys(operation, key, read=read)
        needed = is_refused(clerk, call)
        assert needed or all(key not in keys for keys in WRITES[operation].values()), key
        if needed:
            refused_three_times(clerk, call)
        clerk.allow("allkeys")
        moved_once(clerk, operation, call)


#: Any client may change them for all scripts of the server.
CJSON = (
    "cjson.encode_max_depth(1) cjson.decode_max_depth(1) cjson.encode_sparse_array(false, 1, 1) "
    "cjson.encode_invalid_numbers(false) cjson.encode_number_precision(1)"
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_settings_of_cjson_are_no_matter(clerk: Clerk, operation: str) -> None:
    defaults = "cjson.encode_max_depth(1000) cjson.decode_max_depth(1000) cjson.encode_sparse_array(false, 2, 10)"
    call = clerk.prepare(operation)
    clerk.book.client.set(clerk.keys(operation)["tenant"], '{"status":"ACTIVE","settings":{"a":[1]}}')
    try:
        clerk.book.client.eval(CJSON, 0)
        moved_once(clerk, operation, call)
    finally:
        clerk.book.client.eval(f"{defaults} cjson.encode_number_precision(14)", 0)


@pytest.mark.parametrize("command", ["HSET", "SET", "ZADD", "ZREM", "PEXPIRE"])
def test_a_command_that_was_renamed(redis_binary: Binary, command: str) -> None:
    """It is a right that is missing: nothing has changed."""
    with (
        Server(redis_binary, ["--rename-command", command, f"X{command}"]) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        book = Book(server)
        set_hash = "XHSET" if command == "HSET" else "HSET"
        for scope in SCOPES:
            fields = {"allocated": 1000, "remaining": 1000, "reserved": 0, "spent": 0, "debt": 0, "overdraft_limit": 0}
            pairs = [word for pair in (fields | {"status": "ACTIVE"}).items() for word in pair]
            client.execute_command(set_hash, book.keys.budget(scope.encode(), b"TOKENS"), *pairs)
        if command in ("ZREM", "PEXPIRE"):
            rid = book.reserve(100).reservation_id.encode()
            calls: list[Callable[[], Any]] = [lambda: book.commit(rid, 70), lambda: book.release(rid)]
        else:
            calls = [book.reserve]
        before = book.world.snapshot()
        for call in calls:
            with pytest.raises(MissingRight):
                call()
        assert book.world.snapshot() == before
        book.shard.close()
