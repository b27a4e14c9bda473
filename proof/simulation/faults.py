"""Inflicts faults that the seed draws; each lasts for a while and is noted in the book."""

import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from proof.simulation.plan import STEP
from proof.simulation.receivers import Behaviour

if TYPE_CHECKING:
    from proof.simulation.hosts import Replica
    from proof.simulation.redis_gate import SimulatedServer
    from proof.simulation.run import Simulation

#: Between two faults, on the average, seconds.
EVERY = 12.0
#: How long after a dead or stopped process events that it had may come again, seconds: until the others take over, and
#: until what a woken process has in hand is sent.
TAKE_OVER, IN_HAND = 25.0, 60.0
FULL = "OOM command not allowed when used memory > 'maxmemory'."
#: What a full server refuses: these commands, and scripts whose first write needs memory.
FULL_COMMANDS = (b"SET", b"HSET", b"XADD", b"XGROUP", b"ZADD", b"HINCRBY", b"XCLAIM")
FULL_SCRIPTS = (
    "ledger/reserve", "ledger/open_budget", "ledger/event", "ledger/commit", "ledger/release", "ledger/extend",
    "delivery/relay", "delivery/set_field", "delivery/set_state", "delivery/begin_replay", "delivery/take_tokens",
    "delivery/correct_moments", "sweep/last_sweep", "sweep/expiry_rates", "ops/record_action", "ops/requeue",
    "ops/replay",
)  # fmt: skip
#: Sets of commands whose right may be revoked.
RIGHTS: tuple[tuple[bytes, ...], ...] = (
    (b"EVAL", b"EVALSHA"), (b"XREADGROUP",), (b"XACK",), (b"TIME",), (b"SET",), (b"XTRIM",), (b"XPENDING",), (b"HGET",),
    (b"XADD",), (b"XREAD",), (b"XINFO",), (b"XRANGE",), (b"ZRANGE", b"ZCOUNT"),
)  # fmt: skip


