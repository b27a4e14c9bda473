"""Measures the yardstick of a sweep: its script calls, encoded beforehand, over a bare socket."""

import itertools
import time
from collections import deque

import redis

from benchmarks.fill import entry_id
from benchmarks.wire import Wire, encode_calls
from sweeperd.config import SweepSettings
from sweeperd.store.keys import Keys
from sweeperd.sweep.reservations import reservations

#: What a reply of expire.lua is known by.
EXPIRED, IN_GRACE = b"$7\r\nexpired\r\n", b"$8\r\nin_grace\r\n"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def sweep(url: str, entries: int, *, length: int, ahead: int, marker: bytes = EXPIRED, first: int = 0) -> float:
    """
    Seconds for one `expire` call for each of the entries that `fill` made, in batches of this size, of which at most
    `ahead` are on their way at once. Encoding is not counted.
    """
    kind = reservations(Keys(), SweepSettings())
    calls = (kind.call(entry_id(number), TRACE_ID) for number in range(first, first + entries))
    batches = []
    while batch := list(itertools.islice(calls, length)):
        batches.append((encode_calls(kind.script, batch), len(batch)))
    with redis.Redis.from_url(url) as client:
        client.script_load(kind.script.source)
    with Wire(url, marker) as wire:
        sent: deque[int] = deque()
        total = 0
        started = time.perf_counter()
        for data, count in batches:
            wire.send(data)
            total += count
            sent.append(total)
            if len(sent) == ahead:
                wire.await_replies(sent.popleft())
        wire.await_replies(total)
        return time.perf_counter() - started
