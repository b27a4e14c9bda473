"""
Bugs that are planted to test the simulation itself: each a small patch of the program, made in the simulation's process
only. `python -m proof.simulation --planted` counts the seeds that each needs to be found.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import redis

import sweeperd.delivery.relay
import sweeperd.delivery.senders
import sweeperd.ops.reconcile.budget_repair
import sweeperd.runtime.schedule
from sweeperd.delivery.circuit import CircuitBreaker, EndpointStateCache, Redelivery
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.intake import Intake
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.order import OrderedQueue
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.reader import Reader
from sweeperd.delivery.scan import DueScan, ProbeChooser
from sweeperd.delivery.senders import BatchSender
from sweeperd.delivery.settler import Settler
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import QueuedHandler
from sweeperd.outbox import ConsumerGroups, Filters, Outbox, Subscription, is_waiting
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.periodic import PeriodicTask
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Clock, Shard, operations, scripts
from sweeperd.store.errors import is_missing_group
from sweeperd.store.lease import Lease
from sweeperd.store.operations import Operation, operation
from sweeperd.store.scripts import Script
from sweeperd.store.streams import StreamId

Patch = Callable[[], None]
#: Name -> what is wrong, and the patch.
PLANTED: dict[str, tuple[str, Patch]] = {}


def planted(what: str) -> Callable[[Patch], Patch]:
    """Name a patch after its function."""

    def take(patch: Patch) -> Patch:
        PLANTED[patch.__name__.replace("_", "-")] = (what, patch)
        return patch

    return take


def put(owner: Any, name: str, function: Any) -> None:
    """Give a class another function."""
    setattr(owner, name, function)


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Give a class or a module another function, made from the one that it has."""
    setattr(owner, name, make(getattr(owner, name)))


def in_script(script: str, before: str, after: str) -> None:
    """Replace a piece of the text of a script. Raises ValueError if the script does not have it."""
    original = scripts.source
    if before not in original(script):
        raise ValueError(f"{script} has changed: {before!r} is not in it")

    def source(name: str) -> str:
        text = original(name)
        return text.replace(before, after) if name == script else text

    vars(scripts)["source"] = source


def nothing(*_: Any) -> Operation[list[Any]]:
    """An operation that finds nothing."""
    yield from ()
    return []


@planted("an event is acknowledged before the receiver has answered")
def ack_before_answer() -> None:
    def make(original: Any) -> Any:
        def deliver(self: Any, batch: Any) -> Any:
            with contextlib.suppress(redis.RedisError):
                self._lane.outbox.acknowledge(self._lane.group, [entry.id for entry in batch.entries])
            return original(self, batch)

        return deliver

    replace(BatchSender, "_deliver", make)


@planted("three in ten events that failed are acknowledged, not parked")
def lost_nack() -> None:
    def make(original: Any) -> Any:
        def nack(self: Any, group: str, entries: Any) -> Operation[None]:
            kept = [entry for entry in entries if random.random() > 0.3]
            yield from self.acknowledge.part(group, [entry.id for entry in entries if entry not in kept])
            yield from original.__get__(self, Outbox).part(group, kept)

        return operation(nack)

    replace(Outbox, "nack", make)


@planted("nobody takes over the events of a dead process")
def no_take_over() -> None:
    def make(original: Any) -> Any:
        return lambda self, pending, end: is_waiting(pending.owner) and original(self, pending, end)

    replace(DueScan, "_due", make)
    put(Outbox, "orphaned", operation(nothing))


@planted("a process does not tell the others which events it has in hand")
def no_heartbeat() -> None:
    put(Reader, "heartbeat", lambda _: None)


@planted("the stream is trimmed past a group that is behind")
def trim_past_slow_group() -> None:
    put(ConsumerGroups, "_first_needed", lambda *_: StreamId.parse(b"9999999999999-0"))


@planted("a replay ends while events are in hand, and they are forgotten when the process dies")
def replay_ends_early() -> None:
    in_script("delivery/end_replay", "group.pending > 0 or", "false or")


@planted("a group that was lost is made at the end of the stream")
def group_made_at_end() -> None:
    in_script("delivery/keep_groups", "if smaller(last, position) then", "position = last\n    if false then")


@planted("the age of an event is counted by the host's clock")
def max_age_by_host_clock() -> None:
    put(Clock, "now_ms", lambda _: int(time.time() * 1000))


@planted("a group is made once; if it is lost while its endpoint rests, nobody makes it again")
def group_lost_while_resting() -> None:
    def make(original: Any) -> Any:
        def keep(self: Any) -> None:
            if not self._ready:
                original(self)

        return keep

    replace(Dispatcher, "keep_groups", make)
    in_script("delivery/keep_groups", "elseif kind == 'seen' then", "else\n    position = last\n  end\n  if false then")


@planted("an entry expires by the index alone, though its deadline was moved")
def deadline_by_the_index() -> None:
    in_script("sweep/expire", "if phase == 'not_due' then", "if false then")


