"""Runs seeds from the command line, each from beginning to end."""

import argparse
import gc
import itertools
import json
import logging
import os
import random
import re
import select
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import apscheduler.executors.base
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import redis
from fakeredis._socket import FakeSocket
from fakeredis.commands_mixins import scripting_mixin

import sweeperd.delivery.webhook
import sweeperd.runtime.periodic
import sweeperd.store.lease
import sweeperd.store.shard
from proof.simulation import kernel as kernels
from proof.simulation.clients import Client, SeatClient, Trickle
from proof.simulation.cycles import TAKEN, CyclesDispatcher, Rival
from proof.simulation.faults import Faults
from proof.simulation.hosts import Replica, process_name
from proof.simulation.invariants import Book
from proof.simulation.kernel import Failure, Host
from proof.simulation.operators import Operators
from proof.simulation.outages import BusyTicks, Hanging, Outage
from proof.simulation.plan import FAULTS, OPERATIONS, Plan, draw
from proof.simulation.planted import PLANTED, plant
from proof.simulation.receivers import Behaviour, Receiver, transport
from proof.simulation.redis_gate import Connection, LuaRuntime, SimulatedServer, Trace, connector
from proof.simulation.replay import Recorder
from sweeperd.store.scripts import Script, script_names

#: Between two checks of what must hold at every moment, and after the end for what comes too late; seconds.
CHECK_EVERY, WATCHED = 2.0, 30.0
#: How long receivers fail once more, seconds.
FAILING = 60.0
#: A planted bug must be found within this many seeds.
TRIES = 200
#: A seed that takes longer is stuck, seconds of the processor.
LONGEST = 300
#: How a failure begins that no invariant has found, and the reason of a seed that was stuck.
BROKEN, TOO_LONG = "the simulation itself", f"it took {LONGEST} s of CPU time"
#: Attributes of every log record.
DEFAULT_TIMING = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


@dataclass
class Report:
    """What became of one seed."""

    seed: int
    #: Virtual and real seconds.
    virtual: float
    real: float
    commands: int
    events: int
    accepted: int
    duplicates: int
    digest: str
    faults: list[str]
    failure: str = ""
    #: When, virtual, and the last commands and log lines.
    failed_at: float = 0.0
    last: tuple[str, ...] = ()


