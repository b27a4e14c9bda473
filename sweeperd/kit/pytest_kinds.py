"""Turns the kinds of `pytest --sweeperd-config FILE` into tests."""

import contextlib
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import Settings, load
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError, KindRefused
from sweeperd.kit.judge import Failure, Property
from sweeperd.kit.lab import Lab, NoEnd
from sweeperd.kit.properties import COMPILES, PROPERTIES, expires
from sweeperd.kit.prove import embedded
from sweeperd.kit.pytest_plugin import settings_file
from sweeperd.kit.samples import Sample, derived_samples, read_samples, sample_of, without_after
from sweeperd.kit.shrink import shrunk

#: The entries that a Hypothesis strategy generates for one property.
EXAMPLES = 10


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path == settings_file(parent.config):
        module: pytest.Collector = _KindModule.from_parent(parent, path=file_path)
        return module
    return None


class _KindModule(pytest.Module):
    """The settings file as a module with a test for each property of each kind."""

    def _getobj(self) -> types.ModuleType:
        try:
            settings = load(self.path, {}, secrets=False)
        except ConfigError as error:
            raise self.CollectError(str(error)) from None
        cases = [
            pytest.param(settings, kind, holds, id=f"{kind.name}: {name}")
            for kind in settings.kinds
            for name, holds in ((COMPILES, None), *PROPERTIES)
        ]
        if not cases:
            raise self.CollectError(f"{self.path} has no [[kinds]]")
        module = types.ModuleType("sweeperd_kinds")
        vars(module)["test_kind"] = pytest.mark.parametrize(("settings", "kind", "holds"), cases)(_proves)
        return module


def _proves(
    settings: Settings, kind: KindSettings, holds: Property | None, sweeperd_redis: Any, request: pytest.FixtureRequest
) -> None:
    lab = Lab(sweeperd_redis, settings, kind, books=_optional(request, "books"))
    if holds is None:
        try:
            lab.kind.check(sweeperd_redis)
        except KindRefused as error:
            pytest.fail(str(error), pytrace=False)
        return
    entries = _optional(request, "entry")
    try:
        if hasattr(entries, "example"):  # a strategy
            _holds_for_all(lab, holds, entries)
        else:
            samples = _samples(request, kind, entries)
            _warn(samples, holds)
            for sample in samples:
                if failure := holds(lab, sample):
                    pytest.fail("\n".join(shrunk(lab, holds, sample, failure).report), pytrace=False)
    except NoEnd as error:
        pytest.fail(f"the script does not end: {error}", pytrace=False)


def _samples(request: pytest.FixtureRequest, kind: KindSettings, entries: Any) -> Sequence[Sample]:
    try:
        if entries is not None:
            rows = [entries] if isinstance(entries, dict) else entries
            return [sample_of(row, kind) for row in rows]
        for named in request.config.getoption("--sweeperd-samples"):
            name, _, file = named.partition("=")
            if name == kind.name:
                return read_samples(request.config.invocation_params.dir / file, kind)
        return derived_samples(kind)
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        advice = "; or with the fixture `entry`" if isinstance(error, ConfigError) else ""
        pytest.fail(f"{error}{advice}".replace("--samples FILE", "--sweeperd-samples KIND=FILE"), pytrace=False)


def _warn(samples: Sequence[Sample], holds: Property) -> None:
    if holds is expires and (warning := without_after(samples)):  # once per kind
        warnings.warn(pytest.PytestWarning(warning), stacklevel=1)


def _holds_for_all(lab: Lab, holds: Property, strategy: Any) -> None:
    """Report the smallest entry that Hypothesis finds to break the property."""
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415 - optional

    last: list[tuple[dict[str, Any], Failure]] = []
    unstated: list[Sample] = []

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def drawn(row: dict[str, Any]) -> None:
        sample = sample_of(row, lab.settings)
        if sample.after is None:
            unstated[:] = [sample]
        if failure := holds(lab, sample):
            last[:] = [(row, failure)]
            raise AssertionError

    try:
        drawn()
        _warn(unstated, holds)
    except AssertionError:
        ((row, failure),) = last  # the smallest entry
        pytest.fail(f"input: {failure.sample}\n{failure.problem}\nentry: {row!r}", pytrace=False)


def _optional(request: pytest.FixtureRequest, name: str) -> Any:
    """The value of the user's fixture, or None."""
    with contextlib.suppress(pytest.FixtureLookupError):
        return request.getfixturevalue(name)
    return None


@pytest.fixture(scope="session")
def sweeperd_redis() -> Iterator["redis.Redis"]:
    """A client of a temporary Redis, which each case empties."""
    try:
        with embedded() as client:
            yield client
    except ConfigError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def kind_name(request: pytest.FixtureRequest) -> str:
    """The name of the kind that is being proved."""
    kind: KindSettings = request.getfixturevalue("kind")
    return kind.name
