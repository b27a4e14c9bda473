"""What operators see of circuits, and how they close them on all processes."""

from typing import Any

import pytest
import redis

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker
from sweeperd.ops import endpoints
from sweeperd.outbox import CircuitNote, CircuitState, CircuitStateStore, DeliveryRate, is_waiting
from sweeperd.store import Shard
from tests.support.builders import StillClock
from tests.support.deliveries import Deliver, expire
from tests.support.fixtures import full
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver

KEY = "sweeperd:circuits"
#: A moment of Redis's clock, ms.
NOW = 1_795_000_000_000


def closed() -> CircuitBreaker:
    return CircuitBreaker(30.0, 3600.0)


def opened() -> CircuitBreaker:
    circuit = closed()
    for _ in range(FAILURES_TO_OPEN):
        circuit.failed(b"1-1", "HTTP 500")
    return circuit


def noted(shard: Shard, process: str, circuit: CircuitBreaker, rate: DeliveryRate | None = None) -> CircuitNote:
    return circuit.note(process, shard.clock.now_ms(), rate or DeliveryRate())


def succeeding() -> CircuitBreaker:
    circuit = closed()
    circuit.succeeded()
    return circuit


def test_it_is_open_on_one_of_three_processes(shard: Shard) -> None:
    store = CircuitStateStore(shard)
    for process, circuit in (("a", closed()), ("b", opened()), ("c", succeeding())):
        store.write("billing", noted(shard, process, circuit))
    store.write("billing2", noted(shard, "d", opened()))
    state = store.read("billing")
    assert (state.open_on, state.processes, state.failures, state.reason) == (1, 3, FAILURES_TO_OPEN, "HTTP 500")
    store.remove("billing", "b")
    state = store.read("billing")
    assert (state.open_on, state.processes, state.reason) == (0, 2, "")


@pytest.mark.parametrize(
    ("success", "later", "living"),
    [
        # 30 s without a note, and a process is dead.
        (-1, 29_999, True),
        (-1, 30_000, False),
        # 15 s, where its circuit is open and another process has delivered since its note.
        (1, 14_999, True),
        (1, 15_000, False),
        (0, 15_000, True),
    ],
)
def test_a_note_is_believed_for_a_while(
    shard: Shard, client: redis.Redis, success: int, later: int, living: bool
) -> None:
    at = 1_795_000_000_000
    ours = CircuitNote(process="a", at=at, probe_at=at, failures=3)
    theirs = CircuitNote(process="b", at=at + later, delivered_at=at + success)
    for note in (ours, theirs):
        client.hset(KEY, f"billing@{note.process}", note.model_dump_json())
    shard.clock = StillClock(at + later)
    notes = CircuitStateStore(shard).read("billing").notes
    assert [note.process for note in notes] == (["a", "b"] if living else ["b"])


@pytest.mark.parametrize(
    ("age", "left"), [(DEFAULT_TIMING.note_kept * 1000, 2), (DEFAULT_TIMING.note_kept * 1000 + 1, 1)]
)
def test_a_note_is_kept_for_so_long(age: float, left: int, shard: Shard, client: redis.Redis) -> None:
    client.hset(KEY, "billing@a", CircuitNote(process="a", at=NOW - int(age)).model_dump_json())
    client.hset(KEY, "billing@b", CircuitNote(process="b", at=NOW).model_dump_json())
    shard.clock = StillClock(NOW)
    store = CircuitStateStore(shard)
    store.close("billing")
    store.remove_stale()
    assert client.hlen(KEY) == left + 1, "when an operator closed it is kept"


def test_what_a_process_publishes(shard: Shard) -> None:
    """Times are of Redis's clock, whatever the process counts from."""
    seconds = 1000.0
    circuit, rate = CircuitBreaker(30.0, 3600.0, lambda: seconds), DeliveryRate()
    shard.clock = StillClock(NOW)
    store = CircuitStateStore(shard)
    store.write("billing", noted(shard, "a", circuit))
    assert store.read("billing").notes == (CircuitNote(process="a", at=NOW),)
    circuit.succeeded()
    for delivered in (0, 50):
        rate.add(seconds, delivered)
        seconds += 10.0
    for _ in range(FAILURES_TO_OPEN):
        circuit.failed(b"1-1", "HTTP 500")
    seconds += 2.5
    store.write("billing", noted(shard, "a", circuit, rate))
    (note,) = store.read("billing").notes
    assert (note.delivered_at, note.probe_at) == (NOW - 22_500, NOW + 27_500)
    assert (note.failures, note.reason) == (FAILURES_TO_OPEN, "HTTP 500")
    assert (note.rate, note.rate_window) == (rate.per_second, rate.window_seconds) != (0.0, 0.0)


