"""
What comes last, after all is settled. An outage: the circuits of all processes open, no event that could be a probe is
left, and then the receiver is back. Or a receiver that hangs, while the others get their events. Or ticks over what is
due that never end, beside an entry that only a full tick sees.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from proof.simulation.clients import ACTION, UNIT, Wanted
from proof.simulation.faults import TAKE_OVER
from proof.simulation.kernel import Failure, Host
from proof.simulation.receivers import Behaviour
from sweeperd.config import RedisSettings
from sweeperd.ops import endpoints
from sweeperd.outbox import CircuitStateStore, is_waiting
from sweeperd.store import Shard

if TYPE_CHECKING:
    from proof.simulation.hosts import Replica
    from proof.simulation.run import Simulation

#: Of the client: no other client has this number.
NUMBER = 1000
#: How long the circuits of all processes may take to open; after that there is no outage. Seconds.
OPENING = 300.0
#: How many unwanted events come, and how often, seconds: far more than probes.
UNWANTED, UNWANTED_EVERY = 30, 0.1
#: How long they come before the wanted event, seconds.
FLOODED = 10.0
#: Adds events that no endpoint wants.
FLOOD = "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'type', 'system.noise', 'id', '-') end"

#: Of the client while a receiver hangs; how many events come then, and how long each of the others may wait, seconds.
HANGING, BESIDE, PROMPT = NUMBER + 2, 3, 2.0

#: How often an entry becomes due while ticks are busy, and how long they have been when the late entry comes; seconds.
BUSY_EVERY, BUSY_FOR = 0.2, 10.0
#: Beside the interval, how long the late entry may wait, seconds.
LATE = 10.0
#: Moves the deadline of a reservation into the past, in its hash and in the index.
BACKDATE = """
local at = string.format('%d', redis.call('TIME')[1] * 1000 - ARGV[2])
redis.call('HSET', KEYS[1], 'expires_at', at)
redis.call('ZADD', KEYS[2], at, ARGV[1])
"""


class BusyTicks:
    """While something is always due, an entry that is indexed after its deadline expires too. `run`: see `Outage`."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation, self._kernel, plan = simulation, simulation.kernel, simulation.plan
        rng = random.Random(f"{plan.seed} busy")
        self._plan, self._shard_plan = plan, rng.choice(plan.shards)
        self._client = Wanted(plan, self._shard_plan, NUMBER + 1, rng)
        self._ends = False
        self.over = False

    def run(self) -> None:
        """Raises Failure."""
        settings = RedisSettings.model_validate({"url": self._shard_plan.url})
        shard = Shard(settings, self._shard_plan.prefix, self._shard_plan.name)
        self._simulation.note("busy ticks")
        self._kernel.spawn("busy", self._expire, Host("client-busy"))
        self._kernel.pause(BUSY_FOR)
        ledger = self._client.ledger
        minute = timedelta(minutes=1)
        made = ledger.reserve("acme", ["tenant:acme"], UNIT, 1, ttl=minute, action=ACTION, idempotency_key="late")
        entry = made.reservation_id.encode()
        reservation = shard.keys.reservation(entry)
        shard.client.eval(BACKDATE, 2, reservation, shard.keys.reservation_index, entry, 60_000)
        until = self._kernel.now + self._simulation.settings.sweep.interval.total_seconds() + LATE
        while shard.client.hget(reservation, "state") != b"EXPIRED":
            if self._kernel.now > until:
                raise Failure("an entry that is indexed after its deadline expires beside busy ticks", str(entry))
            self._kernel.pause(0.5)
        self._ends = self.over = True

    def _expire(self) -> None:
        while not self._ends:
            self._client.expire(1)
            self._kernel.pause(BUSY_EVERY)


