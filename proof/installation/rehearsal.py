"""Rehearses in steps. Each returns what it found, and raises AssertionError if something does not hold."""

import contextlib
import hashlib
import hmac
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import redis

from proof.installation.services import ACTION, MARK, UNIT, Services, Tenant, amount, flat
from sweeperd.ledger import IdempotencyMismatch, Ledger, Reserved
from sweeperd.text import decode
from tests.support.harness import Daemon, daemon, environment, eventually, server_time
from tests.support.receiver import Receiver, Request
from tests.support.streams import parse_rfc3339

LEASE = "cycles:maintenance:lease:reservation_expiry"
#: How long the service needs to sweep again after sweeperd has died: the lease, its interval, and a moment.
SERVICE_SWEEPS_WITHIN = 45
#: How long another webhook may wait beside a burst of expiries, seconds.
LONGEST_WAIT = 20
#: In the EventType and EventCategory of the admin service, and not in those of the runtime.
NEWER_TYPE, NEWER_CATEGORY = "reservation.released_via_tenant_cascade", "webhook"
#: The subscriptions that are compared.
SUBSCRIPTIONS: Mapping[str, Mapping[str, object]] = {
    "type": {"event_types": ["reservation.expired"]},
    "category": {"event_types": ["budget.exhausted"], "event_categories": ["reservation"]},
    "workspace": {"event_types": ["reservation.expired"], "scope_filter": "tenant:{tenant}/workspace:p*"},
    "other": {"event_types": ["budget.exhausted"]},
    "newer-type": {"event_types": ["reservation.expired", NEWER_TYPE]},
    # Of the system: to a tenant the admin service refuses this category.
    "newer-category": {
        "event_types": ["reservation.expired"],
        "event_categories": [NEWER_CATEGORY],
        "scope_filter": "tenant:{tenant}*",
        "owner": "__system__",
    },
    "only-newer": {"event_types": [NEWER_TYPE]},
}
#: What docs/reference/cycles.md names as different: the source, further fields, and subscriptions that the runtime
#: cannot read.
FURTHER = ("expires_at", "grace_ms", "missing_budgets", "closed_budgets")
MORE_DELIVERIES = ("newer-type", "newer-category")


@dataclass
class Rehearsal:
    """One run, and what it made."""

    services: Services
    client: redis.Redis
    url: str
    receiver: Receiver
    directory: Path
    seconds: float
    burst: int
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    tenants: list[Tenant] = field(default_factory=list)

    def tenant(self, name: str, **fields: Any) -> Tenant:
        made = Tenant(self.services, f"{MARK}{self.run}-{name}", **fields)
        self.tenants.append(made)
        return made

    def subscribe(self, tenant: Tenant, name: str, **fields: Any) -> None:
        tenant.subscribe(name, f"{self.receiver.url}/{tenant.id}/{name}", **fields)

    @contextlib.contextmanager
    def sweeperd(self, **settings: object) -> Iterator[Daemon]:
        """A sweeperd that sweeps instead of the service, once it holds the lease."""
        with self.process(**settings) as running:
            eventually(self.leads, limit=SERVICE_SWEEPS_WITHIN)
            yield running
            if running.process.poll() is None:
                assert running.terminate(60) == 0

    @contextlib.contextmanager
    def process(self, **settings: object) -> Iterator[Daemon]:
        env = environment(self.url, cycles__enabled="true", shutdown_grace="5s", **settings)
        with daemon(env, self.directory) as running:
            yield running

    def leads(self) -> bool:
        return self.client.get(LEASE) == b"sweeperd"

    def hash_of(self, reservation: str, name: str) -> str:
        return decode(cast(bytes, self.client.hget(f"reservation:res_{reservation}", name) or b""))

    def expired(self, reservation: str, limit: float = SERVICE_SWEEPS_WITHIN) -> None:
        eventually(lambda: self.hash_of(reservation, "state") == "EXPIRED", limit=limit)

    def events(self, tenant: Tenant) -> dict[str, list[dict[str, Any]]]:
        """Reservation -> its events of expiry in the record of Cycles."""
        found: dict[str, list[dict[str, Any]]] = {}
        ids = cast(list[bytes], self.client.zrange(f"events:{tenant.id}", 0, -1))
        for start in range(0, len(ids), 1000):
            for text in self.client.mget([b"event:" + each for each in ids[start : start + 1000]]):
                event = json.loads(text or "{}")
                if event.get("event_type") == "reservation.expired":
                    found.setdefault(event["data"]["reservation_id"], []).append(event)
        return found

    def webhooks(self, tenant: Tenant, name: str) -> list[Request]:
        return [each for each in self.receiver.requests if each.path.endswith(f"/{tenant.id}/{name}")]