class Faults:
    """All faults of one run, until `heal`."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._kernel, self._book = simulation.kernel, simulation.book
        self._random = random.Random(f"{simulation.plan.seed} faults")
        self._over = False
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": self.kill,
            "pause": self.pause,
            "cut": self.cut,
            "restart": self.restart,
            "stand": self.stand,
            "flush": self.flush,
            "skew": self.skew,
            "failover": self.fail_over,
            "full": self.full,
            "rights": self.rights,
            "receivers": self.receiver,
            "reload": self.reload,
            "upgrade": self.upgrade,
            "clock": self.clock,
            "canary": self.canary,
            "log": self.log,
        }
        self._chosen = [kind for kind in self.kinds if kind in simulation.plan.faults]

    def begin(self) -> None:
        """From now on something goes wrong now and then."""
        if self._chosen:
            self._kernel.after(self._random.expovariate(1 / EVERY), self._next)

    def heal(self) -> None:
        """Everything works again: servers, connections, processes, receivers."""
        self._over = True
        if any(server.skew for server in self._simulation.servers.values()):
            self._book.disturb("clock set", STEP + TAKE_OVER)
        for server in self._simulation.servers.values():
            server.cut_before = server.cut_after = server.down_until = server.stands_until = 0.0
            server.refusals.commands.clear()
            server.refusals.scripts.clear()
            server.skew = 0.0
        plan = self._simulation.plan
        now, first = self._simulation.settings, plan.settings
        if now.kinds != first.kinds or now.reservations != first.reservations:
            self.reload()
        for replica in self._simulation.replicas:
            if replica.host and replica.host.stopped:
                self._kernel.resume(replica.host)
                self._book.disturb("woken", IN_HAND, host=replica.host.name)
            if replica.settings is not self._simulation.settings:
                replica.settings = self._simulation.settings
                self._reload_one(replica)
            if not replica.alive:
                replica.start(self._skew())
        for name, receiver in self._simulation.receivers.items():
            receiver.behaviour = Behaviour(slow=(0.001, self._simulation.plan.slow[name]))

    def _next(self) -> None:
        if self._over:
            return
        kind = self._random.choice(self._chosen)
        self._simulation.note(f"fault: {kind}")
        self.kinds[kind]()
        self._kernel.after(self._random.expovariate(1 / EVERY), self._next)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        """Later, unless all is over by then."""
        self._kernel.after(seconds, lambda: None if self._over else call())

    def _living(self) -> "Replica | None":
        living = [replica for replica in self._simulation.replicas if replica.alive]
        return self._random.choice(living) if living else None

    def _server(self) -> "SimulatedServer":
        return self._random.choice(list(self._simulation.servers.values()))

    def _skew(self) -> float:
        if "skew" not in self._simulation.plan.faults:
            return 0.0
        return self._random.choice([0.0, 0.0, self._random.uniform(-3, 3), self._random.uniform(-90_000, 90_000)])

    def kill(self) -> None:
        """kill -9, and a new process after a while."""
        if replica := self._living():
            assert replica.host
            self._book.disturb("killed", TAKE_OVER, host=replica.host.name)
            self._kernel.kill(replica.host)
            for server in self._simulation.servers.values():
                server.forget(replica.host)
            self._after(self._random.uniform(0, 30), lambda: None if replica.alive else replica.start(self._skew()))

    def pause(self) -> None:
        """SIGSTOP, often for longer than lease and take-over, and SIGCONT."""
        replica = self._living()
        if replica is None or replica.host is None or replica.host.stopped:
            return
        host, seconds = replica.host, self._random.choice([2.0, 10.0, 20.0, 45.0]) * self._random.uniform(0.5, 1)
        self._book.disturb("stopped", seconds + IN_HAND, host=host.name)
        self._kernel.stop(host)
        self._after(seconds, lambda: self._kernel.resume(host))

    def cut(self) -> None:
        """Connections are cut for a while, before or after the server has run a command."""
        server, seconds = self._server(), self._random.uniform(3, 30)
        server.cut_before, server.cut_after = self._random.choice([(0.03, 0.0), (0.0, 0.03), (0.0, 0.2), (0.2, 0.2)])
        self._book.disturb("connections cut", seconds + TAKE_OVER)

        def end() -> None:
            server.cut_before = server.cut_after = 0.0

        self._after(seconds, end)

    def restart(self) -> None:
        """The server restarts with its data."""
        server, seconds = self._server(), self._random.uniform(0, 10)
        self._book.disturb("restart", seconds + TAKE_OVER)
        server.run_id += 1
        server.down_until = self._kernel.now + seconds
        server.flush_scripts()
        server.cut_all()

    def stand(self) -> None:
        """The server answers nobody for a while."""
        server, seconds = self._server(), self._random.uniform(0.5, 12)
        self._book.disturb("server stands", seconds + TAKE_OVER)
        server.stands_until = self._kernel.now + seconds

    def flush(self) -> None:
        """SCRIPT FLUSH."""
        self._server().flush_scripts()

    def skew(self) -> None:
        """The clock of a host is set."""
        if (replica := self._living()) and replica.host:
            replica.host.skew = self._skew()

    def clock(self) -> None:
        """The clock of a server is set; the servers of other shards keep theirs."""
        server, step = self._server(), self._random.choice([0.5, 5.0, STEP]) * self._random.uniform(-1, 1)
        server.skew = max(-STEP, min(STEP, server.skew + step))
        self._book.disturb("clock set", STEP + TAKE_OVER)

    def log(self) -> None:
        """Nobody reads the log of a process any more, to its end: the work must not wait for that."""
        if (replica := self._living()) and replica.host:
            replica.host.log_unread = True

    def upgrade(self) -> None:
        """The replicas end and begin again, one after the other, with their roles dealt anew."""
        replicas = self._simulation.replicas
        roles = [replica.role for replica in replicas]
        self._random.shuffle(roles)
        self._book.disturb("upgrade", TAKE_OVER + IN_HAND)
        for replica, role in zip(replicas, roles, strict=True):
            # At once: another upgrade may come before the last replica has begun again, and deals what there is.
            replica.role = role
            self._kernel.after(self._random.uniform(0, 10), replica.restart)

    def fail_over(self) -> None:
        """A replica that lacks the last writes becomes the server."""
        for book in self._book.shards:
            server, seconds = book.server, self._random.uniform(0.1, 4)
            if self._random.random() < 0.7 and server.copied is None:
                server.copied = server.copy_data()

                def put_back(book=book, server=server) -> None:  # type: ignore[no-untyped-def]
                    self._book.disturb("fail-over", TAKE_OVER)
                    server.fail_over(server.copied)
                    server.copied = None
                    self._book.rewind(book)
                    if self._random.random() < 0.5:
                        server.down_until = self._kernel.now + self._random.uniform(0, 5)

                self._kernel.after(seconds, put_back)

    def full(self) -> None:
        """The server is at maxmemory."""
        server, seconds = self._server(), self._random.uniform(5, 40)
        server.refusals.commands |= dict.fromkeys(FULL_COMMANDS, FULL)
        server.refusals.scripts |= dict.fromkeys(FULL_SCRIPTS, f"{FULL} script: f_1, on @user_script:1.")
        self._after(seconds, lambda: self._permit(server, FULL_COMMANDS, FULL_SCRIPTS))

    def rights(self) -> None:
        """A right of the user is revoked."""
        server, seconds, rights = self._server(), self._random.uniform(3, 30), self._random.choice(RIGHTS)
        text = "NOPERM User default has no permissions to run the '{}' command"
        server.refusals.commands |= {name: text.format(name.decode().lower()) for name in rights}
        self._book.disturb("rights revoked", seconds + TAKE_OVER)
        self._after(seconds, lambda: self._permit(server, rights, ()))

    def _permit(self, server: "SimulatedServer", commands: tuple[bytes, ...], scripts: tuple[str, ...]) -> None:
        for command in commands:
            server.refusals.commands.pop(command, None)
        for script in scripts:
            server.refusals.scripts.pop(script, None)

    def receiver(self) -> None:
        """A receiver fails, hangs, loses its answers, asks for patience, is gone, or refuses some events."""
        receiver = self._random.choice(list(self._simulation.receivers.values()))
        usual = (0.001, self._simulation.plan.slow[receiver.name])
        share = self._random.choice([0.1, 0.5, 1.0])
        receiver.behaviour = self._random.choice(
            [
                Behaviour(usual, fails=share),
                Behaviour(usual, fails=1.0),
                Behaviour(usual, hangs=share),
                Behaviour(usual, loses=share),
                Behaviour(usual, too_many=share),
                Behaviour(usual, gone=True),
                Behaviour(usual, poison=self._random.choice([3, 7])),
            ]
        )
        behaviour = receiver.behaviour

        def end() -> None:
            if receiver.behaviour is behaviour:
                receiver.behaviour = Behaviour(usual)

        if self._random.random() < 0.7:  # else until everything is healed: circuits are open by then
            self._after(self._random.uniform(5, 60), end)

    def _reload_one(self, replica: "Replica") -> None:
        replica.reload(self._simulation.settings)

    def canary(self) -> None:
        """One replica gets the other settings; after a while it goes back, or the rest follows."""
        replica, simulation = self._living(), self._simulation
        if replica is None:
            return
        plan, before = simulation.plan, simulation.settings
        seconds = self._random.uniform(5, 60)
        replica.reload(plan.reloaded if before is plan.settings else plan.settings)
        self._book.disturb("canary", seconds + 5 + IN_HAND)

        def end() -> None:
            if simulation.settings is before and not self._over and self._random.random() < 0.5:
                self.reload()
            else:
                self._reload_one(replica)

        self._kernel.after(seconds, end)

    def reload(self) -> None:
        """Every replica gets the other settings, one after the other."""
        simulation = self._simulation
        plan = simulation.plan
        simulation.settings = plan.reloaded if simulation.settings is plan.settings else plan.settings
        for replica in simulation.replicas:
            # What is in the file when the signal comes: there may have been another reload.
            self._kernel.after(self._random.uniform(0, 5), functools.partial(self._reload_one, replica))
        self._book.disturb("reload", 5 + IN_HAND)
