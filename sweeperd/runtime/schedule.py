"""
Decides when each kind of a shard is swept.

One thread per shard owns a `State` per kind. `advance` is a pure function from the state, a message and the time to the
next state and an action. The thread carries the action out: it polls Redis, or has APScheduler run a tick.

| state | message or event | next state | action |
|---|---|---|---|
| blind | the full tick is due | ticking | tick over the whole index |
| leading, standing by, following, suspecting | the full tick is due | ticking | tick over the whole index |
| leading | a deadline or a known grace has ended | ticking | tick over what is due |
| standing by | the lease is free, nothing has ended | leading | |
| standing by | the lease is free, a deadline has ended | ticking | tick over what is due |
| leading, standing by | another process noted its tick last | following | |
| leading | so it did, and an entry is overdue by more than LEADS_WITHIN | suspecting | poll the lease at once |
| standing by | so it did, such an entry is there, the lease is held | suspecting | |
| standing by | so it did, such an entry is there, the lease is free | ticking | tick over the whole index |
| following | this process noted its tick last | leading | |
| following | an entry is overdue by more than LEADS_WITHIN | suspecting | poll the lease at once |
| suspecting | this process noted its tick last | standing by if the lease is held, else leading | |
| suspecting | no entry is overdue any more | following | |
| suspecting | an entry is overdue and the lease is free | ticking | tick over the whole index |
| any of these four | a command of a poll was refused, or the note cannot be read | blind | |
| any of these four | Redis could not be reached, or the Cycles lease permits no poll | the same | poll in a second |
| waiting | the lease of the Cycles services permits it | ticking | tick over the whole index |
| ticking | the tick was complete, and this process leads | leading | |
| ticking | the tick was complete, and it is unknown who leads | following | poll at once |
| ticking | another process holds the lease | standing by if this process led, else suspecting | |
| ticking | the Cycles lease does not permit a tick | waiting | |
| ticking | the tick failed or was cut short, or there is no `precision` | blind | |
| ticking | the tick has not begun within START_WITHIN | ticking | order the tick again |

The process that noted the last tick leads, and polls every `precision`. A follower polls once a second. A process that
stands by polls like a leader for a second, in case the lease is held for a short tick, and then once a second. A full
tick that becomes due during another tick follows it at once. A follower that takes over has a full tick, because only
the last leader knew when graces end. If it decided nothing but entries in grace, the tick may not be noted. So until
another note appears, the follower goes on from its own tick, not from the older note. A newer note means that another
process has decided the graces that had ended by its tick.
"""

import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, Protocol

import redis
from hiredis import pack_command

from sweeperd.progress import Progress
from sweeperd.store.connect import ClusterClient
from sweeperd.store.lease import Lease, process_name
from sweeperd.store.scripts import Command, micros_of, run_commands, server_clock
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind
from sweeperd.text import whole

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

log = logging.getLogger(__name__)

#: Between two polls of a process that does not lead, seconds.
FOLLOW_EVERY = 1.0
#: How long APScheduler may take to begin a tick before the tick is ordered again, seconds.
START_WITHIN = 1.0
#: Between two readings of the last tick's note, seconds.
NOTE_EVERY = 5.0
#: How late an entry has to be before a process that does not lead acts, ms.
LEADS_WITHIN = 200
#: The part of the interval by which full ticks are spread, so that replicas do not tick at the same moment.
JITTER = 0.1


class Phase(StrEnum):
    """What the process is doing about a kind."""

    #: It is unknown up to which score the index was decided, so there are no polls until the next full tick.
    BLIND = "blind"
    LEADING = "leading"
    STANDING_BY = "standing by"
    FOLLOWING = "following"
    SUSPECTING = "suspecting"
    #: For the lease of the Cycles services.
    WAITING = "waiting"
    TICKING = "ticking"


