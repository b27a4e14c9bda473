"""How fast events are delivered: by one process beside what its concurrency allows at most, and by two beside one."""

import contextlib
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fill import fill
from benchmarks.lab import Lab
from benchmarks.process import cpu_seconds
from benchmarks.receiver import Receiver, Tally
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import RedisSettings
from sweeperd.delivery.endpoint_state import EndpointStateStore
from sweeperd.delivery.outbox import Outbox
from sweeperd.store.embedded import Server
from sweeperd.store.shard import Shard
from tests.support.harness import Daemon, daemon, environment, eventually

#: From request to answer, seconds.
DELAY = 0.02
CONCURRENCIES = (1, 4, 16, 64)
#: The default of webhooks.concurrency.
DEFAULT = 16
#: So many events for each connection: at 20 ms each, three seconds' work.
EACH, EACH_QUICK = 150, 50
#: Keeps the command that follows to one core, as `taskset` and systemd's `CPUAffinity=` do.
ON_ONE_CORE = (
    sys.executable,
    "-c",
    "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execv(sys.argv[1], sys.argv[1:])",
)
#: The longest that anything here may take, seconds.
LIMIT = 120.0


@dataclass(frozen=True)
class Delivered:
    """One run, without its start and its sweep."""

    events_per_second: float
    #: CPU time of all its processes together, and of the receiver, for one event.
    cpu_us_per_event: float
    receiver_us_per_event: float


def deliver(
    server: Server,
    receiver: Receiver,
    lab: Lab,
    concurrency: int,
    processes: int,
    each: int,
    wrapper: Sequence[str] = (),
) -> Delivered:
    """
    Have so many daemons, each with this concurrency, deliver `each` events for each of their connections.

    The events are in the stream before the daemons start, and the endpoint is paused until they run, so that nothing
    but delivery is in the measured span: from the first request that comes to the last answer.
    """
    events, name = each * concurrency * processes, f"hook-{secrets.token_hex(4)}"
    env = environment(
        server.url,
        endpoints=[{"name": name, "url": receiver.url}],
        webhooks__concurrency=concurrency,
        # A resumed endpoint is noticed within a quarter of it; there are no redeliveries here.
        webhooks__redelivery_initial="400ms",
    )
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard), contextlib.ExitStack() as stack:
        shard.read_clock()
        board = EndpointStateStore(shard)
        board.pause(name, "the benchmark is not ready")
        Outbox(shard, "benchmark").groups.ensure(name)
        fill(server.url, events, first=shard.client.xlen(shard.keys.events))
        assert lab.once(server).candidates == events
        running = [stack.enter_context(daemon(env, lab.directory, wrapper)) for _ in range(processes)]
        eventually(lambda: all(process.get("/readyz")[0] == 200 for process in running), LIMIT)
        receiver.begin()
        cpu_before = _cpu(running)
        board.resume(name)
        tally: Tally = eventually(lambda: _complete(receiver, events), LIMIT)
        cpu = _cpu(running) - cpu_before
        eventually(lambda: shard.client.xpending(shard.keys.events, name)["pending"] == 0, LIMIT)
        for process in running:
            assert process.terminate() == 0
    assert tally.requests == events, "each was to be delivered once"
    return Delivered(tally.rate, cpu / events * 1e6, tally.cpu / events * 1e6)


def _cpu(running: Sequence[Daemon]) -> float:
    return sum(cpu_seconds(process.process.pid) for process in running)


def _complete(receiver: Receiver, events: int) -> Tally | None:
    tally = receiver.tally()
    return tally if tally.distinct >= events else None


def by_concurrency(lab: Lab) -> Sample:
    """One process at each concurrency, and the one with the most threads on a single core as well."""
    return _measure(lab, CONCURRENCIES, on_one_core=True)


def at_default(lab: Lab) -> Sample:
    """One process at the default concurrency."""
    return _measure(lab, (DEFAULT,), on_one_core=False)


def _measure(lab: Lab, concurrencies: Sequence[int], *, on_one_core: bool) -> Sample:
    each = lab.size("events_for_each_connection", EACH, EACH_QUICK)
    with lab.server() as server, Receiver(DELAY) as receiver:
        runs = {str(number): deliver(server, receiver, lab, number, 1, each) for number in concurrencies}
        rates = [run.events_per_second for run in runs.values()]
        if on_one_core:
            most = max(concurrencies)
            runs[f"{most}_on_one_core"] = deliver(server, receiver, lab, most, 1, each, ON_ONE_CORE)
    figures: dict[str, float] = {}
    for name, run in runs.items():
        figures[f"events_per_second_at_{name}"] = run.events_per_second
        figures[f"cpu_us_per_event_at_{name}"] = run.cpu_us_per_event
        figures[f"receiver_us_per_event_at_{name}"] = run.receiver_us_per_event
    return Sample(
        {f"at_{name}": run.events_per_second * DELAY / int(name.split("_")[0]) for name, run in runs.items()},
        figures,
        {"concurrency": [float(concurrency) for concurrency in concurrencies], "events_per_second": rates},
    )


def processes(lab: Lab) -> Sample:
    """One process, then two, each at the default concurrency and with as many events for each of its connections."""
    each = lab.size("events_for_each_connection", EACH, EACH_QUICK)
    with lab.server() as server, Receiver(DELAY) as receiver:
        one, two = (deliver(server, receiver, lab, DEFAULT, number, each) for number in (1, 2))
    return Sample(
        {"two_to_one": two.events_per_second / one.events_per_second},
        {
            "events_per_second_of_one": one.events_per_second,
            "events_per_second_of_two": two.events_per_second,
            "receiver_us_per_event": two.receiver_us_per_event,
        },
    )


ROW = Row(
    "delivery",
    "events delivered a second, one process, receiver answering after 20 ms",
    "the concurrency limit's own bound: concurrency / 20 ms",
    {
        "at_16": Goal("at_least", 0.9, what="concurrency 16"),
        "at_64": Goal("at_least", 0.7, what="concurrency 64"),
    },
    by_concurrency,
)
#: For the gate: shorter, and of the same name.
AT_DEFAULT = Row(ROW.name, ROW.what, ROW.against, {"at_16": ROW.goals["at_16"]}, at_default)
PROCESSES = Row(
    "processes",
    "events delivered a second, two processes, receiver answering after 20 ms",
    "one process",
    {"two_to_one": Goal("at_least", 1.7)},
    processes,
)
