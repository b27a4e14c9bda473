"""Draws a run from its seed: shards, replicas, settings, load, and which faults take part."""

import random
from dataclasses import dataclass, field
from typing import Any

from sweeperd.config import Settings

#: Every fault that `faults` knows; a run leaves some of them out. The last two are each drawn by themselves: the seeds
#: from before them stay what they were.
FAULTS = (
    "kill", "pause", "cut", "restart", "stand", "flush", "skew", "failover", "full", "rights", "receivers", "reload",
    "upgrade", "clock", "canary", "log",
)  # fmt: skip
#: Everything that operators do. The last action is drawn by itself: the seeds from before it stay what they were.
OPERATIONS = (
    "pause", "skip", "replay", "cancel", "letters", "quarantine", "repair", "reconcile", "destroy", "circuit", "once",
    "test", "tenant", "drift",
)  # fmt: skip
#: What gives no event twice. In a calm run there is nothing else, so a duplicate is a fault of the program.
CALM = {"flush", "skew", "full", "receivers", "skip", "quarantine", "repair", "reconcile", "circuit", "test"}
#: The longest extension by a client, the longest grace, seconds.
EXTENSION, GRACE = 20.0, 3.0
#: How far the clock of a server is set, seconds; and what the rules of Cycles may cost: the life of a lease, the
#: patience without a lease, a dispatcher that stands.
STEP, CYCLES = 30.0, 150.0
SEATS: dict[str, Any] = {
    "name": "seat-hold",
    "index": "seats:ttl",
    "key": "seats:hold:{id}",
    "deadline": "expires_at",
    "active": {"state": "HELD"},
    "ended": {"state": "EXPIRED"},
    "give_back": ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"],
    "event": ["show", "qty"],
    "unless": "EXISTS seats:paying:{id}",
    "unless_recheck": "5s",
}


@dataclass(frozen=True)
class ShardPlan:
    """One shard: its server is chosen by the port of the URL."""

    name: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"redis://redis:{self.port}/0"


@dataclass
class Plan:
    """One run."""

    seed: int
    seconds: float
    shards: list[ShardPlan]
    #: The role of each replica.
    roles: list[str]
    settings: Settings
    #: The settings after a reload, and whether the reload comes.
    reloaded: Settings
    clients: int
    #: Operations of one client a second.
    rate: float
    longest_ttl: float
    preemption: float
    faults: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()
    seats: bool = False
    #: Endpoint -> the greatest time that a receiver takes when it is well, seconds.
    slow: dict[str, float] = field(default_factory=dict)
    #: In an installation of Cycles: how the rival sweeps (see `cycles`); empty: there is none.
    rival: str = ""
    #: Whether, after all is settled, receivers fail once more, while only events come that their endpoints do not want.
    trickle: bool = False
    #: How a receiver fails for the last time, after all is settled (see `outages`); empty: it does not.
    outage: str = ""
    #: Whether a receiver hangs at last, while the others are well (see `outages`).
    hang: bool = False
    #: Whether something is always due at the end, while an entry is indexed after its deadline (see `outages`).
    busy: bool = False

    @property
    def clean(self) -> bool:
        """Whether nothing fails and nobody interferes: then each event comes exactly once."""
        return not self.faults and not self.operations

    @property
    def bound(self) -> float:
        """How long after the last fault everything is settled at the latest, seconds."""
        return bound(self)