# ---- one sweep by the service and one by sweeperd


def comparison(on: Rehearsal) -> str:
    """The records of a sweep by the service and of one by sweeperd, field by field."""
    theirs = _swept(on, "service", "cycles-server")
    with on.sweeperd():
        ours = _swept(on, "sweeperd", "sweeperd")
    compared = theirs.keys() | ours.keys()
    differing = {path for path in compared if theirs.get(path) != ours.get(path)}
    expected = {path for path in compared if _differs_by_intention(path)}
    assert differing == expected, (
        f"differ beside the page: {sorted(differing - expected)}; equal in spite of it: {sorted(expected - differing)}"
    )
    both = theirs.keys() & ours.keys()
    return (
        f"{len(both)} fields in both, {len(differing & both)} of them differ; {len(compared - both)} only by sweeperd; "
        "all as docs/reference/cycles.md says"
    )


def _differs_by_intention(path: str) -> bool:
    about, *rest = path.split(".")
    return (
        path.endswith((".source", ".expired_at"))
        or rest[-1] in FURTHER
        or (about in ("deliveries", "webhooks") and rest[0] in MORE_DELIVERIES)
        or path == "expired_hash.spread"
    )


def _swept(on: Rehearsal, by: str, source: str) -> dict[str, object]:
    """Reserve, wait for the sweep, and collect all that is left of it, with ids and times replaced by their names."""
    tenant = on.tenant(f"swept-by-{by}")
    for name, fields in SUBSCRIPTIONS.items():
        # Of the system's filter: longer than its star.
        told = json.loads(json.dumps(fields).replace("{tenant}*", f"{tenant.id[:-1]}*").replace("{tenant}", tenant.id))
        on.subscribe(tenant, name, **told)
    made = {
        "of the tenant": tenant.reserve(5, workspace=False),
        "of the workspace": tenant.reserve(7),
        "extended": tenant.reserve(11, 4000),
    }
    assert tenant.end(made["extended"], "extend", extend_by_ms=1500)[0] == 200
    for reservation in made.values():
        on.expired(reservation)
    eventually(lambda: len(on.events(tenant)) == len(made))
    wanted = {"type": 3, "category": 3, "workspace": 2, "other": 0, "newer-type": 0, "newer-category": 0}
    if source == "sweeperd":
        wanted |= dict.fromkeys(MORE_DELIVERIES, 3)
    for name, count in wanted.items():
        eventually(lambda name=name, count=count: len(on.webhooks(tenant, name)) == count, limit=30)
    names = {tenant.id: "<tenant>"} | {reservation: f"<{label}>" for label, reservation in made.items()}
    names |= {subscription: f"<{name}>" for name, (subscription, _) in tenant.subscriptions.items()}
    found: dict[str, object] = {}
    for label, reservation in made.items():
        (event,) = on.events(tenant)[reservation]
        names |= {event["event_id"]: f"<event {label}>", event["trace_id"]: "<trace>"}
        _check_event(on, tenant, event, on.hash_of(reservation, "expires_at"), source)
        found[f"events.{label}"] = event
        found[f"reservations.{label}"] = tenant.reservation(reservation)
        spread = on.client.pttl(f"reservation:res_{reservation}") / 86_400_000 - 30
        assert -0.01 < spread <= (0.31 if source == "sweeperd" else 0), "30 days, and 1 % more by sweeperd"
        assert on.client.zscore("reservation:ttl", reservation) is None
    found["expired_hash.spread"] = source
    for name, (_, secret) in tenant.subscriptions.items():
        for number, delivery in enumerate(sorted(tenant.deliveries(name), key=lambda row: names[row["event_id"]])):
            found[f"deliveries.{name}.{number}"] = {
                key: value for key, value in delivery.items() if key not in ("delivery_id", "response_time_ms")
            }
            index = on.client.zscore(f"deliveries:{tenant.subscriptions[name][0]}", delivery["delivery_id"])
            assert index is not None
        for number, request in enumerate(sorted(on.webhooks(tenant, name), key=lambda row: names[row.event_id])):
            signature = hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
            assert request.headers["X-Cycles-Signature"] == f"sha256={signature}"
            headers = {key: value for key, value in request.headers.items() if key.startswith("X-Cycles-")}
            headers |= {"X-Cycles-Signature": "<signature>", "Content-Type": request.headers["Content-Type"]}
            found[f"webhooks.{name}.{number}"] = {"headers": headers, "body": request.event}
    found["balances"] = {scope.replace("/", "|"): list(row) for scope, row in tenant.balances().items()}
    assert set(tenant.balances().values()) == {(tenant.allocated, 0, 0)}
    deadlines = {int(on.hash_of(reservation, "expires_at")) for reservation in made.values()}
    return {
        path: ("<deadline>" if parse_rfc3339(str(leaf)) in deadlines else "<expiry>")
        if path.endswith(".expired_at")
        else _named(leaf, names)
        for path, leaf in ((_named(path, names), leaf) for path, leaf in flat(found).items())
    }