@pytest.mark.parametrize("entry", ["", "{", "[]", '{"probe_at": "soon"}'])
def test_what_cannot_be_read_counts_for_nothing(entry: str, shard: Shard, client: redis.Redis) -> None:
    client.hset(KEY, "billing@a", entry)
    assert CircuitStateStore(shard).read("billing") == CircuitState()


def test_a_redis_that_refuses_it_disturbs_no_delivery(own_shard: Shard) -> None:
    store = CircuitStateStore(own_shard)
    with full(own_shard):
        store.write("billing", noted(own_shard, "a", opened()))
    assert store.read("billing").open, "a full one takes it"
    own_shard.client.set(KEY, "text")
    store.write("billing", noted(own_shard, "a", opened()))


def test_a_redis_that_is_down_is_an_error(own_shard: Shard) -> None:
    own_shard.client.config_set("min-replicas-to-write", 1)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        CircuitStateStore(own_shard).write("billing", noted(own_shard, "a", opened()))


# ---- in operation


def test_a_process_publishes_its_circuit_until_it_stops(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    store = CircuitStateStore(shard)
    with Receiver(lambda *_: Answer(503)) as receiver, deliver(receiver.url):
        eventually(lambda: store.read("hook").processes == 1)
        assert not store.read("hook").open
        expire(client, *map(str, range(8)))
        eventually(lambda: store.read("hook").open)
        assert store.read("hook").reason == "HTTP 503"
    assert store.read("hook").processes == 0


def test_an_operator_closes_it_and_makes_events_due_on_all_processes(
    client: redis.Redis, shard: Shard, deliver: Deliver
) -> None:
    """However long the waits are: without this, a receiver that is back is not noticed for up to an hour."""
    timing = Timing(block=0.1, refresh_every=0.2, note_every=0.2, heartbeat_every=0.2)
    waits: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h", "probe_max": "1h", "timing": timing}
    with (
        Receiver(lambda *_: Answer(503)) as receiver,
        deliver(receiver.url, **waits) as first,
        deliver(receiver.url, **waits) as second,
    ):
        expire(client, *map(str, range(40)))
        both = [first.dispatcher.lanes[0].circuit, second.dispatcher.lanes[0].circuit]
        eventually(lambda: all(circuit.open for circuit in both))
        # A request still in flight would get the new answer, and close the circuit of its process.
        eventually(lambda: all(is_waiting(owner) for owner, _, _ in first.pending().values()))
        # Each process publishes that a moment later.
        eventually(lambda: CircuitStateStore(shard).read("hook").open_on == 2)
        parked = len(first.pending())
        receiver.behaviour = lambda *_: Answer()
        resumed = endpoints.resume(shard, "hook")
        assert not resumed.was_resting
        assert (resumed.was_open_on, resumed.due) == (2, parked)
        eventually(lambda: first.attempts("delivered") + second.attempts("delivered") == 40, limit=40)
        eventually(lambda: not first.pending())


def test_probes_wait_no_longer_than_probe_max(client: redis.Redis, deliver: Deliver) -> None:
    waits = {"redelivery_initial": "1h", "redelivery_max": "1h", "probe_max": "300ms"}
    with Receiver(lambda *_: Answer(503)) as receiver, deliver(receiver.url, **waits) as delivery:
        expire(client, *map(str, range(8)))
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
        receiver.behaviour = lambda *_: Answer()
        eventually(lambda: delivery.attempts("delivered") > 0)


def test_all_circuits_are_read_at_once(shard: Shard) -> None:
    store = CircuitStateStore(shard)
    for endpoint, process, circuit in (("a", "one", closed()), ("a", "two", opened()), ("b.c", "one", opened())):
        store.write(endpoint, noted(shard, process, circuit))
    store.close("b.c")
    assert store.read_all() == {name: store.read(name) for name in ("a", "b.c")}
    assert [note.process for note in store.read_all()["a"].notes] == ["two", "one"]