def draw(seed: int, minutes: float, *, clean: bool = False) -> Plan:
    """The plan of this seed."""
    rng = random.Random(f"{seed} plan")
    shards = [ShardPlan("default", 7001, rng.choice(["", "", "{t}:"]))]
    if rng.random() < 0.25:
        shards = [ShardPlan("one", 7001), ShardPlan("two", 7002, "{two}:")]
    roles = ["all"] * rng.choice([1, 2, 2, 3, 3])
    if len(roles) > 1 and rng.random() < 0.3:
        roles = ["sweep", "deliver", *roles[2:]]
    seats = rng.random() < 0.3
    endpoints = [_endpoint(rng, number) for number in range(rng.choice([1, 2, 2, 3]))]
    timeout = rng.choice([2, 5, 8])
    document = _document(rng, shards, endpoints, seats, timeout)
    document["sweep"]["precision"] = random.Random(f"{seed} precision").choice(["0s", "0s", "0s", "200ms"])
    changed = [dict(endpoint) for endpoint in endpoints if rng.random() < 0.7]
    if rng.random() < 0.5:
        changed.append(_endpoint(rng, len(endpoints)))
    for endpoint in changed:
        if rng.random() < 0.4:
            endpoint["batch_size"] = rng.choice([1, 5, 20])
        if rng.random() < 0.2:
            endpoint["tenants"] = ["acme"]
    for number in range(len(endpoints) + 1):
        if random.Random(f"{seed} order {number}").random() < 0.3:
            for endpoint in (*endpoints, *changed):
                if endpoint["name"] == f"hook-{number}":
                    endpoint |= {"order": "key", "order_key": "tenant"}
    other_filters = _change_filters(random.Random(f"{seed} filters"), endpoints, changed)
    webhooks = document["webhooks"]
    again = document | {"webhooks": webhooks | {"endpoints": changed}}
    if rng.random() < 0.25:
        document["cycles"] = {"enabled": True, "dispatch_backlog": rng.choice([0, 5, 1000])}
        again["cycles"] = document["cycles"] | {"enabled": rng.random() < 0.7}
    if rng.random() < 0.2:
        again["kinds"] = []
    elif rng.random() < 0.2:
        again |= {"kinds": [SEATS], "reservations": {"enabled": False}}
    faults = {fault for fault in FAULTS[:-2] if rng.random() < 0.4}
    operations = {operation for operation in OPERATIONS[:-1] if rng.random() < (0.5 if operation == "replay" else 0.3)}
    if random.Random(f"{seed} calm").random() < 0.2:
        faults = faults & CALM | {"receivers"}
        operations &= CALM
    if random.Random(f"{seed} log").random() < 0.2:
        faults.add("log")
    if random.Random(f"{seed} repairs").random() < 0.2:
        operations.add("drift")
    if other_filters:
        faults.add("canary")
    names = [endpoint["name"] for endpoint in (*endpoints, *changed)]
    return Plan(
        seed,
        minutes * 60,
        shards,
        roles,
        Settings.model_validate(document),
        Settings.model_validate(again),
        rng.randint(1, 3),
        rng.choice([0.1, 0.3, 1.0]),
        rng.choice([5.0, 20.0, 60.0]),
        rng.choice([0.0, 0.01, 0.1]),
        frozenset() if clean else frozenset(faults),
        frozenset() if clean else frozenset(operations),
        seats,
        {name: rng.choice([0.05, 0.5, timeout * 0.9]) for name in dict.fromkeys(names)},
        rng.choice(["", "polite", "polite", "blind", "keeps"]) if "cycles" in document else "",
        not clean and random.Random(f"{seed} trickle").random() < 0.5,
        "" if clean else random.Random(f"{seed} outage").choice(["", "", "", "flood", "orphan"]),
        not clean and random.Random(f"{seed} hang").random() < 0.6,
        document["sweep"]["precision"] != "0s" and random.Random(f"{seed} busy").random() < 0.5,
    )


def _change_filters(rng: random.Random, endpoints: list[dict[str, Any]], changed: list[dict[str, Any]]) -> bool:
    """Perhaps widen or narrow the filter of an endpoint that is there before and after a reload. Whether it was."""
    both = [(old, new) for old in endpoints for new in changed if old["name"] == new["name"]]
    if not both or rng.random() > 0.3:
        return False
    old, new = rng.choice(both)
    narrow, wide = rng.sample((old, new), 2)
    narrow["tenants"] = ["acme"]
    wide.pop("tenants", None)
    return True


