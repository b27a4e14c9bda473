"""The ledger at its edges: deadline and grace against the sweep's, int64, arbitrary bytes, prefixes, random work."""

import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from sweeperd.ledger import AmountOverflow, Ledger, LedgerError, OveragePolicy, ReservationExpired
from tests.fixture.load import load
from tests.lua.builders import INT64_MAX, NOW, SCOPES
from tests.lua.ledger_book import DAY_MS, GRACE_MS, MINUTE_MS, Book, a_book, ms
from tests.support.servers import Server

REJECT, IF_AVAILABLE, OVERDRAFT = OveragePolicy
DEADLINE = NOW + MINUTE_MS

#: Around where a double's digits end, the fast path ends, and int64 ends.
EDGES = [0, 1, 10**10 - 1, 10**10, 10**15 - 1, 10**15, 2**53 - 1, 2**53, 2**53 + 1, INT64_MAX - 1, INT64_MAX]


# Deadline and grace


@pytest.mark.parametrize("operation", ["commit", "release"])
@pytest.mark.parametrize("own", [True, False], ids=["grace of its own", "default grace"])
@pytest.mark.parametrize("grace", [0, 1, GRACE_MS])
@pytest.mark.parametrize("after", [-1, 0, 1])
def test_what_can_end_cannot_be_swept(book: Book, operation: str, own: bool, grace: int, after: int) -> None:
    book.ledger = Ledger(book.shard, default_grace=ms(77 if own else grace))
    at = DEADLINE + grace + after
    rids = []
    for _ in range(2):
        book.freeze(NOW)
        rids.append(book.reserve(grace=ms(grace) if own else None).reservation_id.encode())
    book.freeze(at)
    swept = book.world.expire(rids[0], at=at, grace=grace if not own else 77)[0]
    end: Callable[[bytes], Any] = getattr(book, operation)
    if after <= 0:
        assert swept == (b"in_grace" if at > DEADLINE else b"not_due")
        end(rids[0])
        end(rids[1])
    else:
        assert swept == b"expired"
        for rid in rids:  # whether the sweep came by or not
            with book.unchanged(), pytest.raises(ReservationExpired):
                end(rid)


@pytest.mark.parametrize("grace", [0, GRACE_MS])
def test_an_extension_has_no_grace(book: Book, grace: int) -> None:
    rid = book.reserve(grace=ms(grace)).reservation_id.encode()
    book.freeze(DEADLINE + 1)
    with book.unchanged(), pytest.raises(ReservationExpired):
        book.extend(rid)
    book.freeze(DEADLINE)
    assert book.extend(rid, ms(1)).expires_at == DEADLINE + 1
    book.freeze(DEADLINE + 1)
    assert book.extend(rid, ms(1)).expires_at == DEADLINE + 2


def test_the_index_score_decides_nothing(book: Book) -> None:
    rid = book.reserve().reservation_id.encode()
    book.world.index(rid, score=1)
    book.extend(rid, ms(1))
    assert book.deadline(rid) == DEADLINE + 1
    book.world.index(rid, score=1)
    book.commit(rid)


def test_the_sweep_takes_what_was_reserved(book: Book) -> None:
    rid = book.reserve(100, [*SCOPES, "no:budget"], metadata={"left": "alone"}).reservation_id.encode()
    reserved = book.row(rid)
    at = DEADLINE + GRACE_MS + 1
    assert book.expire(rid, at) == [b"expired", b"acme", 1, b"[]", b"[]"]
    ((entry, event),) = book.world.events()
    ended = {b"state": b"EXPIRED", b"expired_at": b"%d" % at, b"expired_event": entry}
    assert book.row(rid) == reserved | ended
    assert [book.amounts(scope) for scope in SCOPES] == [(1000, 0, 0, 0)] * 2
    assert (event[b"id"], event[b"amount"], event[b"scope"]) == (rid, b"100", b"no:budget")


