"""Judges one run of a kind's script, for the properties."""

from collections.abc import Iterable
from typing import Any

from sweeperd.kit.failure import Failure
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import DEADLINE, Sample
from sweeperd.sweep.kind import Decision, Outcome


def attempt(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Load the sample, run, and judge. `errors`: an error is right as long as nothing has changed."""
    lab.load(sample)
    return judge(lab, sample, about, errors=errors, **run)


def judge(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Run with what is loaded, and judge: nothing in part, the books hold, and a second run changes nothing."""
    before = lab.world(sample)
    result = lab.run(sample.id.encode(), **run)
    problem = lab.problem(sample, result, before)
    if errors and problem.startswith("an error:"):
        return None
    if not problem and isinstance(result, Decision) and result.outcome is Outcome.EXPIRED:
        problem = _again(lab, sample)
    return Failure(about, problem) if problem else None


def _again(lab: Lab, sample: Sample) -> str:
    """What a second run of an expired entry changes, with its index entry back in place."""
    before = lab.world(sample)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    result = lab.run(sample.id.encode())
    changed = lab.world(sample).changed_since(before)
    if isinstance(result, Decision) and result.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND) and not changed:
        return ""
    names = ", ".join(sorted(key.decode(errors="backslashreplace") for key in changed))
    return f"a second run changed {names}: {result if isinstance(result, Exception) else result.outcome}"


def first(failures: Iterable[Failure | None]) -> Failure | None:
    """The first failure, if there is one; what comes after it is not tried."""
    return next(filter(None, failures), None)


def short(value: str | None) -> str:
    """A value as it is shown in a report."""
    return "nothing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")
