"""Runs a soak from start to end: the processes, the load, the faults, the wait for rest, the verdicts, the files."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import redis

from proof.soak import census, verdicts
from proof.soak.census import Moment
from proof.soak.faults import BATCHES, FAILS, HANGS, MOVES, FaultType, calm, schedule
from proof.soak.inflict import Inflicted, Inflictor
from proof.soak.order import Undecided, faults
from proof.soak.rest import await_rest, stand
from proof.soak.samples import Sample, Windows
from proof.soak.stage import BATCH_SIZE, DUE, ShardStage, Stage, stage
from proof.soak.verdicts import Verdict
from tests.support.harness import eventually
from tests.support.host import fake_clock
from tests.support.servers import Binary
from tests.support.streams import entries
from tests.support.traffic.history import Call, outcome
from tests.support.traffic.load import LedgerCall, Load, Tally
from tests.support.traffic.plan import BUDGETS, LEAN, TENANTS

#: Load threads of each shard.
THREADS = 4
#: Seconds from sample to sample at least, and from one moment to the next.
SAMPLE_EVERY, MOMENT_EVERY = 1.0, 5.0
#: How many samples are kept at most.
SAMPLES = 600
#: Operations up to which the history of every tenant is judged; a longer run is judged by the tenants in JUDGED.
ALL_JUDGED = 60_000
JUDGED = (TENANTS[0], LEAN)
#: How long the replicas may take to count what has expired, seconds.
COUNT_LIMIT = 60.0

#: Gets each sample and how many seconds the load lasts.
Watch = Callable[[Sample, float], None]


@dataclass(frozen=True)
class Soak:
    """What a soak came to."""

    verdicts: tuple[Verdict, ...]
    #: Things worth knowing that no verdict is about, by name.
    facts: dict[str, str]
    record: Path

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


@dataclass
class _Scene:
    """All that runs while the load lasts, and what was seen of it."""

    stage: Stage
    loads: Mapping[str, Load]
    samples: list[Sample]
    moments: list[Moment]

    @property
    def at(self) -> float:
        """Seconds since the load's start."""
        return time.monotonic() - self.began

    @property
    def began(self) -> float:
        return min(load.began for load in self.loads.values())

    def sample(self) -> Sample:
        """Take one; a shard that does not answer counts as before."""
        before = self.samples[-1].expired if self.samples else {}
        progress = [load.progress for load in self.loads.values()]
        taken = Sample(
            self.at,
            sum(operations for operations, _ in progress),
            sum(calls for _, calls in progress),
            sum(load.lost for load in self.loads.values()),
            {name: _events(shard, before.get(name, 0)) for name, shard in self.stage.shards.items()},
            {name: inbox.distinct for name, inbox in self.stage.inboxes.items()},
            {name: memory for name, one in self.stage.replicas.items() if (memory := one.memory) is not None},
        )
        self.samples.append(taken)
        return taken

    def moment(self) -> bool:
        """Read each shard at one moment. Returns whether all have answered; what was read of them is kept."""
        complete = True
        for name, shard in self.stage.shards.items():
            try:
                self.moments.append(census.look(shard, self.at, self.loads[name].recent()))
            except redis.RedisError:
                complete = False
        return complete