class Log(logging.Handler):
    """Keeps the last lines. A traceback in the log is a fault of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=60)
        self.file: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        kernel = kernels.KERNEL
        host = kernel.current.host.name if kernel.current else "hub"
        extra = {name: value for name, value in vars(record).items() if name not in DEFAULT_TIMING}
        line = f"{kernel.now:.3f} {host} {record.levelname} {record.getMessage()} {extra or ''}"
        if record.exc_info and record.exc_info[1]:
            line += "".join(traceback.format_exception(record.exc_info[1]))
        self.lines.append(line)
        if self.file:
            self.file.write(line + "\n")
        if kernel.current and kernel.current.host.log:
            kernel.current.host.log.handle(record)
        if record.exc_info and record.exc_info[1] and record.name.startswith("sweeperd"):
            raise Failure("no traceback in the log", line)

    def createLock(self) -> None:  # noqa: N802
        """None: a process that is killed in the middle of a line must not keep all others from the log."""
        self.lock = None

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in `logging`
        """A line that cannot be written is a fault too."""
        raise Failure("the log can be written", record.getMessage())


class Simulation:
    """The installation of one plan."""

    def __init__(self, plan: Plan, trace_file: Any = None, recorder: Recorder | None = None) -> None:
        self.plan = plan
        self.kernel = kernels.begin(plan.seed)
        self.kernel.preemption = plan.preemption
        self.kernel.on_death = self._died
        self.log = Log()
        self.log.file = trace_file
        logging.basicConfig(level=logging.INFO, handlers=[self.log], force=True)
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        names = {Script(name).sha.encode(): name for name in script_names()}
        self.trace = Trace()
        self.trace.file = trace_file
        self.servers = {shard.port: SimulatedServer(f"redis-{shard.name}", plan.seed, names) for shard in plan.shards}
        Connection.numbers = 0
        for server in self.servers.values():
            server.trace, server.recorder = self.trace, recorder
            _prepare_lua(server)
        endpoints = dict.fromkeys(
            endpoint.name for settings in (plan.settings, plan.reloaded) for endpoint in settings.webhooks.endpoints
        )
        self.receivers = {name: Receiver(name, random.Random(f"{plan.seed} {name}")) for name in endpoints}
        for name, receiver in self.receivers.items():
            receiver.behaviour.slow = (0.001, plan.slow[name])
        vars(sweeperd.store.shard)["connect"] = connector(self.servers)
        vars(sweeperd.delivery.webhook)["Transport"] = transport(self.receivers)
        self.book = Book(plan, self.servers, self.receivers)
        logged = "log" in plan.faults
        self.replicas = [
            Replica(f"replica-{number}", role, plan.settings, queued_log=logged)
            for number, role in enumerate(plan.roles, 1)
        ]
        self.rivals: list[Rival] = []
        self.dispatchers: list[CyclesDispatcher] = []
        self.settings = plan.settings
        self.faults, self.operators = Faults(self), Operators(self)
        numbers = itertools.count(1)
        self.clients: list[Client] = [
            Client(plan, shard, next(numbers), random.Random(f"{plan.seed} client {shard.name} {each}"))
            for shard in plan.shards
            for each in range(plan.clients)
        ]
        if plan.seats:
            self.clients += [
                SeatClient(plan, shard, next(numbers), random.Random(f"{plan.seed} seats {shard.name}"))
                for shard in plan.shards
            ]

    def run(self) -> None:
        """The whole run. Raises Failure."""
        for replica in self.replicas:
            replica.start()
        for client in self.clients:
            self.kernel.spawn(f"client {client.number}", client.run, Host(f"client-{client.number}"))
        for shard in self.plan.shards if self.plan.settings.cycles.enabled else ():
            if self.plan.rival:
                rival = Rival(self.plan, shard)
                self.rivals.append(rival)
                self.kernel.spawn("rival", rival.run, Host(f"client-rival-{shard.name}"))
            dispatcher = CyclesDispatcher(self.plan, shard)
            self.dispatchers.append(dispatcher)
            self.kernel.spawn("dispatcher", dispatcher.run, Host(f"client-dispatcher-{shard.name}"))
        self.faults.begin()
        self.operators.begin()
        self._until(kernels.BEGINNING + self.plan.seconds)
        for client in self.clients:
            client.stop = True
        self.faults.heal()
        self.operators.heal()
        for dispatcher in self.dispatchers:
            dispatcher.healed = True
        self._settle()
        if self.plan.trickle:
            self._trickle()
        if self.plan.outage:
            self._last(Outage(self))
        if self.plan.hang and not self.plan.rival:
            self._last(Hanging(self))
        if self.plan.busy and not self.plan.rival and self.settings.reservations.enabled:
            self._last(BusyTicks(self))
        self._until(self.kernel.now + WATCHED)
        self._finish()

    def _trickle(self) -> None:
        """Receivers fail, so circuits open; then what waits is settled in time, though new events do not end."""
        filtering = [each.name for each in self.settings.webhooks.endpoints if each.tenants or each.scopes]
        if not filtering:
            return
        # More new events than probes of all replicas.
        rate = 1.5 * len(self.replicas) / self.plan.settings.webhooks.redelivery_initial.total_seconds()
        plan = replace(self.plan, rate=rate)
        clients = [Trickle(plan, shard, 0, random.Random(f"{plan.seed} trickle {shard.name}")) for shard in plan.shards]
        for name, receiver in self.receivers.items():
            receiver.behaviour = Behaviour(fails=float(name in filtering))
        for client in clients:
            self.kernel.spawn("trickle", client.run, Host(f"client-trickle-{client.shard.name}"))
        self._until(self.kernel.now + FAILING)
        for name in filtering:
            self.receivers[name].behaviour = Behaviour()
        before = set(self.book.undelivered(self.settings))
        self._settle(lambda: [each for each in self.book.undelivered(self.settings) if each in before])
        for client in clients:
            client.stop = True
        self._settle()

    def _last(self, last: Outage | Hanging | BusyTicks) -> None:
        """What comes last; see `outages`."""
        self.kernel.spawn("last", last.run, Host("client-last"))
        while not last.over:
            self._until(self.kernel.now + CHECK_EVERY)
        self._settle()

    def note(self, line: str) -> None:
        """A line for the log and the trace."""
        self.trace.add(f"{self.kernel.now:.6f} {line}")
        self.log.lines.append(f"{self.kernel.now:.3f} {line}")

    def _until(self, end: float) -> None:
        while self.kernel.now < end:
            self.kernel.run(min(end, self.kernel.now + CHECK_EVERY))
            self.book.check()
            gc.collect(0)

    def _left(self) -> list[str]:
        return [*self.book.overdue(), *self.book.waiting(self.settings), *self.book.undelivered(self.settings)]

    def _settle(self, what: Callable[[], list[str]] | None = None) -> None:
        indexes = [book.server.value(book.key("reservation:ttl")) for book in self.book.shards]
        held = sum(len(index) for index in indexes if index is not None) * len(self.receivers)
        # A slow receiver gets the backlog one by one.
        backlog = (held + len(self.book.undelivered(self.settings))) * max(self.plan.slow.values())
        began, limit = self.kernel.now, self.plan.bound + backlog
        while left := (what or self._left)():
            if self.kernel.now > began + limit:
                raise Failure(f"all is settled within {limit:.0f} s", f"{len(left)}: {'; '.join(left[:5])}")
            self._until(self.kernel.now + 5)

    def _finish(self) -> None:
        self.book.check_duplicates()
        self.book.check_order()
        self.book.check_letters()
        self.book.check_replays()
        self.book.check_cycles()
        if self.plan.clean and self.plan.rival == "polite":
            late = [at for rival in self.rivals for at in rival.expired if at > kernels.BEGINNING + TAKEN]
            if late:
                raise Failure("the services do not sweep while sweeperd has their lease", f"at {late[:5]}")
        for replica in self.replicas:
            if problems := replica.problems:
                raise Failure("every thread works", f"{replica.name}: {problems}")
        counted = self.book.counted([each for replica in self.replicas for each in replica.metrics])
        events = sum(len(book.expired) for book in self.book.shards)
        rewound = any(book.rewound for book in self.book.shards)
        by_clients = sum(client.late for client in self.clients)
        if (counted > events and not rewound) or (self.plan.clean and counted + by_clients < events):
            raise Failure("each expiry is counted once", f"{counted} counted, {events} events")

    def _died(self, host: Host, name: str, error: BaseException) -> None:
        if not host.name.startswith("client"):
            raise Failure("no thread dies", f"{name} on {host.name}: {''.join(traceback.format_exception(error))}")
        raise Failure("the ledger raises what it says", f"{name}: {''.join(traceback.format_exception(error))}")


def _prepare_lua(server: SimulatedServer) -> None:
    """Have the server's scripts compiled once."""
    any_server: Any = server.fake
    socket: Any = FakeSocket(any_server, db=0, client_class=redis.Redis)
    any_server._lua_runtime = LuaRuntime(socket._get_server_runtime(any_server))