def _endpoint(rng: random.Random, number: int) -> dict[str, Any]:
    name = f"hook-{number}"
    endpoint: dict[str, Any] = {"name": name, "url": f"http://{name}/", "secrets": ["s" * 24]}
    if rng.random() < 0.4:
        endpoint |= {"batch_size": rng.choice([2, 10, 50]), "batch_wait": rng.choice(["10ms", "50ms", "500ms"])}
    if rng.random() < 0.25:
        endpoint["format"] = "cloudevents"
    if rng.random() < 0.2:
        endpoint["tenants"] = ["acme", "globex"]
    if rng.random() < 0.15:
        endpoint["scopes"] = ["tenant:acme*"]
    if rng.random() < 0.15:
        endpoint["events"] = ["reservation"]
    if rng.random() < 0.25:
        endpoint["max_rate"] = rng.choice([8, 20])
    if rng.random() < 0.3:
        endpoint["start"] = rng.choice(["beginning", "1h"])
    return endpoint


def _document(
    rng: random.Random, shards: list[ShardPlan], endpoints: list[dict[str, Any]], seats: bool, timeout: int
) -> dict[str, Any]:
    initial = rng.choice([2, 5, 10])
    document: dict[str, Any] = {
        "redis": {"url": shards[0].url, "socket_timeout": rng.choice(["2s", "5s"])},
        "keys": {"prefix": shards[0].prefix},
        "http": {"listen": ""},
        "sweep": {
            "interval": rng.choice(["1s", "2s", "5s"]),
            "lease_ttl": rng.choice(["3s", "6s", "15s"]),
            "batch_size": rng.choice([3, 20, 1000]),
            "pipeline_depth": rng.choice([1, 4, 50]),
            "pipeline_depth_min": 1,
            "time_budget": rng.choice(["1s", "30s"]),
        },
        "reconcile": {"interval": rng.choice(["", "30s", "2m"])},
        "events": {"retention": rng.choice(["5s", "1m", "30d"]), "attempts_kept": rng.choice([0, 20, 1000])},
        "webhooks": {
            "concurrency": max(rng.choice([3, 4, 8]), len(shards) * (len(endpoints) + 1)),
            "timeout": f"{timeout}s",
            "attempts": rng.choice([1, 2, 3]),
            "backoff_initial": "200ms",
            "backoff_max": rng.choice(["1s", "4s"]),
            "redelivery_initial": f"{initial}s",
            "redelivery_max": f"{rng.choice([1, 4, 8]) * initial}s",
            "probe_max": rng.choice(["5s", "20s"]),
            "max_age": rng.choice(["40s", "2m", "1h", "1h", "1h"]),
            "endpoints": endpoints,
        },
        "kinds": [SEATS] if seats else [],
        "shutdown_grace": rng.choice(["2s", "10s"]),
    }
    if len(shards) > 1:
        del document["redis"]["url"], document["keys"]
        document["shards"] = [{"name": each.name, "url": each.url, "prefix": each.prefix} for each in shards]
    return document


def bound(plan: Plan) -> float:
    """
    The sum of what may lie between an event and its delivery when nothing fails any more: the deadline, the dead
    holder's lease (four times, as its keeper may be a stranger) and a tick, the take-over of a dead process's events,
    the longest wait of a parked event, the probe of an open circuit, a request with its retries; and twice the part
    that one such round may have to repeat, as the last fault may have hit its end. A clock that was set has moved the
    deadlines, and with them every wait.
    """
    settings = plan.settings
    webhooks, sweep = settings.webhooks, settings.sweep
    deadline = plan.longest_ttl + EXTENSION + GRACE
    swept = 4 * sweep.lease_ttl.total_seconds() + sweep.time_budget.total_seconds() + sweep.interval.total_seconds()
    request = webhooks.attempts * (webhooks.timeout.total_seconds() + webhooks.backoff_max.total_seconds())
    waits = webhooks.redelivery_max.total_seconds() + webhooks.probe_max.total_seconds()
    more = (3 * STEP if "clock" in plan.faults else 0) + (CYCLES if settings.cycles.enabled else 0)
    return deadline + swept + 2 * (request + waits + 15 + 15) + 80 + more