@pytest.mark.parametrize("operation", ["commit", "release"])
def test_on_the_clock_of_the_server(server: Server, operation: str) -> None:
    # Margins of a minute: the clock may move as it likes between these calls.
    with a_book(server) as book:
        book.open(*SCOPES)
        end: Callable[[bytes], Any] = getattr(book, operation)
        for overdue, grace, accepted in [(-1, 0, True), (1, 2, True), (2, 1, False)]:
            rid = book.reserve(grace=ms(grace * MINUTE_MS)).reservation_id.encode()
            expires_at = book.world.now() - overdue * MINUTE_MS
            book.client.hset(book.keys.reservation(rid), "expires_at", expires_at)
            book.world.index(rid, score=expires_at)
            if accepted:
                end(rid)
            else:
                with book.unchanged(), pytest.raises(ReservationExpired):
                    end(rid)
                assert book.world.expire(rid)[0] == b"expired"


def test_what_another_service_reserved(server: Server) -> None:
    """Each reservation of the fixture that is not due for a minute is ended or extended, and all budgets add up."""
    with contextlib.closing(Book(server).shard) as shard:
        load(shard.client)
        ledger, operations, changed = Ledger(shard), itertools.cycle(("commit", "release", "extend")), Counter[str]()
        soon = shard.read_clock() + MINUTE_MS
        client: Any = shard.client
        for rid, expires_at in client.zrange(shard.keys.reservation_index, 0, -1, withscores=True):
            row = client.hgetall(shard.keys.reservation(rid))
            if row.get(b"state") != b"ACTIVE" or expires_at < soon:
                continue
            tenant, amount, operation = row[b"tenant"], int(row[b"estimate_amount"]), next(operations)
            if operation == "commit":
                assert ledger.commit(tenant, rid, amount // 2, idempotency_key=rid).charged == amount // 2
            elif operation == "release":
                assert ledger.release(tenant, rid, idempotency_key=rid).amount == amount
            else:
                assert ledger.extend(tenant, rid, ms(1), idempotency_key=rid).expires_at == expires_at + 1
            changed[operation] += 1
        assert min(changed.values()) > 20, changed
        for key in client.keys(shard.keys.budget_stem + b"*"):
            scope, _, unit = key.removeprefix(shard.keys.budget_stem).rpartition(b":")
            told = ledger.budget(scope, unit)
            assert told.remaining == told.allocated - told.spent - told.reserved - told.debt, key


# All of int64


@pytest.mark.parametrize("allocated", EDGES)
def test_amounts_are_exact(book: Book, allocated: int) -> None:
    book.open("s", allocated=allocated, overdraft_limit=INT64_MAX)
    for amount in [edge for edge in EDGES if edge <= allocated]:
        rest = allocated - amount
        reserved = book.reserve(amount, ["s"])
        assert book.amounts("s") == (rest, amount, 0, 0)
        assert book.row(reserved.reservation_id.encode())[b"estimate_amount"] == b"%d" % amount
        book.release(reserved.reservation_id.encode())
        rid = book.reserve(allocated, ["s"]).reservation_id.encode()
        assert book.commit(rid, amount).charged == amount
        assert book.amounts("s") == (rest, 0, amount, 0)
        assert book.row(rid)[b"charged_amount"] == b"%d" % amount
        if amount <= INT64_MAX - allocated:
            assert book.event(allocated, ["s"], overage_policy=OVERDRAFT).debt_incurred == amount
            assert book.amounts("s") == (-amount, 0, allocated, amount)
        book.client.hset(
            book.world.budget_key("s"), mapping={"remaining": allocated, "reserved": 0, "spent": 0, "debt": 0}
        )


def test_all_of_int64_goes_round(book: Book) -> None:
    book.open("s", allocated=INT64_MAX)
    rid = book.reserve(INT64_MAX, ["s"]).reservation_id.encode()
    assert book.amounts("s") == (0, INT64_MAX, 0, 0)
    assert book.expire(rid, NOW + DAY_MS)[0] == b"expired"
    assert book.amounts("s") == (INT64_MAX, 0, 0, 0)
    assert book.commit(book.reserve(INT64_MAX, ["s"]).reservation_id.encode(), INT64_MAX).charged == INT64_MAX
    assert book.amounts("s") == (0, 0, INT64_MAX, 0)
    with book.unchanged(), pytest.raises(LedgerError):
        book.event(1, ["s"])


def test_debt_may_fill_all_of_int64(book: Book) -> None:
    book.open("s", allocated=0, overdraft_limit=INT64_MAX)
    assert book.event(INT64_MAX, ["s"], overage_policy=OVERDRAFT).debt_incurred == INT64_MAX
    assert book.amounts("s") == (-INT64_MAX, 0, 0, INT64_MAX)
    # A budget whose amounts do not add up may have the room for a debt, and not for the remaining amount.
    key = book.world.budget_key("s")
    book.client.hset(key, "debt", 0)
    assert book.event(1, ["s"], overage_policy=OVERDRAFT).balances[0].remaining == -INT64_MAX - 1
    with book.unchanged(), pytest.raises(AmountOverflow):
        book.event(1, ["s"], overage_policy=OVERDRAFT)
    book.client.hset(key, mapping={"remaining": -INT64_MAX, "debt": INT64_MAX})


# Bytes and names

ODD = [
    b"plain", b" ", b"a b", b"a:b", b"a\nb", b"\0", b"a\0b", b"\x7f\x01\x1f", b"\xff\xfe", b"\xed\xa0\x80", b'"',
    b"\\", b"\\u0000", b"/", b"{}", b"[", b"%d%s%1", "é☃𝄞".encode(), b"x" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_names_are_arbitrary_bytes(server: Server, odd: bytes) -> None:
    with a_book(server) as book:
        book.ledger = ledger = Ledger(book.shard, new_id=lambda: odd)
        book.freeze(NOW)
        top, bottom = b"t:" + odd, odd + b"/b"
        for scope in (top, bottom):
            assert ledger.open_budget(scope, odd, 1000) == ledger.budget(scope, odd)
        request: dict[str, Any] = {"ttl": ms(MINUTE_MS), "idempotency_key": odd, "max_extensions": 1}

        def reserve() -> Any:
            return ledger.reserve(odd, [top, bottom, odd], odd, 100, **request)

        done = reserve()
        assert reserve() == done
        text = odd.decode("utf-8", "surrogateescape")
        assert (done.reservation_id, done.unbudgeted) == (text, (text,))
        assert ledger.get(text) == ledger.get(odd)
        assert (ledger.get(text).reservation_id, ledger.get(text).scopes[1:]) == (text, (f"{text}/b",))
        json.dumps(asdict(ledger.get(text)))
        row = book.row(odd)
        assert [row[name] for name in (b"reservation_id", b"tenant", b"estimate_unit", b"scope_path")] == [odd] * 4
        assert row[b"idempotency_key"] == odd
        assert ledger.extend(text, text, ms(1), idempotency_key=text).reservation_id == text
        committed = ledger.commit(odd, odd, 30, idempotency_key=odd)
        assert committed == ledger.commit(odd, odd, 30, idempotency_key=odd)
        assert [(b.scope, b.unit, b.remaining, b.spent) for b in committed.balances] == [
            (f"t:{text}", text, 970, 30),
            (f"{text}/b", text, 970, 30),
        ]
        assert ledger.event(odd, [bottom, odd], odd, 1, idempotency_key=odd).unbudgeted == (text,)
        book.client.delete(book.keys.reservation(odd))
        ledger.reserve(odd, [top], odd, 100, **request | {"idempotency_key": b"another"})
        ledger.release(odd, odd, idempotency_key=odd)
        book.client.delete(book.keys.reservation(odd))
        ledger.reserve(odd, [bottom, top], odd, 100, **request | {"idempotency_key": b"a third"})
        assert book.expire(odd, NOW + DAY_MS)[0] == b"expired"
        assert ledger.budget(top, odd).remaining == 970
        assert ledger.budget(bottom, odd).remaining == 969


def test_text_stands_for_its_utf_8(book: Book) -> None:
    book.open("é")
    done = book.reserve(1, ["é".encode()], idempotency_key="é")
    assert done == book.reserve(1, ["é"], idempotency_key="é".encode())
    assert done.balances[0].scope == "é"
    assert book.commit(done.reservation_id.encode(), 1).reservation_id.encode() == done.reservation_id.encode()


@pytest.mark.parametrize("prefix", ["{tenant-a}:", "p", "budget:"])
def test_a_prefix_is_before_every_key(server: Server, prefix: str) -> None:
    with a_book(server) as outside:
        outside.freeze(NOW)
        outside.open(*SCOPES)
        outside.reserve(idempotency_key="k")
        before = outside.world.snapshot()
        book = Book(server, prefix)
        book.freeze(NOW)
        book.open(*SCOPES)
        rids = [book.reserve(10, idempotency_key=key).reservation_id.encode() for key in "klm"]
        book.extend(rids[0], idempotency_key="k")
        book.commit(rids[1], 5, idempotency_key="k")
        book.release(rids[2], idempotency_key="k")
        book.event(1, idempotency_key="k")
        assert book.expire(rids[0], NOW + DAY_MS)[0] == b"expired"
        book.check_invariants()
        assert book.amounts() == (994, 0, 6, 0)
        ours = set(book.client.keys("*")) - set(before)
        assert ours
        assert all(key.startswith(prefix.encode()) for key in ours)
        after = book.world.snapshot()
        assert {key: after[key] for key in before if key in ours or key[:1] != b"("} == {
            key: content for key, content in before.items() if key[:1] != b"("
        }
        book.client.delete(*ours)
        book.shard.close()


def test_many_scopes(book: Book) -> None:
    scopes = [f"s{number}" for number in range(256)]
    book.open(*scopes)
    rid = book.reserve(10, scopes).reservation_id.encode()
    assert [balance.scope for balance in book.commit(rid, 4).balances] == scopes
    book.client.hset(book.world.budget_key(scopes[-1]), "status", "FROZEN")
    with book.unchanged(), pytest.raises(LedgerError):
        book.reserve(10, scopes)


# Random work, against a model


@dataclass
class Row:
    """What the model knows of a budget."""

    remaining: int
    overdraft_limit: int
    reserved: int = 0
    spent: int = 0
    debt: int = 0
    over: bool = False


class Refused(Exception):
    pass


@dataclass
class Model:
    """The rules again, in Python's integers, on one budget for each scope."""

    rows: dict[str, Row]
    held: dict[bytes, tuple[list[str], int, OveragePolicy]] = field(default_factory=dict)

    def reserve(self, scopes: Sequence[str], amount: int) -> None:
        for scope, times in Counter(scopes).items():
            row = self.rows[scope]
            total = amount * times
            in_debt = row.debt and not row.overdraft_limit
            if in_debt or row.over or row.remaining < total or row.reserved + total > INT64_MAX:
                raise Refused
        for scope in scopes:
            self.rows[scope].remaining -= amount
            self.rows[scope].reserved += amount

    def charge(self, scopes: Sequence[str], held: int, back: int, extra: int | None, policy: OveragePolicy) -> int:
        """
        All or nothing: works on copies. What was held is spent or given back; extra (None: there is none) is charged by
        the policy. Returns what each scope is charged.
        """
        times = Counter(scopes)
        rows = {scope: Row(**vars(self.rows[scope])) for scope in times}
        for scope, row in rows.items():
            row.remaining += back * times[scope]
            row.reserved -= (held + back) * times[scope]
            row.spent += held * times[scope]
            if max(row.spent, row.remaining) > INT64_MAX:
                raise Refused
        if extra is not None:
            extra = self.spend(rows, times, extra, policy)
        self.rows |= rows
        return held + (extra or 0)

    def spend(self, rows: dict[str, Row], times: Counter[str], extra: int, policy: OveragePolicy) -> int:
        """What no reservation holds. Returns how much of it each scope is charged."""
        without_overdraft = {name for name, row in rows.items() if policy is IF_AVAILABLE or not row.overdraft_limit}
        shares = {name: max(rows[name].remaining, 0) // times[name] for name in without_overdraft}
        if policy is not REJECT:
            for name, share in shares.items():
                rows[name].over |= share < extra
            extra = min(extra, *shares.values(), extra)
        for name in times.elements():
            row = rows[name]
            if policy is REJECT and row.remaining < extra:
                raise Refused
            funded = min(extra, max(row.remaining, 0))
            row.remaining -= extra
            row.spent += funded
            row.debt += extra - funded
            if funded < extra and row.debt > row.overdraft_limit:
                raise Refused
            if row.spent > INT64_MAX or row.remaining < -INT64_MAX - 1:
                raise Refused
        return extra

    def commit(self, rid: bytes, amount: int) -> int:
        scopes, estimate, policy = self.held[rid]
        if amount > estimate and policy is REJECT:
            raise Refused
        held = min(amount, estimate)
        charged = self.charge(scopes, held, estimate - held, amount - held or None, policy)
        del self.held[rid]
        return charged


def a_number(rng: random.Random, bits: int) -> int:
    """Of any length up to so many bits; a uniform one would nearly always be long."""
    return rng.choice([0, 1, rng.getrandbits(bits), rng.getrandbits(rng.randint(1, bits))])


@pytest.mark.parametrize("bits", [5, 40, 52, 62])
def test_random_work(server: Server, bits: int) -> None:
    rng, names = random.Random(bits), [f"s{number}" for number in range(4)]
    done: Counter[str] = Counter()
    with a_book(server) as book:
        book.freeze(NOW)
        model = Model({})
        for turn in itertools.count():
            if turn % 60 == 0:
                if turn == 900:
                    break
                book.client.flushall()
                model = Model({})
                for name in names:
                    allocated, limit = rng.getrandbits(bits + 1), rng.choice([0, rng.getrandbits(bits + 1)])
                    book.open(name, allocated=allocated, overdraft_limit=limit)
                    model.rows[name] = Row(allocated, limit)
            name = one_step(rng, bits, book, model, [rng.choice(names) for _ in range(rng.randint(1, 4))])
            done[name] += 1
            done["over"] += any(row.over for row in model.rows.values())
            done["debt"] += any(row.debt for row in model.rows.values())
            if turn % 10 == 9:
                for scope, row in model.rows.items():
                    told = book.balance(scope)
                    assert (told.remaining, told.reserved, told.spent, told.debt, told.is_over_limit) == (
                        (row.remaining, row.reserved, row.spent, row.debt, row.over)
                    ), turn
            if turn % 60 == 59:
                book.check_invariants()
    assert len(done) == 10, done
    assert min(done.values()) > 5, done


def one_step(rng: random.Random, bits: int, book: Book, model: Model, scopes: list[str]) -> str:
    """One operation on both. Returns its name and how it ended."""
    amount, policy = a_number(rng, bits), rng.choice(list(OveragePolicy))
    name = rng.choice(["reserve", "reserve", "commit", "release", "expire", "event"])
    rid = rng.choice(list(model.held)) if model.held else b""
    if not rid and name in {"commit", "release", "expire"}:
        name = "reserve"
    try:
        if name == "reserve":
            model.reserve(scopes, amount)
        elif name == "commit":
            charged = model.commit(rid, amount)
        elif name == "event":
            charged = model.charge(scopes, 0, 0, amount, policy)
        else:
            held, estimate, _ = model.held.pop(rid)
            model.charge(held, 0, estimate, None, REJECT)
    except Refused:
        refused: dict[str, Callable[[], object]] = {
            "reserve": lambda: book.reserve(amount, scopes),
            "commit": lambda: book.commit(rid, amount),
            "event": lambda: book.event(amount, scopes, overage_policy=policy),
        }
        with pytest.raises(LedgerError):
            refused[name]()
        return f"{name}, refused"
    if name == "reserve":
        rid = book.reserve(amount, scopes, overage_policy=policy).reservation_id.encode()
        model.held[rid] = (scopes, amount, policy)
    elif name == "commit":
        assert book.commit(rid, amount).charged == charged
    elif name == "event":
        assert book.event(amount, scopes, overage_policy=policy).charged == charged
    elif name == "release":
        book.release(rid)
    else:
        assert book.expire(rid, NOW + DAY_MS)[0] == b"expired"
    return name