class Hanging:
    """A receiver that hangs delays no other one. `run`: see `Outage`."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation, self._kernel, plan = simulation, simulation.kernel, simulation.plan
        rng = random.Random(f"{plan.seed} hanging")
        self._webhooks, self._bound = simulation.settings.webhooks, plan.bound
        self._client = Wanted(plan, rng.choice(plan.shards), HANGING, rng)
        # Of the others only a few requests are in flight.
        many = [
            each.name
            for each in self._webhooks.endpoints
            if each.batch_size == 1 and not each.order and not each.max_rate
        ]
        self._name = rng.choice(many) if many else ""
        self._others = [each.name for each in self._webhooks.endpoints if each.name != self._name and not each.max_rate]
        self.over = False

    def run(self) -> None:
        """Raises Failure."""
        receivers = self._simulation.receivers
        if self._name and self._others and self._webhooks.timeout.total_seconds() > 2 * PROMPT:
            for receiver in receivers.values():
                receiver.behaviour = Behaviour()
            self._delivered(BESIDE)  # a circuit that was open is closed
            self._simulation.note("a receiver hangs")
            receivers[self._name].behaviour = Behaviour(hangs=1.0)
            for name, key in [*self._delivered(2 * self._webhooks.concurrency), *self._delivered(BESIDE)]:
                waited = receivers[name].accepted[key][0].at - self._expired[key]
                if waited > PROMPT:
                    raise Failure("a receiver that hangs delays no other", f"{name}: {key} came after {waited:.1f} s")
            receivers[self._name].behaviour = Behaviour()
        self.over = True

    @property
    def _expired(self) -> dict[str, float]:
        """When the reservations of this client expired."""
        ours, books = f"-{HANGING}-", self._simulation.book.shards
        return {key: expiry.at for book in books for key, expiry in book.expired.items() if ours in key}

    def _delivered(self, count: int) -> list[tuple[str, str]]:
        """Make so many events, and wait until each of the other receivers has accepted them."""
        before, until = self._expired.keys(), self._kernel.now + self._bound
        self._client.expire(count)
        while True:
            new = [(name, key) for name in self._others for key in self._expired.keys() - before]
            left = [each for each in new if each[1] not in self._simulation.receivers[each[0]].accepted]
            if len(new) == count * len(self._others) and not left:
                return new
            if self._kernel.now > until:
                raise Failure("what is due comes beside a receiver that hangs", f"{self._name} hangs: {left[:5]}")
            self._kernel.pause(0.2)


class Outage:
    """The outage of one receiver. `run` is the work of a thread; `over` says that it has ended."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation, self._kernel, plan = simulation, simulation.kernel, simulation.plan
        rng = random.Random(f"{plan.seed} outage")
        self._plan, self._shard_plan = plan, rng.choice(plan.shards)
        self._settings = simulation.settings
        self._name = rng.choice([each.name for each in self._settings.webhooks.endpoints] or [""])
        self._client = Wanted(plan, self._shard_plan, NUMBER, random.Random(f"{plan.seed} wanted"))
        self.over = False
        self._flooding = True

    def run(self) -> None:
        """The whole outage. Raises Failure."""
        settings = RedisSettings.model_validate({"url": self._shard_plan.url})
        shard = Shard(settings, self._shard_plan.prefix, self._shard_plan.name)
        processes = [each for each in self._simulation.replicas if each.role.value != "sweep"]
        # A rival may expire the reservation that is to arrive, without an event.
        if self._name and not self._plan.rival and (self._plan.outage == "flood" or len(processes) > 1):
            receiver = self._simulation.receivers[self._name]
            receiver.behaviour = Behaviour(fails=1.0)
            if self._circuits_open(shard, len(processes)):
                self._simulation.note(f"outage: {self._plan.outage}")
                if self._plan.outage == "flood":
                    self._flood(shard)
                else:
                    self._orphan(shard, processes)
            receiver.behaviour = Behaviour()
        self.over = True

    def _circuits_open(self, shard: Shard, processes: int) -> bool:
        until, circuits = self._kernel.now + OPENING, CircuitStateStore(shard)
        while self._kernel.now < until:
            self._client.expire(4)
            self._kernel.pause(5)
            shard.read_clock()
            if circuits.read(self._name).open_on >= processes:
                return True
        return False

    @property
    def _expired(self) -> int:
        return sum(len(book.expired) for book in self._simulation.book.shards)

    def _owners(self, shard: Shard) -> set[bytes]:
        """The processes with an event in hand."""
        rows: Any = shard.client.xpending_range(shard.keys.events, self._name, "-", "+", 1000)
        return {row["consumer"] for row in rows if not is_waiting(row["consumer"])}

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str, every: float = 1.0) -> None:
        until = self._kernel.now + seconds
        while not condition():
            if self._kernel.now > until:
                raise Failure(what, f"{self._name}, {self._plan.outage}, within {seconds:.0f} s")
            self._kernel.pause(every)

    def _drop_all(self, shard: Shard) -> None:
        """When all is expired, an operator drops everything that waits or is in hand."""
        (endpoint,) = (each for each in self._settings.webhooks.endpoints if each.name == self._name)
        quiet = 0
        while quiet < 3:
            ahead: Any = shard.client.zcard(shard.keys.reservation_index)
            now = shard.read_clock()
            dropped = sum(endpoints.drop(shard, endpoint, endpoints.end_of_backlog(shard, now, now), letters=True))
            quiet = 0 if ahead or dropped else quiet + 1
            self._kernel.pause(1)

    def _flood(self, shard: Shard) -> None:
        """While unwanted events come in a flood, a single wanted one comes, and is delivered."""
        receiver = self._simulation.receivers[self._name]
        self._drop_all(shard)
        receiver.behaviour = Behaviour()
        self._kernel.spawn("flood", lambda: self._add_unwanted(shard), Host("client-flood"))
        self._kernel.pause(FLOODED)
        before, expired = len(receiver.accepted), self._expired
        self._client.expire(1)
        self._wait(lambda: self._expired > expired, self._plan.bound, "the wanted event of a flood is made")
        webhooks = self._settings.webhooks
        limit = (webhooks.probe_max + webhooks.timeout).total_seconds() + FLOODED
        self._wait(lambda: len(receiver.accepted) > before, limit, "a receiver that is back gets what it wants")
        self._flooding = False

    def _add_unwanted(self, shard: Shard) -> None:
        while self._flooding:
            shard.client.eval(FLOOD, 1, shard.keys.events, UNWANTED)
            self._kernel.pause(UNWANTED_EVERY)

    def _orphan(self, shard: Shard, processes: "list[Replica]") -> None:
        """The process with the only event, the probe, in hand dies. Another process delivers the event."""
        receiver = self._simulation.receivers[self._name]
        receiver.behaviour = Behaviour(hangs=1.0)
        self._drop_all(shard)
        self._client.expire(1)
        self._wait(lambda: bool(self._owners(shard)), self._plan.bound, "an open circuit is probed", 0.2)
        (owner,) = self._owners(shard)
        for replica in processes:
            host = replica.host
            if host is not None and owner.startswith(host.name.encode() + b"-"):
                self._simulation.book.disturb("killed", TAKE_OVER, host=host.name)
                self._kernel.kill(host)
                for server in self._simulation.servers.values():
                    server.forget(host)
        receiver.behaviour = Behaviour()
        book = self._simulation.book
        what = "what a dead process had in hand is delivered"
        self._wait(lambda: not book.undelivered(self._settings), self._plan.bound, what)
        for replica in processes:
            if not replica.alive:
                replica.start()