def _check_event(on: Rehearsal, tenant: Tenant, event: Mapping[str, Any], deadline: str, source: str) -> None:
    """What the replaced times and ids hide."""
    assert event["source"] == source
    data, at = event["data"], parse_rfc3339(event["timestamp"])
    if source == "sweeperd":
        assert (data["expired_at"], parse_rfc3339(data["expires_at"])) == (event["timestamp"], int(deadline))
    else:
        assert parse_rfc3339(data["expired_at"]) == int(deadline)
    for index in (f"events:{tenant.id}", "events:_all"):
        score = on.client.zscore(index, event["event_id"])
        assert score is not None
        assert abs(score - at) <= 1, "the service's times have nanoseconds"
    listed = on.services.admin("GET", f"/v1/admin/events/{event['event_id']}")
    assert listed["data"]["reservation_id"] == data["reservation_id"]


def _named(value: object, names: Mapping[str, str]) -> Any:
    """The text with each id by its name, and a point in time as `<time>`."""
    if isinstance(value, str):
        for each, name in names.items():
            value = value.replace(each, name)
        with contextlib.suppress(ValueError):
            parse_rfc3339(value)
            return "<time>"
    if isinstance(value, int) and value > 1_500_000_000_000:
        return "<time>"
    return value


# ---- the lease


def lease(on: Rehearsal) -> str:
    """The service stands by while sweeperd lives, sweeps when it has died, and stands by again."""
    tenant = on.tenant("lease")
    with on.process() as running:
        eventually(on.leads, limit=SERVICE_SWEEPS_WITHIN)
        skipped = _skipped(on)
        eventually(lambda: _skipped(on) >= skipped + 2, limit=30)
        on.expired(tenant.reserve(1))
        running.kill()
    died = time.monotonic()
    taken = tenant.reserve(1)
    on.expired(taken)
    after = time.monotonic() - died
    eventually(lambda: taken in on.events(tenant))
    assert on.events(tenant)[taken][0]["source"] == "cycles-server"
    started = time.monotonic()
    with on.sweeperd():
        back = time.monotonic() - started
        again = tenant.reserve(1)
        on.expired(again)
        eventually(lambda: again in on.events(tenant))
        assert on.events(tenant)[again][0]["source"] == "sweeperd"
    return f"killed: the service swept after {after:.0f} s; the lease was back {back:.0f} s after the start"