_LEADS = frozenset({Phase.LEADING, Phase.STANDING_BY})
_POLLS = frozenset({Phase.LEADING, Phase.STANDING_BY, Phase.FOLLOWING, Phase.SUSPECTING})
_READS_LEASE = frozenset({Phase.STANDING_BY, Phase.SUSPECTING})


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds. Without a `precision` there are no polls, only full ticks."""

    interval: float
    precision: float | None


@dataclass(frozen=True, slots=True)
class State:
    """Times are monotonic, seconds; those that end in `_ms` are on Redis's clock."""

    phase: Phase = Phase.BLIND
    #: When the next full tick is due.
    full_at: float = -math.inf
    #: The score up to which each entry was decided, the first score after it, and when the first known grace ends.
    seen_ms: int | None = None
    head_ms: float = math.inf
    grace_end_ms: float = math.inf
    #: The next poll, and when the note was last read.
    poll_at: float = -math.inf
    read_at: float = -math.inf
    since: float = -math.inf
    #: Since when this process did not get the lease; None if it did at the last tick.
    stood_by_since: float | None = None
    #: When another process noted the last tick; None if this process did.
    others_note_ms: int | None = None
    #: The ordered tick, whether it has begun, and whether this process led when it was ordered.
    order: "Tick | None" = None
    begun: bool = False
    led: bool = False

    @property
    def ends_ms(self) -> float:
        """When the next tick is needed, as far as known."""
        return min(self.head_ms, self.grace_end_ms)


@dataclass(frozen=True, slots=True)
class Poll:
    """An action: read these. `head`: the first entry after `seen_ms`. `note`: who noted the last tick."""

    head: bool
    note: bool
    clock: bool
    lease: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """
    An action: run a tick over what is due after the score `seen_ms`, or a full one if None. `leave_ms`: a leader's full
    tick leaves what became due within this time to the next tick, which learns when its grace ends. `briefly`: it is
    probably short. `stood_by`: how long this process has been without the lease.
    """

    seen_ms: int | None = None
    leave_ms: int = 0
    briefly: bool = False
    stood_by: float = 0.0
    others_note_ms: int | None = None

    @property
    def full(self) -> bool:
        return self.seen_ms is None


FULL_TICK = Tick()


@dataclass(frozen=True, slots=True)
class Note:
    """The note of the last tick; None if unreadable. `seen_ms`: the score up to which the tick decided."""

    ours: bool
    at_ms: int | None
    seen_ms: int | None


@dataclass(frozen=True, slots=True)
class Polled:
    """The replies of Redis to a poll. `held`: whether another process holds the lease."""

    head_ms: float | None = None
    note: Note | None = None
    held: bool = False


class Signal(Enum):
    """A message without details."""

    #: A command of a poll was refused. Redis could not be reached.
    REFUSED = auto()
    UNREACHABLE = auto()
    #: The tick has begun. Another process holds the lease. The Cycles lease did not permit the tick.
    BEGUN = auto()
    STOOD_BY = auto()
    BARRED = auto()


