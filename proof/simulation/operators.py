"""Does at random what operators do, over connections that fail like those of others."""

import functools
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import redis

from proof.simulation.kernel import Failure, Host
from sweeperd.config import RELAY, EndpointSettings
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.ops import endpoints
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter
from sweeperd.ops.reconcile.budget_repair import repair_budget
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.ops.trial import try_out
from sweeperd.outbox import EndpointStateStore, dead_letters, replays
from sweeperd.runtime.once import run_once
from sweeperd.store import Shard, open_shards
from sweeperd.store.scripts import accepted
from sweeperd.sweep.configured import kinds_of

if TYPE_CHECKING:
    from proof.simulation.run import Simulation

#: Between two actions, on the average, seconds.
EVERY = 10.0
#: An answer that pauses an endpoint may come so late, seconds.
LATE = 20.0
#: Breaks a reservation that is there.
BREAK = "if redis.call('HGET', KEYS[1], 'state') == 'ACTIVE' then redis.call('HSET', KEYS[1], 'grace_ms', 'x') end"

#: Moves an amount to `reserved` of a budget, without a reservation.
SHIFT = """
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'reserved', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'remaining', '-' .. ARGV[1])
end
"""
#: Closes a tenant and its budgets.
CLOSE = """
redis.call('SET', KEYS[1], '{"status":"CLOSED"}')
for i = 2, #KEYS do
  local row = redis.call('HMGET', KEYS[i], 'reserved', 'remaining', 'status')
  if row[3] == 'ACTIVE' then
    redis.call('HSET', KEYS[i], 'status', 'CLOSED', 'reserved', '0')
    redis.call('HINCRBY', KEYS[i], 'remaining', row[1])
  end
end
"""