def _skipped(on: Rehearsal) -> float:
    labels = {"job": "reservation_expiry", "outcome": "skipped_locked"}
    return on.services.metric("cycles_maintenance_runs_total", **labels)


# ---- tenants that are no longer active


def ended_tenants(on: Rehearsal) -> str:
    """Reservations of a suspended and of a closed tenant."""
    with on.sweeperd():
        suspended, closed = on.tenant("suspended"), on.tenant("closed")
        held = [suspended.reserve(5, 4000), closed.reserve(5, 4000)]
        before = {scope: on.client.hgetall(f"budget:{scope}:{UNIT}") for scope in suspended.scopes}
        assert all(int(row[b"reserved"]) == 5 for row in before.values())
        suspended.set_status("SUSPENDED")
        closed.set_status("CLOSED")
        after = {scope: on.client.hgetall(f"budget:{scope}:{UNIT}") for scope in closed.scopes}
        on.expired(held[0])
        eventually(lambda: on.client.zscore("reservation:ttl", held[1]) is None, limit=20)
        eventually(lambda: held[0] in on.events(suspended))
        for scope in suspended.scopes:
            row = on.client.hgetall(f"budget:{scope}:{UNIT}")
            assert (int(row[b"reserved"]), int(row[b"remaining"])) == (0, suspended.allocated)
        for scope in closed.scopes:
            row = on.client.hgetall(f"budget:{scope}:{UNIT}")
            assert row == after[scope], "a closed budget was settled when its tenant was closed"
            assert (row[b"status"], int(row[b"reserved"])) == (b"CLOSED", 0)
        state = on.hash_of(held[1], "state")
        # A service that ends reservations with their tenant leaves nothing to expire.
        if state == "EXPIRED":
            eventually(lambda: held[1] in on.events(closed))
        suspended.set_status("ACTIVE")
    return f"suspended: expired with its event; closed: {state}, its budgets as they were"


# ---- the ledger of sweeperd beside the runtime


