"""Measures how long a client of the ledger waits, from its own process, at a steady rate."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import NamedTuple

from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store.shard import Shard

SCOPES, UNIT = ("live", "live/a"), "TOKENS"


class LedgerCall(NamedTuple):
    """When it began (monotonic), and how long it took, seconds."""

    at: float
    seconds: float


class Foreground:
    """Reserves `rate` times a second while the block lasts."""

    def __init__(self, url: str, rate: float) -> None:
        spawn = get_context("spawn")
        self._pipe, self._theirs = spawn.Pipe()
        self._process = spawn.Process(target=_call, args=(url, rate, self._theirs), daemon=True)

    def __enter__(self) -> "Foreground":
        self._process.start()
        self._theirs.close()  # so that its death is noticed
        self._pipe.recv()  # it has begun
        return self

    def stop(self) -> list[LedgerCall]:
        """End it. Returns all its calls, in order."""
        self._pipe.send("stop")
        calls: list[LedgerCall] = self._pipe.recv()
        self._process.join()
        return calls

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Step(NamedTuple):
    """The calls of one step of time: its middle, seconds, the median of their latencies and the longest, ms."""

    at: float
    median_ms: float
    longest_ms: float


def milliseconds(calls: Sequence[LedgerCall], began: float, ended: float) -> list[float]:
    """How long the calls took that began in this span (monotonic), ms."""
    return [call.seconds * 1000 for call in calls if began <= call.at < ended]


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100)[98]


def steps(calls: Sequence[LedgerCall], length: float) -> list[Step]:
    """Calls in the order of `at`, summed up over each `length` seconds."""
    summed = []
    for number, group in groupby(calls, lambda call: math.floor(call.at / length)):
        taken = [call.seconds * 1000 for call in group]
        summed.append(Step((number + 0.5) * length, median(taken), max(taken)))
    return summed


def _call(url: str, rate: float, pipe: Connection) -> None:
    """Call until told to stop, then tell of each call."""
    shard = Shard(RedisSettings.model_validate({"url": url}))
    ledger = Ledger(shard)
    for scope in SCOPES:
        ledger.open_budget(scope, UNIT, 10**12)
    calls: list[LedgerCall] = []
    number = 0
    pipe.send("begun")
    started = time.monotonic()
    while not pipe.poll():
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        number += 1
        began, key = time.monotonic(), str(number)
        ledger.reserve("acme", SCOPES, UNIT, 5, ttl=timedelta(hours=1), idempotency_key=key)
        calls.append(LedgerCall(began, time.monotonic() - began))
    pipe.send(calls)
    shard.close()