def soak(
    binary: Binary,
    minutes: float,
    rate: float,
    out: Path,
    watch: Watch = lambda *_: None,
    *,
    seed: int | None = None,
    noise: float = 0.0,
) -> Soak:
    """
    Run the load for this many minutes at `rate` operations a second, half of them on each shard, and judge what is
    there after it. With a seed there are faults, and the seed draws them; without one nothing fails. An average latency
    below `noise` seconds is never too long. Writes a record and all logs into `out`, which exists.

    Raises RuntimeError or AssertionError if a process does not start.
    """
    duration = 60 * minutes
    types = [type_ for type_ in FaultType if type_ is not FaultType.SKEW or fake_clock()]
    planned = [] if seed is None else schedule(seed, duration, types)
    judged = JUDGED if duration * rate > ALL_JUDGED else (*TENANTS, LEAN)
    with stage(binary, seed, out) as running:
        loads = {
            name: Load(shard.ledger, rate / 2, THREADS, 1000 * (seed or 0) + number, judged, patient=bool(planned))
            for number, (name, shard) in enumerate(running.shards.items())
        }
        scene = _Scene(running, loads, [], [])
        with Inflictor(running, planned, scene.began) as inflictor, contextlib.ExitStack() as stack:
            for load in loads.values():
                stack.enter_context(load)
            _observe(scene, duration, watch)
        stopped = scene.at
        received = {name: inbox.counts for name, inbox in running.inboxes.items()}
        unmet = _rest(scene, {name: load.tally.last_end for name, load in loads.items()}, duration, watch)
        memory = [(sample.at, float(value)) for sample in scene.samples for value in sample.memory.values()]
        shown = [
            *_judge_shards(scene, judged, steady=not planned),
            verdicts.memory(memory, Windows(duration)),
            verdicts.latency(_calls(loads), Windows(duration), noise),
            verdicts.moments(scene.moments, running.shards),
            verdicts.endpoints([_delivered(scene, name, inflictor.inflicted) for name in running.inboxes]),
            verdicts.settled(unmet),
        ]
        if planned:
            shown += [
                verdicts.all_faults(inflictor.inflicted, Counter(fault.type for fault in planned)),
                verdicts.behaved(received[BATCHES], received[FAILS], received[HANGS], received[MOVES]),
            ]
        facts = _facts(binary, running, loads, inflictor.inflicted, stopped)
        shown.append(verdicts.alive({name: replica.stop() for name, replica in running.replicas.items()}))
    return _write(scene, shown, facts, inflictor.inflicted, duration, seed, out)


def _observe(scene: _Scene, duration: float, watch: Watch) -> None:
    """Sample until the load has lasted for `duration` seconds."""
    sample_every = max(SAMPLE_EVERY, duration / SAMPLES)
    next_sample, next_moment = 0.0, calm(duration) / 2
    while min(next_sample, next_moment) < duration:
        sleep_until(scene.began + min(next_sample, next_moment))
        if next_moment <= next_sample:
            # A shard that is down is read a second later.
            next_moment = scene.at + (MOMENT_EVERY if scene.moment() else SAMPLE_EVERY)
        else:
            watch(scene.sample(), duration)
            next_sample += sample_every
    sleep_until(scene.began + duration)


def _rest(scene: _Scene, last_ends: Mapping[str, int], duration: float, watch: Watch) -> Sequence[str]:
    """
    Let all receivers recover, and wait until all reservations have ended and all events are delivered. `last_ends`:
    shard -> the end of the last grace, ms on its Redis's clock. Returns what did not come to rest.
    """
    scene.stage.recover()
    shards, inboxes = scene.stage.shards, scene.stage.inboxes

    def look() -> tuple[object, Sequence[str]]:
        found = {name: stand(shard, inboxes, last_ends[name]) for name, shard in shards.items()}
        accepted = {name: inbox.distinct for name, inbox in inboxes.items()}
        return (found, accepted), [f"{name}: {text}" for name, (_, unmet) in found.items() for text in unmet]

    def show() -> None:
        if scene.at > scene.samples[-1].at + SAMPLE_EVERY:
            watch(scene.sample(), duration)

    unmet = await_rest(look, show)
    scene.sample()
    return unmet


def _judge_shards(scene: _Scene, judged: Sequence[str], *, steady: bool) -> Iterable[Verdict]:
    """S3 to S5, the books, the answers and the order of each shard. `steady`: no replica has lost its counters."""
    for name, shard in scene.stage.shards.items():
        load = scene.loads[name]
        tally = load.tally
        at_end = census.take(shard)
        history = load.history + outcome(shard.client, shard.keys, at_end.budgets, judged)
        counts = {
            "stream": at_end.events,
            "EXPIRED hashes": at_end.reservations.get("EXPIRED", 0),
            "left by the load": tally.abandoned,
        }
        if steady:
            counts["counters of the replicas"] = _counted(scene, name, at_end.events)
        found = (
            verdicts.keys(tally.accepted, at_end),
            verdicts.index([one for one in scene.moments if one.shard == name], at_end),
            verdicts.events(counts),
            verdicts.books(at_end.budgets, tally.spent),
            verdicts.answers(tally),
            verdicts.order(len(history), _faults(history)),
        )
        yield from (replace(one, name=f"{one.name} {name}") for one in found)