@planted("the grace of a reservation is not waited for")
def no_grace() -> None:
    in_script("sweep/expire", "if phase == 'in_grace' then", "if false then")


@planted("the last scope of an expired reservation is not released")
def one_scope_left() -> None:
    in_script(
        "sweep/expire", "for i = 1, #scopes do\n  local key = scopes[i]", "for i = 1, 1 do\n  local key = scopes[i]"
    )


@planted("an expiry writes its event twice")
def event_twice() -> None:
    in_script(
        "sweep/expire",
        "local added, problem = add_expiry(",
        "call('XADD', KEYS[3], '*', 'id', ARGV[1], 'tenant', tenant or '', 'expired_at', now_text)\n"
        "local added, problem = add_expiry(",
    )


@planted("an open circuit is never probed")
def no_probe() -> None:
    put(CircuitBreaker, "take_probe", lambda _: False)


@planted("a process that has seen a pause does not see its end")
def resume_unseen() -> None:
    def make(original: Any) -> Any:
        def learn(self: Any, entry: Any, changes: int) -> None:
            if not self.state.paused:
                original(self, entry, changes)

        return learn

    replace(EndpointStateCache, "learn", make)


@planted("the second half of a batch that is halved is forgotten")
def half_lost() -> None:
    replace(sweeperd.delivery.senders, "_halves", lambda original: lambda *batch: original(*batch)[:1])


@planted("an endpoint gets events that it did not ask for")
def filter_ignored() -> None:
    put(Subscription, "wants", lambda *_: True)


@planted("what only the filter of another process wants is acknowledged")
def others_filter_ignored() -> None:
    put(Filters, "owner_for", lambda *_: None)


@planted("a process reads the filters of the others once, and judges by them forever")
def judged_before() -> None:
    for script, argument in (("acknowledge_unwanted", 2), ("pass_unwanted", 3)):
        compared = f"(redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[{argument}]"
        in_script(f"delivery/{script}", compared, "false")
    replace(Filters, "update", lambda original: lambda self: None if self._next_at else original(self))


@planted("nobody takes an event that was released for another filter")
def released_forgotten() -> None:
    put(Outbox, "may_take", lambda *_: False)