def both_ledgers(on: Rehearsal) -> str:
    """Each operation begun by `sweeperd.ledger` and ended by the runtime, and back; sorted lists hold all."""
    tenant, spent, made = on.tenant("ledger"), 0, []
    tenant.sorted_list()  # of nothing: a runtime that keeps an index makes it READY
    kept = _ready(on, tenant)
    with Ledger.from_url(on.url, cycles=True) as ledger:

        def hold(units: int, key: str = "") -> str:
            reserved = _hold(ledger, tenant, units, timedelta(minutes=1), key)
            made.append(reserved.reservation_id)
            shown = tenant.reservation(made[-1])
            assert (shown["status"], shown["reserved"]) == ("ACTIVE", amount(units))
            return made[-1]

        def runtime(units: int, key: str = "") -> str:
            made.append(tenant.reserve(units, 60_000, key=key))
            return made[-1]

        assert tenant.end(hold(10), "commit", actual=amount(7))[0] == 200
        assert tenant.end(hold(10), "release")[0] == 200
        extended = hold(10)
        assert tenant.end(extended, "extend", extend_by_ms=5000)[0] == 200
        ledger.release(tenant.id, extended, idempotency_key=str(uuid.uuid4()))
        ledger.commit(tenant.id, runtime(10), 6, idempotency_key=str(uuid.uuid4()))
        ledger.release(tenant.id, runtime(10), idempotency_key=str(uuid.uuid4()))
        moved = runtime(10)
        deadline = ledger.extend(tenant.id, moved, timedelta(seconds=5), idempotency_key=str(uuid.uuid4())).expires_at
        assert tenant.reservation(moved)["expires_at_ms"] == deadline
        assert tenant.end(moved, "release")[0] == 200
        ledger.event(tenant.id, tenant.scopes, UNIT, 2, idempotency_key=str(uuid.uuid4()))
        settled = runtime(10)
        ledger.settle(tenant.id, settled, 4, idempotency_key=str(uuid.uuid4()))
        spent = 7 + 6 + 2 + 4
        key = str(uuid.uuid4())
        twice = runtime(1, key)
        try:
            hold(1, key)
        except IdempotencyMismatch:
            pass
        else:
            raise AssertionError("a key that the runtime knows was taken as new")
        shared, again = hold(3), hold(4)
        assert set(tenant.balances().values()) == {(tenant.allocated - spent - 8, 8, spent)}
        tenant.sorted_list()
        hold(5)  # on an index that the list may have made
        tenant.end(made[-1], "release")
        listed = tenant.sorted_list()
        assert sorted(listed) == sorted(made), "a sorted list lacks a reservation, or has one twice"
        # None is left to the service: its sweep takes the amount from a closed budget a second time.
        for reservation in (twice, shared, again):
            assert tenant.end(reservation, "release")[0] == 200
        assert not kept or _ready(on, tenant), "the index was READY, and is so no longer"
    index = "READY all the time" if kept else "not kept by this runtime"
    return (
        f"{len(made)} reservations begun and ended across; all in the sorted list, its index {index}; books to the unit"
    )


def _ready(on: Rehearsal, tenant: Tenant) -> bool:
    """Whether the runtime reads the tenant's index by creation: it is complete, and its count is right."""
    metadata = on.client.hgetall(f"reservation:idxmeta:{tenant.id}:created_at_ms")
    count = on.client.zcard(f"reservation:idx:{tenant.id}:created_at_ms")
    return metadata.get(b"state") == b"READY" and int(metadata[b"expected_count"]) == count


def _hold(ledger: Ledger, tenant: Tenant, units: int, ttl: timedelta, key: str = "") -> Reserved:
    return ledger.reserve(
        tenant.id, tenant.scopes, UNIT, units, ttl=ttl, idempotency_key=key or str(uuid.uuid4()), action=ACTION
    )


# ---- the webhooks of others under a burst of expiries


def burst(on: Rehearsal) -> str:
    """Many expiries at once, and meanwhile the webhooks of another tenant."""
    if on.burst == 0:
        return "left out"
    many, other = on.tenant("burst"), on.tenant("beside")
    on.subscribe(many, "expiries", event_types=["reservation.expired"])
    on.subscribe(other, "funded", event_types=["budget.funded"])
    with on.sweeperd() as running, Ledger.from_url(on.url, cycles=True) as ledger:
        end = server_time(on.client) + 5000 + on.burst * 2

        def hold(_: int) -> None:
            left = timedelta(milliseconds=max(1, end - int(time.time() * 1000)))
            _hold(ledger, many, 1, left)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(hold, range(on.burst)))
        eventually(lambda: server_time(on.client) > end, limit=120)
        waits, started = list[float](), time.monotonic()
        # The list of pending deliveries is short now and then: the relay refills it as the dispatcher goes on.
        while len({each.event_id for each in on.webhooks(many, "expiries")}) < on.burst:
            assert time.monotonic() < started + 600, "not all webhooks have come after 600 s"
            asked, before = time.monotonic(), len(on.webhooks(other, "funded"))
            body = {"operation": "CREDIT", "amount": amount(1), "idempotency_key": str(uuid.uuid4())}
            query = {"scope": other.scopes[0], "unit": UNIT, "tenant_id": other.id}
            on.services.admin("POST", "/v1/admin/budgets/fund", body, **query)
            eventually(lambda before=before: len(on.webhooks(other, "funded")) > before, limit=300)
            waits.append(time.monotonic() - asked)
            time.sleep(0.2)
        took = time.monotonic() - started
        expired = running.metric("sweeperd_expired_total", tenant=many.id)
    longest = max(waits, default=0.0)
    text = (
        f"{expired:.0f} expiries, {on.burst / took:.0f} webhooks/s; another tenant's webhook waited {longest:.1f} s "
        f"at most ({len(waits)} tries)"
    )
    assert longest <= LONGEST_WAIT, text
    return text