class Operators:
    """One operator, who ends in good time what only an operator can end."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._kernel, self._book = simulation.kernel, simulation.book
        self._random = random.Random(f"{simulation.plan.seed} operators")
        self._over = False
        self.actions: dict[str, Callable[[Shard, EndpointSettings], Any]] = {
            "pause": self._pause,
            "skip": self._skip,
            "replay": self._replay,
            "cancel": self._cancel,
            "letters": self._letters,
            "quarantine": self._set_aside,
            "repair": self._repair,
            "reconcile": self._reconcile,
            "destroy": self._destroy,
            "circuit": self._circuit,
            "once": self._once,
            "test": self._test,
            "tenant": self._tenant,
            "drift": self._drift,
        }
        self._chosen = [name for name in self.actions if name in simulation.plan.operations]
        self._host = Host("operator")

    def begin(self) -> None:
        """From now on act now and then."""
        if self._chosen:
            self._kernel.spawn("operator", self._run, self._host)

    def heal(self) -> None:
        """End every pause, and put back what was set aside: what waits for an operator has one."""
        self._over = True
        self._kernel.spawn("operator's end", self._end, Host("operator-end"))

    def _run(self) -> None:
        while not self._over:
            self._kernel.pause(self._random.expovariate(1 / EVERY))
            if self._over:
                return
            name = self._random.choice(self._chosen)
            self._simulation.note(f"operator: {name}")
            shard = self._random.choice(open_shards(self._simulation.settings))
            settings = self._simulation.settings
            configured = settings.webhooks.endpoints
            if settings.cycles.enabled and name in ("pause", "destroy", "circuit"):
                configured = [*configured, RELAY]
            if configured:
                self._try(lambda: self.actions[name](shard, self._random.choice(configured)))  # noqa: B023
            shard.close()

    def _end(self) -> None:
        self._kernel.pause(LATE)
        for shard in open_shards(self._simulation.settings):
            for endpoint in (*self._simulation.settings.webhooks.endpoints, RELAY):
                while not self._try(lambda: self._resume_if_paused(shard, endpoint.name)):  # noqa: B023
                    self._kernel.pause(1)
            if "quarantine" in self._simulation.plan.operations:
                while not self._try(lambda: self._put_back(shard)):  # noqa: B023
                    self._kernel.pause(1)
            for budget in self._book.drifting(shard.name):
                self._repair_until_sound(shard.name, budget)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RedisUnavailable, redis.RedisError, KindRefused) as error:
            self._simulation.note(f"operator: {type(error).__name__}: {error}")
            return None

    def _resume_if_paused(self, shard: Shard, name: str) -> bool:
        """Only what waits for an operator: to resume an endpoint closes its circuits too."""
        if EndpointStateStore(shard).read(name).paused:
            endpoints.resume(shard, name)
        return True

    def _pause(self, shard: Shard, endpoint: EndpointSettings) -> None:
        endpoints.pause(shard, endpoint.name, "an operator paused it")
        self._kernel.pause(self._random.uniform(1, 40))
        while not self._over and not self._try(lambda: endpoints.resume(shard, endpoint.name)):
            self._kernel.pause(2)

    def _skip(self, shard: Shard, endpoint: EndpointSettings) -> None:
        self._book.doubted.add(endpoint.name)
        rows: Any = shard.client.xpending_range(shard.keys.events, endpoint.name, "-", "+", 5)
        for row in rows[:1]:
            endpoints.skip(shard, endpoint, row["message_id"].decode())

    def _span(self, shard: Shard) -> replays.ReplaySpan:
        now = shard.read_clock()
        return replays.ReplaySpan(now - self._random.randint(1, 120) * 1000, now)

    def _replay(self, shard: Shard, endpoint: EndpointSettings) -> None:
        counted = replays.count_events(shard, endpoint, self._span(shard))
        if counted.events:
            # Begun even if the reply is lost; the events come again, however long the replay takes.
            self._book.disturb("replay", 10_000, endpoint=endpoint.name)
            begun = self._kernel.now
            outcome, note = replays.begin(shard, counted)
            if outcome == "begun":
                self._book.replayed(shard.name, endpoint, note, begun)

    def _cancel(self, shard: Shard, endpoint: EndpointSettings) -> None:
        self._book.doubted.add(endpoint.name)
        if note := replays.ReplayStore(shard).read(endpoint.name):
            replays.cancel(shard, note)

    def _letters(self, shard: Shard, endpoint: EndpointSettings) -> None:
        wanted = dead_letters.DeadLetterFilter(endpoint=endpoint.name)
        ids = [letter.id for letter in dead_letters.read(shard, wanted)][: self._random.randint(1, 50)]
        if ids:
            self._book.disturb("dead letters replayed", 10_000, endpoint=endpoint.name)
            accepted(dead_letters.replay(shard, ids))

    def _set_aside(self, shard: Shard, _endpoint: EndpointSettings) -> None:
        """Somebody breaks the hash of a reservation; later an operator dismisses the entry, or mends and requeues."""
        found: Any = shard.client.zrange(shard.keys.reservation_index, 0, 0)
        for entry in found:
            shard.client.eval(BREAK, 1, shard.keys.reservation(entry))
        self._kernel.pause(self._random.uniform(5, 30))
        quarantine = self._quarantine(shard)
        if self._random.random() < 0.3:
            list(quarantine.dismiss(QuarantineFilter()))
        else:
            self._put_back(shard)

    def _quarantine(self, shard: Shard) -> Quarantine:
        return Quarantine(shard, kinds_of(self._simulation.plan.settings, shard)["reservations"], 10)

    def _put_back(self, shard: Shard) -> bool:
        for key in shard.client.scan_iter(shard.keys.prefix + b"reservation:res_*", 1000):
            if shard.client.hget(key, "grace_ms") == b"x":
                shard.client.hset(key, "grace_ms", "0")
        list(self._quarantine(shard).requeue(QuarantineFilter()))
        return True

    def _repair(self, shard: Shard, _endpoint: EndpointSettings) -> None:
        budget = b"tenant:acme:TOKENS"
        repaired = repair_budget(shard, self._simulation.settings.sweep, shard.keys.prefix + b"budget:" + budget)
        if repaired.result == "repaired":
            raise Failure("nothing sound is repaired", f"{budget!r}: {repaired}")

    def _reconcile(self, shard: Shard, _endpoint: EndpointSettings) -> None:
        plan = self._simulation.plan
        for kind in kinds_of(self._simulation.settings, shard):
            report = reconcile(subject_of(shard, self._simulation.settings, kind, Throttle(None)), limit=10)
            # If the clock was set back, a score that was postponed by a few seconds is too late.
            set_back = {Fault.WRONG_SCORE} if "clock" in plan.faults else set()
            found = [each for each in report.findings if each.fault not in set_back]
            if found and not plan.operations & {"quarantine", "drift"}:
                raise Failure("reconcile finds what is there", f"{[each.document() for each in found]}")
            if self._random.random() < 0.5:
                mend(subject_of(shard, self._simulation.settings, kind), report)

    def _drift(self, shard: Shard, _endpoint: EndpointSettings) -> None:
        """A hand breaks a budget. Two operators repair it at the same time, and one of them may stop in the middle."""
        budget, amount = shard.keys.budget(b"tenant:globex", b"TOKENS"), self._random.randint(1, 99)
        self._book.may_drift(shard.name, budget, amount)
        shard.client.eval(SHIFT, 1, budget, amount)
        hosts = [Host("repair-1"), Host("repair-2")]
        for host in hosts:
            self._kernel.spawn("repair", functools.partial(self._repair_until_sound, shard.name, budget), host)
        if self._random.random() < 0.7:
            self._kernel.pause(self._random.uniform(0, 0.1))
            self._kernel.stop(hosts[0])
            self._kernel.pause(self._random.uniform(1, 30))
            self._kernel.resume(hosts[0])

    def _repair_until_sound(self, name: str, budget: bytes) -> None:
        """Repair a budget of this shard again and again, while its `reserved` is too high."""
        (shard,) = (each for each in open_shards(self._simulation.settings) if each.name == name)
        while budget in self._book.drifting(name):
            self._try(lambda: repair_budget(shard, self._simulation.settings.sweep, budget))
            self._kernel.pause(1)
        shard.close()

    def _destroy(self, shard: Shard, endpoint: EndpointSettings) -> None:
        """A hand removes a consumer group."""
        self._book.disturb("group destroyed", 60)
        shard.client.xgroup_destroy(shard.keys.events, endpoint.name)

    def _circuit(self, shard: Shard, endpoint: EndpointSettings) -> None:
        shard.read_clock()
        endpoints.close_circuit(shard, endpoint.name)

    def _test(self, shard: Shard, endpoint: EndpointSettings) -> None:
        """`sweeperd endpoints test`: nothing in Redis changes, so the trial is told from its result alone."""
        count = self._random.choice([1, 3])
        trial = try_out(shard, endpoint, self._simulation.settings.webhooks, count)
        if trial.delivered != (trial.accepted == count):
            raise Failure("a trial says what became of it", repr(trial))

    def _tenant(self, shard: Shard, _endpoint: EndpointSettings) -> None:
        """The administration closes a tenant: its budgets are settled, its reservations stay."""
        keys: Any = [shard.keys.tenant(b"initech")]
        keys += [shard.keys.budget(scope, b"TOKENS") for scope in (b"tenant:initech", b"tenant:initech/app:web")]
        shard.client.eval(CLOSE, len(keys), *keys)

    def _once(self, _shard: Shard, _endpoint: EndpointSettings) -> None:
        """`sweeperd --once` beside the daemons, on a host of its own."""

        def run() -> None:
            run_once(self._simulation.settings, threading.Event(), delivery_limit=timedelta(seconds=20))

        self._kernel.spawn("once", run, Host("once"))