@planted("a lease outlives its holder by years, and nobody doubts the lease")
def lease_for_ever() -> None:
    def make(original: Any) -> Any:
        def begin(self: Any, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            self._ttl_ms = 10**12
            self._token = self._token.partition(":")[0]  # without its length

        return begin

    replace(Lease, "__init__", make)
    put(KindSweep, "_may_overrule", lambda *_: False)


@planted("a task waits for the host's clock after the clock was set back")
def clock_set_back() -> None:
    put(PeriodicTask, "catch_up", lambda _: None)


@planted("a tick over what is due takes the place of the full tick")
def full_tick_swallowed() -> None:
    def make(original: Any) -> Any:
        def order(state: Any, tick: Any, at: Any, rules: Any) -> Any:
            after, ordered = original(state, tick, at, rules)
            return dataclasses.replace(after, full_at=at.now + rules.interval), ordered

        return order

    replace(sweeperd.runtime.schedule, "_order", make)


@planted("a script that the server has forgotten is not sent again")
def script_forgotten() -> None:
    put(Script, "run_unknown", lambda _self, _client, _calls, replies: replies)


@planted("a reader ends when Redis cannot be reached")
def reader_ends() -> None:
    def make(original: Any) -> Any:
        def one_round(self: Any) -> Any:
            try:
                return original(self)
            except (RedisUnavailable, redis.ConnectionError):
                self._until_idle = True
                raise

        return one_round

    replace(Reader, "round", make)


@planted("each process gives an event another id")
def id_by_process() -> None:
    def origin(self: Any) -> bytes:
        return str(id(self)).encode()

    put(Shard, "origin", property(origin))


@planted("of each batch only the first event is acknowledged")
def first_acknowledged() -> None:
    def make(original: Any) -> Any:
        return operation(lambda self, group, ids: original.__get__(self, Outbox).part(group, ids[:1]))

    replace(Outbox, "acknowledge", make)


@planted("a released reservation stays in the index")
def release_stays_indexed() -> None:
    in_script("ledger/release", "redis.call('ZREM', request.index, request.id)", "")


@planted("an event is given up on at a tenth of its age")
def given_up_early() -> None:
    def make(original: Any) -> Any:
        def oldest(self: Any, now_ms: int) -> int:
            return int(now_ms - self.max_age_ms // 10) if original(self, now_ms) else 0

        return oldest

    replace(Redelivery, "oldest_ms", make)


@planted("settlements are dropped when Redis cannot be reached, and stay in hand forever")
def settlement_lost() -> None:
    def make(original: Any) -> Any:
        def write(self: Any, lane: Any, left: Any) -> Operation[None]:
            with contextlib.suppress(redis.ConnectionError):
                yield from original(self, lane, left)

        return write

    replace(Settler, "_write", make)


@planted("while a circuit is open, nobody looks at the events of a dead process")
def open_circuit_forgets() -> None:
    put(DueScan, "take_orphaned", nothing)


@planted("the probe of an open circuit is spent on an event that the endpoint does not want")
def probe_unwanted() -> None:
    def take(self: Any, _count: int) -> Operation[Any]:
        chosen = yield from self._choose()
        new = [] if self._subscription.exhausted else (yield from self._outbox.read.part(self._group, 1))
        parked = [] if chosen is None or new else (yield from self._outbox.claim.part(self._group, [chosen], 0))
        self._last = (new + parked)[0].id if new or parked else None
        return new, parked

    put(ProbeChooser, "take", take)
    put(CircuitBreaker, "return_probe", lambda _: None)


@planted("a heartbeat takes an event back that was parked or taken over meanwhile")
def heartbeat_takes_back() -> None:
    in_script(
        "delivery/change_owner",
        "if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0",
        "if (ARGV[2] == ARGV[3] or #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0)",
    )


@planted("the sweep waits for the lease of Cycles forever")
def no_patience() -> None:
    put(CyclesLease, "permits", lambda self: self.held)


@planted("a delivery of Cycles gets another id at each try")
def relay_twice() -> None:
    replace(sweeperd.delivery.relay, "_hashed_id", lambda original: lambda text: original(text + random.randbytes(8)))


@planted("a reservation whose budget was closed is set aside")
def closed_budget_quarantined() -> None:
    in_script("sweep/expire", "call('HGET', key, 'status') == 'CLOSED'", "false")


@planted("of two repairs of a budget at the same time both write")
def two_repairs() -> None:
    class Shared(Lease):
        """A lease that everybody gets."""

        def acquire(self, *, briefly: bool = False) -> bool:
            """True, always."""
            super().acquire(briefly=briefly)
            self._owned = True
            return True

    vars(sweeperd.ops.reconcile.budget_repair)["Lease"] = Shared
    in_script("ops/repair_budget", "if redis.call('GET', KEYS[2]) ~= ARGV[3] then", "if false then")


@planted("a line of the log waits for its reader")
def log_waits() -> None:
    put(QueuedHandler, "emit", lambda self, record: self._written(self._encoded(self.format(record))))


@planted("the lane whose turn it was keeps it, and slow requests count for all")
def unfair_pool() -> None:
    def find(self: Any, now: float) -> Any:
        self._place_due(now)
        if self._round and len(self._in_flight) < self._concurrency:
            return self._round[0], now
        return None, now + 1.0

    put(Pool, "_find", find)

    def join(self: Any, lane: Lane, **_how: bool) -> None:
        if not lane.in_round:
            lane.in_round = True
            self._round.appendleft(lane)

    put(Pool, "_join_round", join)


@planted("a lane that has caught up hears of no later event")
def lost_wake_up() -> None:
    def behind(self: Any, value: bool) -> None:
        self.was_behind = value and getattr(self, "was_behind", True)

    put(Intake, "behind", property(lambda self: self.was_behind, behind))


@planted("two senders take the same batch of a lane")
def lane_offered_twice() -> None:
    def make(original: Any) -> Any:
        def take(self: Any, work: Any, lane: Lane, now: float) -> Any:
            taken = original(self, work, lane, now)
            self.offers = getattr(self, "offers", 0) + 1
            if self.offers % 2 and not taken[1].probe:
                lane.queue.put_back(dataclasses.replace(taken[1]))
                self._place(lane, now)
            return taken

        return take

    replace(Pool, "_take", make)


@planted("the scan of one lane keeps the others from theirs")
def scan_starves() -> None:
    def make(original: Any) -> Any:
        def chores(self: Any) -> Any:
            for each in list(self._at)[1:]:
                each.scan._next_at = self._clock() + 3600
            return original(self)

        return chores

    replace(Reader, "_do_chores", make)


@planted("if one group is missing, the events that others were given in the same round trip are forgotten")
def lost_beside_missing_group() -> None:
    def make(original: Any) -> Any:
        def send(client: Any, requests: Any) -> Any:
            replies = original(client, requests)
            missing = [reply for reply in replies if isinstance(reply, Exception) and is_missing_group(reply)]
            if not missing:
                return replies
            return [
                [] if request.words[0] == "XREADGROUP" else reply
                for request, reply in zip(requests, replies, strict=True)
            ]

        return send

    replace(operations, "_send", make)
    replace(
        DueScan, "_due", lambda original: lambda self, each, end: is_waiting(each.owner) and original(self, each, end)
    )


@planted("an event that fails holds back no later event of its key")
def order_ignored() -> None:
    put(OrderedQueue, "_follows", lambda *_: True)


@planted("every process works on an endpoint with an order")
def order_shared() -> None:
    put(OrderedQueue, "owned", property(lambda _: True))


@planted("a process that takes over does not learn what is pending")
def order_unlearnt() -> None:
    put(OrderedQueue, "complete", property(lambda _: True, lambda *_: None))


def plant(name: str) -> None:
    """Make this patch. Raises KeyError if there is none of the name."""
    PLANTED[name][1]()