# ---- traffic, while sweeperd is killed again and again


@dataclass
class Books:
    """What the clients of a tenant know."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    operations: Counter[str] = field(default_factory=Counter)
    left: set[str] = field(default_factory=set)
    spent: int = 0


def traffic(on: Rehearsal) -> str:
    """Reserve, commit, release, extend and forget, while sweeperd is killed; then the books to the unit."""
    tenant, books, stop = on.tenant("traffic"), Books(), threading.Event()
    on.subscribe(tenant, "expiries", event_types=["reservation.expired"])
    kills = 0
    with ThreadPoolExecutor(4) as threads:
        clients = [threads.submit(_client, tenant, books, stop, number) for number in range(4)]
        until = time.monotonic() + on.seconds
        try:
            while time.monotonic() < until:
                with on.process(sweep__interval="500ms") as running:
                    time.sleep(random.uniform(0.2, 3))
                    running.kill()
                kills += 1
        finally:
            stop.set()
        for client in clients:
            client.result()
    with on.sweeperd():
        for reservation in books.left:
            on.expired(reservation)
        eventually(lambda: len(on.events(tenant)) == len(books.left), limit=60)
        eventually(lambda: len(on.webhooks(tenant, "expiries")) >= len(books.left), limit=300)
    events = on.events(tenant)
    assert events.keys() == books.left, "an expiry without an event, or an event without an expiry"
    assert all(len(rows) == 1 for rows in events.values()), "an event was doubled"
    times = Counter(each.event_id for each in on.webhooks(tenant, "expiries"))
    assert times == {rows[0]["event_id"]: 1 for rows in events.values()}, "a webhook was lost or doubled"
    expected = (tenant.allocated - books.spent, 0, books.spent)
    assert set(tenant.balances().values()) == {expected}, "the books are wrong"
    counts = ", ".join(f"{count} {name}" for name, count in sorted(books.operations.items()))
    return f"{kills} kills in {on.seconds:.0f} s; {counts}; {len(events)} expired, each with one event and one webhook"


def _client(tenant: Tenant, books: Books, stop: threading.Event, seed: int) -> None:
    dice = random.Random(seed)
    while not stop.is_set():
        units = dice.randint(1, 1000)
        reservation = tenant.reserve(units, 1000)
        operation = dice.choice(["commit", "release", "extend", "forget", "forget", "late"])
        status = 0
        if operation == "commit":
            status, _ = tenant.end(reservation, "commit", actual=amount(units // 2))
        elif operation == "release":
            status, _ = tenant.end(reservation, "release")
        elif operation == "extend":
            tenant.end(reservation, "extend", extend_by_ms=1000)
        elif operation == "late":
            stop.wait(1.0 + dice.random() / 10)
            status, _ = tenant.end(reservation, "commit", actual=amount(units // 2))
        with books.lock:
            books.operations[operation] += 1
            if status != 200:
                books.left.add(reservation)
            elif operation != "release":
                books.spent += units // 2


STEPS: Mapping[str, Callable[[Rehearsal], str]] = {
    "one sweep each": comparison,
    "lease": lease,
    "suspended and closed tenants": ended_tenants,
    "the ledger beside the runtime": both_ledgers,
    "a burst of expiries": burst,
    "traffic and kills": traffic,
}
