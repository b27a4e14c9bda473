"""Gives a row what it measures with: a fresh Redis, reservations as the ledger writes them, the installed command."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import raw
from benchmarks.fill import SCOPES, check_books, fill
from benchmarks.process import run
from sweeperd.store.embedded import Binary, Server
from tests.support.harness import command, environment

#: So many entries have expired on a server before anything is measured on it, and where their numbers begin.
WARM, WARM_FIRST = 1000, 10**9


@dataclass(frozen=True)
class Once:
    """A `sweeperd --once` that has ended well."""

    candidates: int
    delivered: int
    #: By its own report: without the start of the interpreter.
    duration_seconds: float
    #: From the start of the process to its end.
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def entries_per_second(self) -> float:
        """How many entries it decided a second."""
        return self.candidates / self.duration_seconds


@dataclass
class Lab:
    """
    One round's means. `binary`: the Redis to measure on; `quick`: everything small, to try it out; `directory`: for
    logs, thrown away afterwards.
    """

    binary: Binary
    directory: Path
    quick: bool = False
    #: What was measured with how many; goes into the results.
    sizes: dict[str, int] = field(default_factory=dict)

    def size(self, name: str, full: int, quick: int) -> int:
        """How many of these to take in this run."""
        self.sizes[name] = quick if self.quick else full
        return self.sizes[name]

    @contextlib.contextmanager
    def server(self, options: Sequence[str] = (), scopes: Sequence[str] = SCOPES) -> Iterator[Server]:
        """A fresh server that is warm: it knows the script, and has expired WARM entries."""
        with Server(self.binary, options) as server:
            fill(server.url, WARM, scopes=scopes, first=WARM_FIRST)
            raw.sweep(server.url, WARM, length=25, ahead=2, first=WARM_FIRST)
            yield server

    @contextlib.contextmanager
    def overdue(self, entries: int, scopes: Sequence[str] = SCOPES) -> Iterator[Server]:
        """The same with this many overdue entries, which the block must expire: the books are checked at its end."""
        with self.server(scopes=scopes) as server:
            fill(server.url, entries, scopes=scopes)
            yield server
            check_books(server.url, WARM + entries, scopes)

    def once(self, server: Server, **settings: object) -> Once:
        """Run the installed `sweeperd --once` to its end, with settings as `harness.environment` takes them."""
        ended = run(command("--once", "--json", "--log-level", "info"), environment(server.url, **settings))
        report = json.loads(ended.output)
        return Once(
            report["candidates"],
            report["delivered"],
            report["duration_seconds"],
            ended.seconds,
            ended.cpu_seconds,
            ended.peak_mib,
        )
