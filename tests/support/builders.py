"""Objects of sweeperd as tests build them: what a test does not name is as usual."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis

from sweeperd.config import EndpointSettings, Settings, SweepSettings
from sweeperd.config.kinds import KindSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.attempt_log import AttemptLog
from sweeperd.delivery.batches import BatchLimits, BatchQueue
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, EndpointStateCache, Redelivery
from sweeperd.delivery.in_flight import InFlight, Room
from sweeperd.delivery.lane import Lane
from sweeperd.metrics import Metrics
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.health import ShardView
from sweeperd.ops.processes import ProcessDocument, Processes, ProcessNote
from sweeperd.ops.rate import Rate
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.last_walk import LastWalk
from sweeperd.ops.status import Due, KindDocument, ShardStatus, WalkDocument
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.runtime.reconciler import PeriodicReconciler
from sweeperd.store import Clock, Keys, Shard
from sweeperd.store.scripts import Call, Script, source
from sweeperd.sweep import Decision, Kind
from sweeperd.sweep.backlog import Backlog
from sweeperd.sweep.configured import configured
from sweeperd.sweep.last_sweep import LastSweep
from sweeperd.sweep.reservations import reservations
from sweeperd.sweep.sweeper import Sweeper


class StillClock(Clock):
    """Redis's clock, ms, as it would be read if it stood still; `now` may be moved."""

    def __init__(self, now: int) -> None:
        super().__init__()
        self.now = now

    def now_ms(self) -> int:
        return self.now


def batch_limits(events: int = 1, size: int = 1024 * 1024, wait: float = 0.05) -> BatchLimits:
    """The limits of an endpoint's batches, as its settings have them by default."""
    return BatchLimits(events, size, wait)


def in_flight(*entries: OutboxEntry, capacity: int = 100) -> InFlight:
    """These events in hand, of so many at most."""
    made = room_for(capacity)
    made.add(entries)
    return made


def room_for(capacity: int, size: int = 10**9) -> InFlight:
    """Room for so many events, and so many bytes."""
    return InFlight(Room(capacity, capacity, size, typical=1.0))


def redelivery(initial: float = 30.0, longest: float = 3600.0, max_age_ms: int = 10**9) -> Redelivery:
    """The first and the longest wait of a parked event, seconds, and the greatest age of an event, ms."""
    return Redelivery(initial, longest, max_age_ms, 0)


def make_lane(shard: Shard, name: str = "hook", endpoint: dict[str, Any] | None = None, **parts: Any) -> Lane:
    """The lane of one endpoint of this process, `us`. `parts`: the fields of the lane that are not as usual."""
    usual: dict[str, Any] = {
        "metrics": Metrics(),
        "circuit": CircuitBreaker(30.0, 3600.0),
        "limits": batch_limits(),
        "timing": DEFAULT_TIMING,
    }
    given = usual | parts
    settings = EndpointSettings.model_validate({"name": name, "url": "http://127.0.0.1:1/"} | (endpoint or {}))
    made: dict[str, Any] = {
        "endpoint": name,
        "subscription": Subscription(settings),
        "outbox": given.get("outbox") or Outbox(shard, "us", timing=given["timing"]),
        "redelivery": Redelivery(30.0, 3600.0, 3_600_000, 0),
        "publisher": CircuitPublisher(shard, name, "us", given["circuit"], given["timing"]),
        "state": EndpointStateCache(shard, name),
        "in_flight": room_for(100),
        "queue": BatchQueue(given["limits"], given["timing"].clock),
        "attempts": AttemptLog(shard, name, 0, given["metrics"].webhooks.dropped_attempts.labels(name)),
        "log_fields": {"endpoint": name},
    }
    return Lane(shard=shard, **(made | given))


# ---- the sweep


def reservations_kind(keys: Keys | None = None, settings: SweepSettings | None = None) -> Kind:
    """The kind of the reservations."""
    return reservations(keys or Keys(), settings or SweepSettings())


def configured_kind(kind: KindSettings, settings: Settings, keys: Keys | None = None) -> Kind:
    """One of the kinds of these settings."""
    return configured(kind, settings, keys or Keys())


def make_sweeper(
    shard: Shard,
    kind: Kind | None = None,
    settings: SweepSettings | None = None,
    observe: Callable[[Sequence[Decision], str], None] = lambda *_: None,
    stop: threading.Event | None = None,
) -> Sweeper:
    """A sweeper of this kind, by default of the reservations. `observe` gets each page's decisions."""
    chosen = settings or SweepSettings()
    return Sweeper(shard, kind or reservations_kind(shard.keys, chosen), chosen, observe, stop or threading.Event())


