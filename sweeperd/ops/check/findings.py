"""What a check reports: one line for each thing that was checked."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class CheckLevel(enum.StrEnum):
    """How good or bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class CheckFinding:
    """One line: what was checked, the result, and what an operator should do about a bad one."""

    level: CheckLevel
    #: `shard NAME` or `endpoint NAME`.
    where: str
    check: str
    says: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {
            "level": self.level.value,
            "where": self.where,
            "check": self.check,
            "says": self.says,
            "advice": self.advice,
        }


#: The result of one check: level, what it says, what to do.
CheckResult = tuple[CheckLevel, str, str]


def ok(says: str) -> CheckResult:
    """Nothing to do."""
    return CheckLevel.OK, says, ""


def warning(says: str, advice: str) -> CheckResult:
    """It works, but less well than it could."""
    return CheckLevel.WARNING, says, advice


def failure(says: str, advice: str) -> CheckResult:
    """sweeperd does not work, or does not keep its promises."""
    return CheckLevel.FAILURE, says, advice


def unknown(command: str) -> CheckResult:
    """The user has no right to run the command that would answer."""
    return warning(f"unknown: this user may not run {command}", f"run the check as a user who may run {command}")


def unknown_without(package: str, extra: str) -> CheckResult:
    """A package that is an extra, and that would answer, is missing."""
    return warning(f"unknown: it needs the {package} package", f"pip install '{extra}'")


def worst(findings: Sequence[CheckFinding]) -> CheckLevel:
    """The worst level of these findings."""
    levels = {finding.level for finding in findings}
    return next((level for level in (CheckLevel.FAILURE, CheckLevel.WARNING) if level in levels), CheckLevel.OK)