def simulate(plan: Plan, trace_file: Any = None, recorder: Recorder | None = None) -> Report:
    """Run a plan to its end, or to its first failure."""
    began = kernels.REAL_CLOCK()
    gc.disable()
    simulation = Simulation(plan, trace_file, recorder)
    failure = ""
    try:
        simulation.run()
    except Failure as found:
        failure = str(found)
    except Exception as error:
        failure = f"{BROKEN}: {''.join(traceback.format_exception(error))}"
    accepted = [len(each) for receiver in simulation.receivers.values() for each in receiver.accepted.values()]
    return Report(
        plan.seed,
        simulation.kernel.now - kernels.BEGINNING,
        kernels.REAL_CLOCK() - began,
        sum(server.commands for server in simulation.servers.values()),
        sum(len(book.expired) for book in simulation.book.shards),
        sum(accepted),
        sum(accepted) - len(accepted),
        simulation.trace.digest.hexdigest(),
        sorted(plan.faults | plan.operations),
        failure,
        simulation.kernel.now,
        (*simulation.trace.last, "", *simulation.log.lines) if failure else (),
    )


def in_child(options: argparse.Namespace, seed: int) -> tuple[int, int]:
    """Begin a seed in a process of its own, so that no seed sees another. Returns the process and its output file."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        return child, reading
    try:
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        if options.plant:
            plant(options.plant)
        trace = Path(options.trace).open("w", encoding="utf-8") if options.trace else None  # noqa: SIM115 - kept open
        recorder = Recorder(options.record) if options.record else None
        report = simulate(draw(seed, options.minutes, clean=options.clean), trace, recorder)
        for written in (trace, recorder):
            if written:
                written.close()
        with os.fdopen(writing, "w") as out:
            json.dump(asdict(report), out)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def reports(options: argparse.Namespace, seeds: Iterator[int]) -> Iterator[Report]:
    """The reports of these seeds, in order. `options.jobs` of them run at a time, some ahead of a slow one."""
    started: deque[tuple[int, int, int]] = deque()
    running = set[int]()
    seeds = iter(seeds)
    try:
        while True:
            while len(running) < options.jobs and (seed := next(seeds, None)) is not None:
                started.append((seed, *in_child(options, seed)))
                running.add(started[-1][2])
            if not started:
                return
            if started[0][2] in running:
                running.difference_update(select.select(running, (), ())[0])
                continue
            seed, child, reading = started.popleft()
            with os.fdopen(reading) as source:
                text = source.read()
            _, status = os.waitpid(child, 0)
            if text:
                yield Report(**json.loads(text))
            else:
                code = os.waitstatus_to_exitcode(status)
                too_long = code == -signal.SIGPROF
                why = TOO_LONG if too_long else f"its process ended with {code}"
                yield Report(seed, 0, 0, 0, 0, 0, 0, "", [], f"{BROKEN}: {why}")
    finally:
        for _, child, reading in started:  # the caller takes no further report, so these seeds end
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)


def tell(report: Report) -> None:
    """Print what became of a seed."""
    speed = report.virtual / report.real if report.real else 0
    print(
        f"seed {report.seed}: {'FAILED' if report.failure else 'ok'}, {report.virtual:.0f} s in {report.real:.1f} s "
        f"({speed:.0f} times), {report.commands} commands, {report.events} events, {report.accepted} accepted "
        f"({report.duplicates} again), trace {report.digest[:16]}, {' '.join(report.faults) or 'no faults'}"
    )
    if report.failure:
        print(f"  at {report.failed_at:.3f}: {report.failure}")
        print("\n".join(f"    {line}" for line in report.last))
    sys.stdout.flush()


def invariants() -> int:
    """How many things have to hold, each with a name of its own."""
    sources = [path.read_text() for path in Path(__file__).parent.glob("*.py")]
    return len({name for source in sources for name in re.findall(r'Failure\(\s*f?"([^"]+)"', source)})


def find_planted(options: argparse.Namespace) -> int:
    """
    Look for each planted bug with one seed after the other. Returns 1 if one was not found. A seed that fails without
    the bug too has not found it, nor has a traceback: there the bug itself is broken. One that never ends has.
    """
    missed, tried = [], 0
    for name in options.plant.split(",") if options.plant else PLANTED:
        tried += 1
        options.plant = name
        found = next((report for report in reports(options, iter(range(1, TRIES + 1))) if report.failure), None)
        result = f"{found.seed} | {found.failure.splitlines()[0][:100]}" if found else f"- | not within {TRIES} seeds"
        if found:
            options.plant = ""
            (without,) = reports(options, iter([found.seed]))
            broken = found.failure.startswith(("no traceback in the log", BROKEN)) and TOO_LONG not in found.failure
            if without.failure or broken:
                found, result = None, f"- | says nothing: {result}"
        if found is None:
            missed.append(name)
        print(f"| {name} | {PLANTED[name][0]} | {result} |")
        sys.stdout.flush()
    print(f"{tried - len(missed)} of {tried} planted bugs found; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", help="A..B")
    parser.add_argument("--fresh", type=int, metavar="N", help="N seeds that are drawn now")
    parser.add_argument("--minutes", type=float, default=3.0, help="virtual, before the faults end")
    parser.add_argument("--clean", action="store_true", help="without faults and operators")
    parser.add_argument("--trace", metavar="FILE", help="write every command and log line")
    parser.add_argument("--record", metavar="FILE", help="write every command whole, with its reply, for --replay")
    parser.add_argument("--replay", metavar="FILE", help="alone: send what was recorded to each real server")
    parser.add_argument("--jobs", type=int, default=1, help="how many seeds run at a time")
    parser.add_argument("--plant", metavar="NAME[,NAME]", help="with this bug in the program; several, with --planted")
    parser.add_argument("--planted", action="store_true", help="find each planted bug; print the table")
    options = parser.parse_args()
    if unknown := set((options.plant or "").split(",")) - {"", *PLANTED}:
        parser.error(f"no bug is planted as {min(unknown)!r}; there are {', '.join(PLANTED)}")
    if options.planted:
        return find_planted(options)
    first = options.seed if options.seed is not None else random.Random().randrange(10**9)
    seeds: Any = [first]
    if options.seeds:
        low, high = map(int, options.seeds.split(".."))
        seeds = range(low, high + 1)
    elif options.fresh:
        seeds = range(first, first + options.fresh)
    failed, virtual = [], 0.0
    began, count = kernels.REAL_CLOCK(), 0
    for report in reports(options, seeds):
        tell(report)
        count, virtual = count + 1, virtual + report.virtual
        if report.failure:
            failed.append(report.seed)
    if count > 1:
        real = kernels.REAL_CLOCK() - began
        start = seeds[0] if options.seeds else first
        lines = f"{count} seeds from {start} on: {virtual / 3600:.1f} virtual hours in {real:.0f} s"
        parts = f"{len(FAULTS)} faults, {len(OPERATIONS)} actions of operators, {invariants()} invariants"
        print(f"{lines}; {parts}; failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


#: The name was taken by several modules.
for module in [each for name, each in sys.modules.items() if name.startswith("sweeperd.")]:
    if hasattr(module, "process_name"):
        module.process_name = process_name  # type: ignore[attr-defined]
#: fakeredis looks for new global variables after each command of a script: other tests watch for them, on real servers.
vars(scripting_mixin)["_check_for_lua_globals"] = lambda *_: None
kernels.give_datetime(
    apscheduler.schedulers.base, apscheduler.executors.base, apscheduler.triggers.interval, sweeperd.runtime.periodic
)
