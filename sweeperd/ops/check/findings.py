"""The findings of checks, a line each, and the shard that is checked."""

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import redis
from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import Argument, CommandDocument, Document
from sweeperd.ops.acl import Role
from sweeperd.store.errors import REFUSED
from sweeperd.store.shard import Shard


class CheckLevel(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class CheckFinding(Document):
    """The name of a check, the result, and what an operator should do if the result is bad."""

    level: CheckLevel
    where: str = Field(description="configuration, a shard or an endpoint.")
    check: str
    says: Argument
    advice: str = Field(description="What to do; empty if the level is ok.")

    @classmethod
    def of(cls, where: str, check: str, result: "CheckResult") -> Self:
        """`where`: `configuration`, `shard NAME` or `endpoint NAME`."""
        level, says, advice = result
        return cls(level=level, where=where, check=check, says=says, advice=advice)


class CheckDocument(CommandDocument, title="sweeperd check --json"):
    result: CheckLevel = Field(description="The worst level.")
    checks: list[CheckFinding]


#: The result of one check: level, text, advice.
CheckResult = tuple[CheckLevel, str, str]


def ok(says: str) -> CheckResult:
    return CheckLevel.OK, says, ""


def warning(says: str, advice: str) -> CheckResult:
    """sweeperd works, but not as well as possible."""
    return CheckLevel.WARNING, says, advice


def failure(says: str, advice: str) -> CheckResult:
    """sweeperd does not work, or does not keep a promise."""
    return CheckLevel.FAILURE, says, advice


def unknown(command: str) -> CheckResult:
    """The user has no right to run the command that the check needs."""
    return warning(f"unknown: this user may not run {command}", f"run the check as a user who may run {command}")


def worst(findings: Sequence[CheckFinding]) -> CheckLevel:
    levels = {finding.level for finding in findings}
    return next((level for level in (CheckLevel.FAILURE, CheckLevel.WARNING) if level in levels), CheckLevel.OK)


@dataclass
class Subject:
    """One shard, and INFO of its server, read once."""

    shard: Shard
    settings: Settings
    daemon_role: Role = "all"

    @functools.cached_property
    def info(self) -> Mapping[str, Any] | None:
        """INFO; None if the user may not run the command."""
        info: Mapping[str, Any] | None = self._allowed(self.shard.client.info)
        return info

    def config(self, name: str) -> str | None:
        """A setting of the server; None if the user may not read settings, or if the server has no such setting."""
        values = self._allowed(lambda: self.shard.client.config_get(name))
        value = (values or {}).get(name)
        return value.decode() if isinstance(value, bytes) else value

    @staticmethod
    def _allowed(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (redis.ResponseError, *REFUSED):
            return None  # refused, or renamed: managed services rename CONFIG
