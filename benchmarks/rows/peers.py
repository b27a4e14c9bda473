"""
Others' own clean-up of what has expired, on the same Redis: how many entries a second, beside ours.

None of them does what sweeperd does: they give no budget back and tell nobody. What they share with it is the work for
each entry: find those whose time is over, read each, write down what became of it, take it out of the index.

- RQ: jobs that were enqueued, dequeued and begun with its own API, by a worker that then died. What its workers run is
  `StartedJobRegistry.cleanup`: it takes each job whose heartbeat has run out to the failed ones. Failures are handled
  as by default: there is no retry and no callback. `timestamp` stands in for the wait until they have run out.
- kombu: messages that were published and received with its own API, and not acknowledged. What its consumers run is
  `restore_visible` with `unacked_restore_limit`, which is by default None: all that are visible again, in one call.
  `unacked_restore_throttle` passes over calls, but never the first.
"""

import logging
import time
from importlib.util import find_spec
from typing import Any

import redis

from benchmarks.lab import Lab
from benchmarks.process import apart
from benchmarks.row import Goal, NotMeasurable, Row, Sample

#: How long a begun job or a received message is left alone, seconds; longer than it takes to make them.
LATER = 3600


def measure(lab: Lab) -> Sample:
    """One `--once`, and each of the peers over a few thousand of its own entries, each on a fresh server."""
    entries, theirs = lab.size("entries", 50_000, 5_000), lab.size("peer_entries", 3_000, 500)
    if not (find_spec("rq") and find_spec("kombu")):
        raise NotMeasurable("it needs RQ and kombu: pip install -e '.[bench]'")
    with lab.overdue(entries) as server:
        ours = lab.once(server).entries_per_second
    rates = {}
    for name, clean_up in (("rq", clean_up_rq), ("kombu", clean_up_kombu)):
        with lab.server() as server:
            rates[name] = theirs / apart(clean_up, server.url, theirs)
    return Sample(
        {name: ours / rate for name, rate in rates.items()},
        {"entries_per_second": ours, **{f"{name}_entries_per_second": rate for name, rate in rates.items()}},
    )


def clean_up_rq(url: str, entries: int) -> float:
    """Seconds of one `StartedJobRegistry.cleanup`."""
    from rq import Queue, SimpleWorker  # noqa: PLC0415 - of the extra `bench`
    from rq.registry import FailedJobRegistry, StartedJobRegistry  # noqa: PLC0415

    logging.getLogger("rq").setLevel(logging.ERROR)  # a line for each entry is its own business
    with redis.Redis.from_url(url) as connection:
        queue = Queue(connection=connection)
        queue.enqueue_many([Queue.prepare_data(job) for _ in range(entries)])
        worker = SimpleWorker([queue], connection=connection)
        for _ in range(entries):
            dequeued, _ = Queue.dequeue_any([queue], None, connection=connection)
            worker.prepare_execution(dequeued)
            worker.prepare_job_execution(dequeued)
        registry = StartedJobRegistry(queue=queue)
        started = time.perf_counter()
        registry.cleanup(timestamp=time.time() + LATER)
        seconds = time.perf_counter() - started
        _all_done("RQ", FailedJobRegistry(queue=queue).get_job_count(cleanup=False), entries)
    return seconds


def clean_up_kombu(url: str, entries: int) -> float:
    """Seconds of one `restore_visible`."""
    from kombu import Connection  # noqa: PLC0415 - of the extra `bench`

    with Connection(url, transport_options={"visibility_timeout": LATER}) as connection:
        queue = connection.SimpleQueue("work")
        for number in range(entries):
            queue.put({"number": number})
        channel: Any = queue.channel
        received = [queue.get(timeout=10) for _ in range(entries)]
        channel.visibility_timeout = 0
        started = time.perf_counter()
        channel.qos.restore_visible(num=channel.unacked_restore_limit, interval=channel.unacked_restore_throttle)
        seconds = time.perf_counter() - started
        _all_done("kombu", channel.client.llen("work"), len(received))
        # It is told that they are done with, or closing the channel would restore them once more.
        for message in received:
            message.ack()
    return seconds


def job() -> None:
    """What RQ's jobs are to do; none of them gets to it."""


def _all_done(peer: str, done: int, entries: int) -> None:
    if done != entries:
        raise RuntimeError(f"{peer} cleaned up {done} of {entries} entries")


ROW = Row(
    "peers",
    "entries expired a second",
    "peers' own clean-up of expired entries",
    {
        "rq": Goal("at_least", 10, against="RQ's `StartedJobRegistry.cleanup`"),
        "kombu": Goal("at_least", 10, against="kombu's `restore_visible`"),
    },
    measure,
)