@dataclass(frozen=True, slots=True)
class Complete:
    """A tick reached its end, under the lease unless `alone`. `noted`: whether it was, for other processes."""

    seen_ms: int
    grace_end_ms: float
    noted: bool
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The tick was cut short, or failed for the reason `failure`."""

    failure: str = ""


#: How a tick ended; of the signals STOOD_BY or BARRED.
Outcome = Complete | Incomplete | Signal
Message = Polled | Outcome | None


@dataclass(frozen=True, slots=True)
class Moment:
    """When `advance` is called: monotonic seconds, Redis's clock, a random number from 0 to 1, and Cycles' lease."""

    now: float
    server_ms: float
    spread: float = 0.0
    permitted: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """What `advance` decided. `wake_at`: when to call it again if no message comes, monotonic."""

    state: State
    action: Poll | Tick | None
    wake_at: float


def advance(state: State, message: Message, at: Moment, rules: Rules) -> Step:
    """The next state of one kind, what to do now, and when to wake."""
    state, tick = _receive(state, message, at, rules)
    if tick is not None:
        return Step(state, tick, _wake_at(state, at))
    state, action = _act(state, at, rules)
    return Step(state, action, _wake_at(state, at))


def _receive(state: State, message: Message, at: Moment, rules: Rules) -> tuple[State, Tick | None]:
    match message:
        case Polled() if state.phase in _POLLS:
            return _polled(state, message, at, rules)
        case Signal.REFUSED if state.phase in _POLLS:
            return _enter(state, Phase.BLIND, at, rules), None
        case Signal.UNREACHABLE:
            return replace(state, poll_at=at.now + FOLLOW_EVERY), None
        case Signal.BEGUN:
            return replace(state, begun=True), None
        case Complete():
            return _completed(state, message, at, rules), None
        case Signal.STOOD_BY:
            since = at.now if state.stood_by_since is None else state.stood_by_since
            led, poll_at = state.led, state.since + (rules.precision or 0.0)
            state = replace(_ended(state, at, rules), stood_by_since=since, poll_at=poll_at)
            return _enter(state, Phase.STANDING_BY if led else Phase.SUSPECTING, at, rules), None
        case Signal.BARRED:
            return _enter(_ended(state, at, rules), Phase.WAITING, at, rules), None
        case Incomplete():
            return _enter(_ended(state, at, rules), Phase.BLIND, at, rules), None
    return state, None


def _completed(state: State, message: Complete, at: Moment, rules: Rules) -> State:
    leads, ordered_at = message.noted or state.led, state.since
    state = replace(
        _ended(state, at, rules),
        others_note_ms=None if message.noted else state.others_note_ms,
        seen_ms=message.seen_ms,
        head_ms=math.inf,
        grace_end_ms=message.grace_end_ms,
        # The first poll comes a precision after the order, however short the tick was.
        poll_at=ordered_at + (rules.precision or 0.0),
        stood_by_since=state.stood_by_since if message.alone else None,
    )
    if leads:
        return _enter(state, Phase.LEADING, at, rules)
    return _enter(replace(state, read_at=-math.inf), Phase.FOLLOWING, at, rules)


def _polled(state: State, message: Polled, at: Moment, rules: Rules) -> tuple[State, Tick | None]:
    leads, lease_read = state.phase in _LEADS, state.phase in _READS_LEASE
    if message.head_ms is not None:
        state = replace(state, head_ms=message.head_ms)
    if message.note is not None:
        note, leads = message.note, message.note.ours
        if not leads and (note.seen_ms is None or note.at_ms != state.others_note_ms):
            over = state.grace_end_ms <= (note.seen_ms or 0)
            state = replace(state, seen_ms=note.seen_ms, grace_end_ms=math.inf if over else state.grace_end_ms)
        state = replace(state, read_at=at.now, others_note_ms=None if leads else note.at_ms)
        if state.seen_ms is None:
            return _enter(state, Phase.BLIND, at, rules), None
    late_ms = at.server_ms - state.ends_ms
    if leads:
        return _polled_leading(state, message, late_ms, at, rules)
    if late_ms > LEADS_WITHIN:
        if lease_read and not message.held:
            return _order(state, FULL_TICK, at, rules)
        poll_at = at.now + FOLLOW_EVERY if lease_read else at.now
        return _enter(replace(state, poll_at=poll_at), Phase.SUSPECTING, at, rules), None
    return _enter(replace(state, poll_at=at.now + FOLLOW_EVERY), Phase.FOLLOWING, at, rules), None


def _polled_leading(
    state: State, message: Polled, late_ms: float, at: Moment, rules: Rules
) -> tuple[State, Tick | None]:
    precision = rules.precision or 0.0
    state = _enter(state, Phase.STANDING_BY if message.held else Phase.LEADING, at, rules)
    if late_ms <= 0:
        return replace(state, poll_at=at.now + min(precision, (1 - late_ms) / 1000)), None
    if not message.held:
        return _order(state, Tick(state.seen_ms, briefly=True), at, rules)
    brief = at.now - state.since <= FOLLOW_EVERY
    return replace(state, poll_at=at.now + (precision if brief else max(FOLLOW_EVERY, precision))), None


def _act(state: State, at: Moment, rules: Rules) -> tuple[State, Poll | Tick | None]:
    if state.phase is Phase.TICKING:
        if state.begun or at.now - state.since < START_WITHIN:
            return state, None
        return replace(state, since=at.now), state.order
    if state.phase is Phase.WAITING:
        return _order(state, FULL_TICK, at, rules) if at.permitted else (state, None)
    if at.now >= state.full_at:
        steady = state.phase is Phase.LEADING
        leave_ms = int(2000 * (rules.precision or 0.0)) if steady else 0
        return _order(state, Tick(None, leave_ms, steady), at, rules)
    if state.phase is Phase.BLIND or at.now < state.poll_at:
        return state, None
    if not at.permitted:
        return replace(state, poll_at=at.now + FOLLOW_EVERY), None
    fresh = at.now - state.read_at < NOTE_EVERY
    if state.phase is Phase.LEADING and fresh and at.server_ms > state.ends_ms:
        return _order(state, Tick(state.seen_ms, briefly=True), at, rules)
    lease = state.phase in _READS_LEASE
    note = lease or not fresh
    clock = note and (state.phase in _LEADS or state.seen_ms is None)
    # The thread reports the reply, or that there is none.
    return replace(state, poll_at=math.inf), Poll(state.seen_ms is not None, note, clock, lease)


def _ended(state: State, at: Moment, rules: Rules) -> State:
    """A tick is over. Full ticks that became due during a full tick are skipped."""
    if state.order is not None and state.order.full and state.full_at <= at.now:
        missed = math.floor((at.now - state.full_at) / rules.interval) + 1
        return replace(state, full_at=state.full_at + missed * rules.interval)
    return state


def _enter(state: State, phase: Phase, at: Moment, rules: Rules) -> State:
    if phase in _POLLS and rules.precision is None:
        phase = Phase.BLIND
    since = state.since if phase is state.phase else at.now
    return replace(state, phase=phase, since=since, order=None, begun=False)


def _order(state: State, tick: Tick, at: Moment, rules: Rules) -> tuple[State, Tick]:
    full_at = at.now + rules.interval * (1 - JITTER * at.spread) if tick.full else state.full_at
    led = state.phase in _LEADS
    stood_by = 0.0 if state.stood_by_since is None else at.now - state.stood_by_since
    tick = replace(tick, stood_by=stood_by, others_note_ms=state.others_note_ms)
    return replace(state, phase=Phase.TICKING, since=at.now, full_at=full_at, order=tick, begun=False, led=led), tick


def _wake_at(state: State, at: Moment) -> float:
    match state.phase:
        case Phase.TICKING:
            return math.inf if state.begun else state.since + START_WITHIN
        case Phase.WAITING:
            return at.now + FOLLOW_EVERY
        case Phase.BLIND:
            return state.full_at
    return min(state.full_at, state.poll_at)


class Sweep(Protocol):
    """What the schedule needs of the sweep of a kind."""

    name: str
    kind: Kind
    lease: Lease

    @property
    def permitted(self) -> bool: ...

    @property
    def hangs(self) -> bool: ...


class Schedule:
    """
    The thread that owns the states of a shard's kinds. It polls for all kinds in one round trip, and has APScheduler
    run each tick. `run` carries out a tick in a thread of APScheduler, and never raises.
    """

    def __init__(
        self, shard: Shard, stop: threading.Event, sweeps: Sequence[Sweep], rules: Rules, run: Callable[..., Outcome]
    ) -> None:
        self._shard = shard
        self._stop = stop
        self._rules = rules
        self._run_tick = run
        self._slots = [_Slot(sweep) for sweep in sweeps]
        self._inbox: queue.SimpleQueue[tuple[_Slot, Message] | None] = queue.SimpleQueue()
        self._scheduler: BackgroundScheduler | None = None
        self._connection: Any = None
        self._us = process_name().encode()
        self.progress = Progress()
        self.thread = threading.Thread(target=self._run, name=f"schedule-{shard.name}", daemon=True)

    def start(self, scheduler: "BackgroundScheduler") -> None:
        """Begin with a full tick of each kind. Raises RuntimeError if the system is out of threads."""
        self._scheduler = scheduler
        self.thread.start()

    def join(self, deadline: float) -> bool:
        """After a stop, wait until `deadline` (monotonic) for thread and ticks. Returns whether all have ended."""
        self._inbox.put(None)
        if self.thread.ident is not None:
            self.thread.join(max(0.0, deadline - time.monotonic()))
        ended = [slot.idle.wait(max(0.0, deadline - time.monotonic())) for slot in self._slots]
        return all(ended) and not self.thread.is_alive()

    def problems(self, patience: float) -> list[str]:
        """What is stuck or has died, as a sentence each, after `patience` seconds of silence."""
        place = f"on {self._shard.name} is stuck"
        found = [f"the sweep of {slot.sweep.name} {place}" for slot in self._slots if slot.is_stuck(patience)]
        if self.thread.ident is not None and not self.thread.is_alive():
            return [*found, f"the schedule of {self._shard.name} has died"]
        return [*found, f"the schedule {place}"] if self.progress.silent_for > patience else found

    def _run(self) -> None:
        wake_at = -math.inf
        while not self._stop.is_set():
            self._collect(wake_at)
            self.progress.step()
            try:
                wake_at = self._step_all()
            except Exception:
                log.exception("the schedule failed", extra={"shard": self._shard.name})
                wake_at = time.monotonic() + FOLLOW_EVERY
        self.progress.rest()
        self._disconnect()

    def _collect(self, wake_at: float) -> None:
        """Wait for messages of the ticks, until `wake_at` or the first one."""
        wait = min(max(0.0, wake_at - time.monotonic()), FOLLOW_EVERY)
        try:
            while (received := self._inbox.get(timeout=wait)) is not None:
                slot, message = received
                slot.messages.append(message)
                wait = 0.0
        except queue.Empty:
            pass

    def _step_all(self) -> float:
        """Advance each kind. Returns when to wake."""
        polls: list[tuple[_Slot, Poll]] = []
        for slot in self._slots:
            messages, slot.messages = slot.messages or [None], []
            for message in messages:
                action = self._step(slot, message)
                if isinstance(action, Poll):
                    polls.append((slot, action))
        if polls:
            for (slot, _), message in zip(polls, self._poll(polls), strict=True):
                # The message may call for another poll, which the next round sends.
                if isinstance(self._step(slot, message), Poll):
                    slot.state, slot.wake_at = replace(slot.state, poll_at=time.monotonic()), -math.inf
        return min(slot.wake_at for slot in self._slots)

    def _step(self, slot: "_Slot", message: Message) -> Poll | Tick | None:
        # Only states after a complete tick, which has read the clock, use it.
        server_ms = 0.0 if slot.state.seen_ms is None else self._shard.clock.now_ms()
        at = Moment(time.monotonic(), server_ms, random.random(), slot.sweep.permitted)  # noqa: S311
        step = advance(slot.state, message, at, self._rules)
        slot.state, slot.wake_at = step.state, step.wake_at
        if step.state.phase is Phase.BLIND:
            self._disconnect()  # the server may have been demoted
        if isinstance(step.action, Tick):
            self._order(slot, step.action)
        return step.action

    def _order(self, slot: "_Slot", tick: Tick) -> None:
        if self._scheduler is None:
            return
        if slot.order is not tick:  # else its job has not begun in time
            slot.order, slot.ordered_at = tick, time.monotonic()
            slot.idle.clear()
        self._scheduler.add_job(
            self._tick, args=(slot, tick), name=f"sweep of {slot.sweep.name}", misfire_grace_time=None
        )

    def _tick(self, slot: "_Slot", tick: Tick) -> None:
        """Run a tick in a thread of APScheduler; once, even if it was ordered twice."""
        with slot.turn:
            if slot.idle.is_set() or slot.order is not tick:
                return
            message: Outcome = Incomplete()
            try:
                if not self._stop.is_set():
                    self._inbox.put((slot, Signal.BEGUN))
                    message = self._run_tick(slot.sweep, tick)
            finally:
                slot.idle.set()
                self._inbox.put((slot, message))

    def _poll(self, polls: "Sequence[tuple[_Slot, Poll]]") -> list[Message]:
        """One round trip for all kinds."""
        asked = [self._questions(slot, poll) for slot, poll in polls]
        try:
            replies = iter(self._ask([command for questions in asked for command in questions.values()]))
            answers = [{name: next(replies) for name in questions} for questions in asked]
            return [self._read(slot, answer) for (slot, _), answer in zip(polls, answers, strict=True)]
        except Exception as error:
            self._disconnect()
            if not isinstance(error, redis.RedisError):
                log.exception("the poll for deadlines failed", extra={"shard": self._shard.name})
            return [Signal.UNREACHABLE] * len(polls)

    def _questions(self, slot: "_Slot", poll: Poll) -> dict[str, Command]:
        kind, keys = slot.sweep.kind, self._shard.keys
        found: dict[str, Command] = {}
        if poll.head:
            limit = ("BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
            found["head"] = ("ZRANGE", kind.index, f"({kind.score_of(slot.state.seen_ms or 0)}", "+inf", *limit)
        if poll.note:
            found["note"] = ("HMGET", kind.ticks, "by", "at", "seen")
        if poll.clock:
            found["clock"] = server_clock(self._shard.client)
        if poll.lease:
            found["lease"] = ("GET", keys.lease(kind.lease_job))
        return found

    def _read(self, slot: "_Slot", answers: dict[str, Any]) -> Message:
        if any(isinstance(answer, Exception) for answer in answers.values()):
            return Signal.REFUSED
        if "clock" in answers:
            self._shard.clock.set((micros_of(answers["clock"]) or 0) // 1000)
        head, note = None, None
        if "head" in answers:
            head = slot.sweep.kind.moment_of(answers["head"][1]) if answers["head"] else math.inf
        if "note" in answers:
            by, at, seen = answers["note"]
            note = Note(by == self._us, whole(at or b""), whole(seen or b""))
        return Polled(head, note, slot.sweep.lease.is_of_another(answers.get("lease")))

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, or errors, of the commands. Raises redis.RedisError if the connection fails."""
        client = self._shard.client
        if isinstance(client, ClusterClient):
            return run_commands(client, commands)
        if self._connection is None:
            self._connection = client.connection_pool.get_connection()
        # 20 times a second, and a pipeline of redis-py takes three times as much CPU time.
        self._connection.send_packed_command([b"".join([pack_command(command) for command in commands])])
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._shard.client.connection_pool.release(self._connection)
            self._connection = None


class _Slot:
    """The state of one kind, and what the threads of the schedule and of its ticks share."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.state = State()
        self.wake_at = -math.inf
        self.messages: list[Message] = []
        #: Held by a running tick; set while no tick is ordered or runs; the last order, and when it came, monotonic.
        self.turn = threading.Lock()
        self.idle = threading.Event()
        self.idle.set()
        self.order: Tick | None = None
        self.ordered_at = math.inf

    def is_stuck(self, patience: float) -> bool:
        """Whether the tick hangs, or has not begun within `patience` of its order."""
        waits = not self.state.begun and time.monotonic() - self.ordered_at > patience
        return self.sweep.hangs or (waits and not self.idle.is_set())