def _counted(scene: _Scene, shard: str, expected: int) -> int:
    """What the replicas have counted as expired on this shard; a tick is counted when it ends."""

    def counted() -> int:
        replicas = scene.stage.replicas.values()
        return sum(int(one.metric("sweeperd_candidates_total", outcome="expired", shard=shard)) for one in replicas)

    with contextlib.suppress(AssertionError):
        eventually(lambda: counted() >= expected, COUNT_LIMIT)
    return counted()


def _faults(history: list[Call]) -> Sequence[str]:
    try:
        return faults(history, {scope.encode(): amount for scope, amount in BUDGETS.items()})
    except Undecided as error:
        return [str(error)]


def _delivered(scene: _Scene, endpoint: str, inflicted: Sequence[Inflicted]) -> verdicts.Delivered:
    """What one endpoint was due, and what it has accepted."""
    inbox = scene.stage.inboxes[endpoint]
    due = {
        fields[b"id"].decode()
        for shard in scene.stage.shards.values()
        for _, fields in entries(shard.client, shard.keys.events)
        if fields[b"tenant"].decode() in DUE[endpoint]
    }
    bound = verdicts.most_repeated(inflicted, BATCH_SIZE if endpoint == BATCHES else 1)
    return verdicts.delivered(endpoint, due, inbox.reservations(), inbox.repeated, bound)


def _facts(
    binary: Binary, running: Stage, loads: Mapping[str, Load], inflicted: Sequence[Inflicted], stopped: float
) -> dict[str, str]:
    tally = Tally.of(load.tally for load in loads.values())
    calls = sum(len(load.calls) for load in loads.values())
    done = Counter(one.fault.type for one in inflicted if one.effect)
    return {
        "ran on": f"{binary}, appendfsync always",
        "load": f"{tally.started} operations started in {stopped:.0f} s, {tally.started / stopped:.1f} a second",
        "ended as": f"{tally.committed} committed, {tally.released} released, {tally.abandoned} abandoned or too late; "
        f"{tally.refused} refused for want of budget",
        "calls": f"{calls}, {calls / stopped:.0f} a second; {tally.lost} without an answer, {tally.full} refused by a "
        f"full Redis, {tally.repeated} sent twice",
        "faults": ", ".join(f"{type_} {count}" for type_, count in sorted(done.items())) or "none",
        "lives": ", ".join(f"{name} {one.lives}" for name, one in running.replicas.items()),
        "accepted": ", ".join(
            f"{name} {inbox.distinct} in {inbox.counts.requests} requests, {inbox.repeated} again"
            for name, inbox in running.inboxes.items()
        ),
    }


def _write(
    scene: _Scene,
    found: Sequence[Verdict],
    facts: dict[str, str],
    inflicted: Sequence[Inflicted],
    duration: float,
    seed: int | None,
    out: Path,
) -> Soak:
    """`duration`: how long the load was to last, seconds; `seed`: what drew the faults."""
    record = out / f"{'soak' if seed is None else 'chaos'}.json"
    document = {
        "minutes": duration / 60,
        "seed": seed,
        "facts": facts if seed is None else {"seed": str(seed), **facts},
        "verdicts": [asdict(verdict) for verdict in found],
        "faults": [asdict(one) for one in sorted(inflicted, key=lambda one: one.began)],
        "moments": [asdict(one) for one in scene.moments],
        "samples": [asdict(sample) for sample in scene.samples],
    }
    record.write_text(json.dumps(document, indent=1))
    return Soak(tuple(found), facts, record)


def _calls(loads: Mapping[str, Load]) -> list[LedgerCall]:
    return sorted(chain.from_iterable(load.calls for load in loads.values()))


def _events(shard: ShardStage, unknown: int) -> int:
    """The events of a shard; `unknown` where it does not answer."""
    try:
        return int(shard.client.xlen(shard.keys.events))
    except redis.RedisError:
        return unknown


def sleep_until(moment: float) -> None:
    """`moment` is on the monotonic clock; returns at once if it has passed."""
    time.sleep(max(0.0, moment - time.monotonic()))