# ---- scripts and walks


def run_script(name: str, client: redis.Redis, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
    """Run a script of the package once. Returns its reply; raises redis.RedisError."""
    return Script(name).run(client, Call(list(keys), list(arguments)))


def script_source(name: str) -> str:
    """The text of a script of the package, with everything included."""
    return source(name)


#: A walk that confirms a fault at once, because what tests plant stays.
UNSETTLED = Timing(settle_faults=0.0)


def make_reconciler(
    settings: Settings,
    shard: Shard,
    metrics: Metrics | None = None,
    stop: threading.Event | None = None,
    timing: Timing = UNSETTLED,
) -> PeriodicReconciler:
    """The daily walks of one daemon."""
    return PeriodicReconciler(settings, shard, metrics or Metrics(), stop or threading.Event(), timing)


# ---- the status


def last_sweep(at_ms: int, expired: int = 5) -> LastSweep:
    """What the last sweep, which was whole, left behind."""
    return LastSweep(at_ms, "host-1", 0.1, True, expired, 0, 0)


def processes(**duties: bool) -> Processes:
    """One process with these duties; without any: the processes could not be read."""
    note = ProcessNote.model_validate({"process": "host-1"} | duties)
    return Processes((ProcessDocument.of(note, 0, 0),) if duties else None)


def last_walk(finished_at: int, **found: int) -> WalkDocument:
    """A walk of reconcile that found so many of each fault."""
    walk = LastWalk(finished_at=finished_at, found={Fault(name): count for name, count in found.items()})
    return WalkDocument.model_validate(walk)


def kind_status(
    name: str,
    last_walk: WalkDocument | None = None,
    *,
    now: int = 0,
    due: Due | int = 0,
    rate: Rate | None = None,
    tick: LastSweep | None = None,
    sweeping: str = "",
    **backlog: Any,
) -> KindDocument:
    """A kind that was never swept unless there is a `tick`; `backlog`: fields of a `Backlog`, else nothing waits."""
    found = due if isinstance(due, Due) else Due(due, 0, due)
    nothing: dict[str, Any] = {"due": found.entries, "oldest_due_seconds": found.oldest_seconds, "quarantined": 0}
    measured = Backlog(**nothing | {"alive": found.entries} | backlog)
    more = {"sweeping": sweeping, "last_walk": last_walk}
    return KindDocument.of(name, measured, found, rate or Rate(), tick, now, **more)


def shard_status(
    name: str = "eu", address: str = "", *, kinds: Sequence[KindDocument] = (), **about: Any
) -> ShardStatus:
    """A shard with these kinds beside reservations. `about`: of `kind_status`, for reservations; else of the shard."""
    ours = ("due", "rate", "tick", "sweeping", "last_walk", "quarantined", "alive")
    built_in = {field: about.pop(field) for field in ours if field in about}
    first = kind_status("reservations", now=about.get("now_ms", 0), **built_in)
    return ShardStatus(name, address, kinds=(first, *kinds), **about)


def endpoint_status(name: str, **fields: Any) -> EndpointDocument:
    """A configured endpoint without a group to which nobody delivers, except for these fields."""
    fields |= {"endpoint": name, "rate_window_seconds": 60.0 if "rate" in fields else 0.0}
    if (pending := fields.get("pending")) is not None:
        fields["empty_in_seconds"] = Rate(fields.get("rate", 0.0)).seconds_for(pending)
    usual: dict[str, Any] = {
        "state": "delivering",
        "configured": fields.get("state") != "unknown",
        "pending_exact": True,
        "dead_letters_counted": True,
        "falling_behind": False,
        "circuit_open": fields.get("state") == "open",
        "replicas": [],
    }
    usual |= dict.fromkeys(("paused_reason", "failure", "warning"), "")
    usual |= dict.fromkeys(("oldest_pending_seconds", "muted_seconds"), 0.0)
    usual |= dict.fromkeys(("open_on", "processes", "failures", "dead_letters"), 0)
    return EndpointDocument.model_validate(dict.fromkeys(EndpointDocument.model_fields) | usual | fields)


def reason_count(kind: str, reason: str, count: int, *newest: str) -> ReasonCount:
    """So many entries of a kind that are in quarantine for one reason."""
    return ReasonCount(kind, reason, count, newest)


def shard_view(error: str = "", **status: Any) -> ShardView:
    """The shard `eu` with this status."""
    return ShardView("eu", "", shard_status(**status), error=error)
