"""Runs a kind's script once and judges the run, for the properties."""

from collections.abc import Iterable
from typing import Any

from sweeperd.kit.failure import Failure
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import DEADLINE, Sample
from sweeperd.kit.verdicts import is_error, names, problem
from sweeperd.sweep.kind import Decision, Outcome


def attempt(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Load the sample, run, and judge. `errors`: an error is right as long as nothing has changed."""
    lab.load(sample)
    return judge(lab, sample, about, errors=errors, **run)


def judge(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Run with what is loaded, and judge: nothing in part, the books hold, and a second run changes nothing."""
    before = lab.world(sample)
    result = lab.run(sample.id.encode(), **run)
    found = problem(lab, sample, result, before)
    if errors and is_error(found):
        return None
    if not found and isinstance(result, Decision) and result.outcome is Outcome.EXPIRED:
        found = _again(lab, sample)
    return Failure(about, found) if found else None


def outcome_is(lab: Lab, sample: Sample, about: str, *outcomes: Outcome, **run: Any) -> Failure | None:
    """Run with what is loaded, and judge: one of these outcomes, and nothing else than what belongs to it."""
    before = lab.world(sample)
    result = lab.run(sample.id.encode(), **run)
    found = problem(lab, sample, result, before)
    if not found and isinstance(result, Decision) and result.outcome not in outcomes:
        wanted = " or ".join(outcomes) if len(outcomes) < 3 else "any other outcome"
        found = f"{result.outcome} in place of {wanted}: {result.detail} {result.why}".rstrip(": ")
    return Failure(about, found) if found else None


def _again(lab: Lab, sample: Sample) -> str:
    """What a second run of an expired entry changes, with its index entry back in place."""
    before = lab.world(sample)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    result = lab.run(sample.id.encode())
    after = lab.world(sample)
    changed = after.changed_since(before)
    ended = isinstance(result, Decision) and result.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND)
    if ended and not changed and after.messages == before.messages:
        return ""
    return f"a second run changed {names(changed)}: {result if isinstance(result, Exception) else result.outcome}"


def first(failures: Iterable[Failure | None]) -> Failure | None:
    """The first failure, if there is one; what comes after it is not tried."""
    return next(filter(None, failures), None)


def short(value: str | None) -> str:
    """A value as it is shown in a report."""
    return "nothing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")
