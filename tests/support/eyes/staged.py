"""The page over an hour that was made up: the real server, the real report, but no Redis."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.ops.endpoint_status import ReplayDocument, ReplicaDocument
from sweeperd.ops.health import ShardView
from sweeperd.ops.history import KindSample, StatusSample
from sweeperd.ops.processes import ProcessDocument, Processes, ProcessNote
from sweeperd.ops.rate import Rate
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.status import Details, Due, KindDocument, ShardStatus
from sweeperd.ops.status_report import status_report
from sweeperd.outbox import CircuitNote
from sweeperd.outbox.attempts import Attempt
from sweeperd.store.memory import MemoryUse
from sweeperd.sweep.last_sweep import LastSweep
from sweeperd.sweep.reservations import REASONS
from sweeperd.web.server import WebServer
from tests.support.builders import endpoint_status, kind_status, last_walk, shard_status

NOW_MS = 1_795_000_000_000
SAMPLES = 240

Shards = Sequence[tuple[ShardView, Sequence[StatusSample]]]


@contextlib.contextmanager
def served(settings: Settings, shards: Callable[[], Shards]) -> Iterator[str]:
    """The address of a page that shows these."""

    def reported() -> dict[str, Any]:
        return status_report(settings, shards(), time.monotonic()) | {"by": "sweeperd-6d9f-1"}

    def well() -> tuple[bool, str]:
        return True, "ok"

    http = settings.http.model_copy(update={"listen": "127.0.0.1:0"})
    web = WebServer(http, Metrics(), well, well, reported)
    web.start()
    try:
        yield f"http://127.0.0.1:{web.port}/"
    finally:
        web.close()


def settings(*endpoints: str, runbook: str = "") -> Settings:
    """Of two shards and these endpoints; `runbook`: where it is published."""
    return Settings.model_validate(
        {
            "http": {"runbook": runbook},
            "shards": [
                {"name": "eu", "url": "redis://redis-eu.internal:6379/0"},
                {"name": "us", "url": "redis://redis-us.internal:6379/0"},
            ],
            "webhooks": {
                "endpoints": [
                    {"name": name, "url": f"https://user:secret@{name}.example.com/hooks/secret?key=secret"}
                    for name in endpoints
                ]
            },
        }
    )


def tick(*, expired: int, rate: float, by: str = "sweeperd-6d9f-1", age_ms: int = 2300) -> LastSweep:
    return LastSweep(NOW_MS - age_ms, by, 0.041, True, expired, expired - int(90 * rate), NOW_MS - 90_000)


def hour(
    overdue: Callable[[float], float],
    rate: Callable[[float], float],
    quarantined: Callable[[float], float],
    pending: dict[str, Callable[[float], float]],
    outage: tuple[float, float] = (0, 0),
) -> list[StatusSample]:
    """Samples of an hour, each value by its minute (0 to 60); none while Redis was away."""
    now, samples = time.monotonic(), []
    for number in range(SAMPLES):
        minute = number / 4
        waits = {name: int(by_minute(minute)) for name, by_minute in pending.items()}
        ago = 15 * (SAMPLES - 1 - number) + 2
        if outage[0] < minute < outage[1]:
            samples.append(StatusSample(now - ago))
            continue
        samples.append(
            StatusSample(
                now - ago,
                {"reservations": KindSample(int(overdue(minute)), int(quarantined(minute)), round(rate(minute), 2))},
                NOW_MS - ago * 1000,
                waits,
            )
        )
    return samples


def replica(process: str, **fields: Any) -> ReplicaDocument:
    """One process that delivers to an endpoint."""
    return ReplicaDocument.of(CircuitNote(process=process, at=NOW_MS, rate_window=60.0, **fields))


def both(*processes: str, kinds: tuple[str, ...] = ("reservations",)) -> Processes:
    """These daemons, each of which sweeps these kinds and delivers."""
    usual = ProcessNote(at=NOW_MS - 3000, sweeps=True, delivers=True, version="0.1.0", since=NOW_MS - 4_000_000)
    notes = [usual.model_copy(update={"process": name, "kinds": kinds}) for name in processes]
    return Processes(tuple(ProcessDocument.of(note, NOW_MS, in_hand=2) for note in notes))


def attempted(seconds_ago: int, replica: str) -> Attempt:
    """One attempt in vain."""
    return Attempt(
        NOW_MS - 1000 * seconds_ago, "evt_7e1c09a4", b"r-5a1", b"1-0", b"1-0", 1, 7, 1, "failed", "HTTP 503", 212,
        "secret answer", replica,
    )  # fmt: skip


def ripple(minute: float, height: float, seed: float = 1.0) -> float:
    """Imitated traffic, the same each time."""
    waves = math.sin(minute * 1.7 * seed) + math.sin(minute * 0.61 + seed) + 0.6 * math.sin(minute * 4.3 * seed + 2)
    return height * (1 + waves / 5)


def busy() -> Shards:
    """One shard with an endpoint that fails and rows set aside, and one that does well."""

    def backlog(minute: float) -> float:
        left = 950 * math.exp(-((minute - 15) ** 2) / 5) if minute > 15 else 0
        return max(0.0, ripple(minute, 9)) + left

    eu = shard_status(
        "eu",
        "redis-eu.internal:6379",
        now_ms=NOW_MS,
        due=Due(43, 34, 9, True, 41.0, 1.2),
        alive=231_480,
        quarantined=3,
        tick=tick(expired=128_440, rate=8.4),
        endpoints=(
            endpoint_status(
                "billing",
                pending=2,
                oldest_pending_seconds=0.4,
                processes=2,
                rate=8.43,
                replicas=(replica("sweeperd-6d9f-1", rate=4.2), replica("sweeperd-6d9f-2", rate=4.23)),
            ),
            endpoint_status(
                "crm",
                pending=1827,
                oldest_pending_seconds=1322,
                state="open",
                open_on=1,
                processes=2,
                failures=11,
                failure="HTTP 503",
                rate=0.02,
                replicas=(
                    replica("sweeperd-6d9f-2", probe_at=NOW_MS, failures=11, reason="HTTP 503"),
                    replica("sweeperd-6d9f-1", rate=0.02),
                ),
            ),
            endpoint_status(
                "warehouse",
                pending=0,
                dead_letters=4,
                processes=2,
                rate=8.1,
                replicas=(replica("a"),),
                replay=ReplayDocument(
                    since=NOW_MS - 7_200_000,
                    until=NOW_MS - 3_600_000,
                    tenant="acme",
                    event_type=None,
                    began_at=NOW_MS - 240_000,
                    running_seconds=240,
                    events=12_000,
                    left=4_500,
                ),
            ),
        ),
        dead_letters=4,
        rate=Rate(8.42, 60.0),
        processes=both("sweeperd-6d9f-1", "sweeperd-6d9f-2"),
        last_walk=last_walk(NOW_MS - 11_000_000, lost=2),
        details=Details(
            (
                ReasonCount("reservations", "INVALID_ESTIMATE", 2, ("r-7f31", "r-2b90"), REASONS["INVALID_ESTIMATE"]),
                ReasonCount("reservations", "RESERVED_UNDERFLOW", 1, ("r-1c04",), REASONS["RESERVED_UNDERFLOW"]),
            ),
            {"crm": [attempted(ago, "sweeperd-6d9f-2") for ago in (41, 101, 161)]},
        ),
    )
    eu_hour = hour(
        backlog,
        lambda minute: ripple(minute, 8.0, 0.9) + (14 if 15 <= minute < 18 else 0),
        lambda minute: 0 if minute < 31 else 1 if minute < 44 else 3,
        {
            "billing": lambda minute: max(0.0, ripple(minute, 3, 1.3)),
            "crm": lambda minute: max(0.0, ripple(minute, 3, 0.7)) if minute < 38 else (minute - 38) * 84,
            "warehouse": lambda minute: 60 * math.exp(-((minute - 24) ** 2) / 6),
        },
        outage=(12, 15),
    )
    us = shard_status(
        "us",
        "redis-us.internal:6379",
        now_ms=NOW_MS,
        due=Due(4, 0, 4, True, 1.1, 1.1),
        alive=180_112,
        tick=tick(expired=91_207, rate=5.1, by="sweeperd-6d9f-2", age_ms=1100),
        sweeping="sweeperd-6d9f-2",
        endpoints=(
            endpoint_status("billing", pending=1, oldest_pending_seconds=0.2, processes=2, rate=5.1),
            endpoint_status("crm", pending=0, processes=2, rate=5.1),
            endpoint_status("warehouse", pending=0, processes=2, rate=5.1),
        ),
        rate=Rate(5.12, 60.0),
        processes=both("sweeperd-6d9f-1", "sweeperd-6d9f-2"),
    )
    us_hour = hour(
        lambda minute: max(0.0, ripple(minute, 5, 1.4)),
        lambda minute: ripple(minute, 5.5, 1.1),
        lambda _: 0,
        {
            "billing": lambda minute: max(0.0, ripple(minute, 2, 0.8)),
            "crm": lambda minute: max(0.0, ripple(minute, 1.5, 1.9)),
            "warehouse": lambda minute: max(0.0, ripple(minute, 1, 0.5)),
        },
    )
    return [(ShardView("eu", eu.address, eu, 0.8), eu_hour), (ShardView("us", us.address, us, 1.0), us_hour)]


def empty() -> Shards:
    """A Redis that holds nothing of sweeperd yet, and no daemon."""
    status = shard_status("default", "redis.internal:6379", now_ms=NOW_MS, empty=True, processes=Processes(()))
    return [(ShardView("default", status.address, status, 0.6), [])]


def full() -> Shards:
    """A Redis above `sweep.memory_limit`, so that nearly all expiries wait."""
    kind = kind_status(
        "reservations",
        last_walk(NOW_MS - 11_000_000),
        now=NOW_MS,
        due=Due(18_204, 0, 18_204, True, 702.0, 702.0),
        alive=231_480,
        deferred=18_104,
        rate=Rate(1.6, 60.0),
        tick=tick(expired=128_440, rate=1.6),
    )
    waits = {"billing": lambda minute: max(0.0, ripple(minute, 3, 1.3))}
    samples = hour(
        lambda minute: max(0.0, ripple(minute, 9)) + max(0.0, minute - 48) * 1500,
        lambda minute: ripple(minute, 24.0, 0.9) if minute < 48 else 1.6,
        lambda _: 0,
        waits,
    )
    return staged(kind, samples=samples, memory=MemoryUse(1_246_000_000, 1_073_741_824), deferred=kind.deferred)


def kinds_only() -> Shards:
    """An installation without reservations."""
    seats = kind_status(
        "seat-hold",
        last_walk(NOW_MS - 11_000_000),
        now=NOW_MS,
        due=Due(12, 8, 4, True, 31.0, 1.1),
        alive=4_310,
        rate=Rate(6.2, 60.0),
        tick=tick(expired=40_211, rate=6.2),
        protected=2,
    )
    locks = kind_status(
        "lock",
        last_walk(NOW_MS - 11_000_000),
        now=NOW_MS,
        due=Due(0, 0, 0, True, 0.0, 0.0),
        alive=97,
        rate=Rate(0.3, 60.0),
        tick=tick(expired=2_904, rate=0.3, age_ms=900),
    )
    one = hour(
        lambda minute: ripple(minute, 5),
        lambda minute: ripple(minute, 6.0, 0.9),
        lambda _: 0,
        {"billing": lambda minute: ripple(minute, 1)},
    )
    other = hour(lambda _: 0, lambda minute: ripple(minute, 0.3, 1.9), lambda _: 0, {})
    samples = [
        replace(each, kinds={"seat-hold": each.kinds["reservations"], "lock": second.kinds["reservations"]})
        for each, second in zip(one, other, strict=True)
        if each.kinds and second.kinds
    ]
    return staged(seats, locks, samples=samples, pending=0)


def trouble() -> Shards:
    """A night: a silent process, a backlog, a dead receiver, rows set aside, a lost entry."""
    kind = kind_status(
        "reservations",
        last_walk(NOW_MS - 11_000_000, lost=1),
        now=NOW_MS,
        due=Due(20_000, 0, 20_000, False, 644.0, 644.0),
        alive=31_480,
        quarantined=3,
        rate=Rate(410.0, 20.0),
        tick=tick(expired=128_440, rate=410.0),
    )
    (now, *_), old = (
        both("sweeperd-6d9f-1").known or (),
        ProcessNote(
            process="sweeperd-6d9f-2",
            at=NOW_MS - 142_000,
            sweeps=True,
            delivers=True,
            version="0.1.0",
            since=NOW_MS - 9_000_000,
        ),
    )
    samples = hour(
        lambda minute: max(0.0, ripple(minute, 9)) + max(0.0, minute - 52) * 2500,
        lambda minute: ripple(minute, 24.0, 0.9) if minute < 52 else 410,
        lambda minute: 0 if minute < 31 else 3,
        {"billing": lambda minute: max(0.0, minute - 38) * 84},
    )
    dead = endpoint_status(
        "billing",
        pending=1827,
        oldest_pending_seconds=1322,
        state="open",
        open_on=1,
        processes=1,
        failures=11,
        failure="connection refused",
        rate=0.0,
        dead_letters=10_000,
        dead_letters_counted=False,
        replicas=(replica("sweeperd-6d9f-1", probe_at=NOW_MS, failures=11, reason="connection refused"),),
    )
    silent = ProcessDocument.of(old.model_copy(update={"kinds": ("reservations",)}), NOW_MS, 12)
    reasons = (ReasonCount("reservations", "INVALID_STATE", 3, ("r-7f31", "r-2b90"), REASONS["INVALID_STATE"]),)
    return staged(
        kind,
        samples=samples,
        endpoints=(dead,),
        dead_letters=12_431,
        dead_letters_counted=False,
        processes=Processes((now, silent)),
        details=Details(reasons, {"billing": [attempted(ago, "sweeperd-6d9f-1") for ago in (41, 101)]}),
    )


def staged(*kinds: KindDocument, samples: Sequence[StatusSample], **parts: Any) -> Shards:
    """One shard with these kinds, an endpoint that does well, and two processes, except for these parts."""
    usual: dict[str, Any] = {
        "now_ms": NOW_MS,
        "endpoints": (
            endpoint_status(
                "billing", pending=parts.pop("pending", 2), oldest_pending_seconds=0.4, processes=2, rate=8.43
            ),
        ),
        "processes": both("sweeperd-6d9f-1", "sweeperd-6d9f-2", kinds=tuple(kind.kind for kind in kinds)),
        "memory": MemoryUse(412_000_000, 1_073_741_824),
    }
    status = ShardStatus("default", "redis.internal:6379", kinds=kinds, **usual | parts)
    return [(ShardView("default", status.address, status, 0.8), samples)]


#: What the pictures of the page show.
STATES: dict[str, Callable[[], Shards]] = {
    "empty": empty,
    "busy": busy,
    "full": full,
    "kinds": kinds_only,
    "trouble": trouble,
}
