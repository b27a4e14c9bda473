"""Defines what every check is given and returns."""

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import redis
from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import Argument, CommandDocument, Document
from sweeperd.ops.acl import Role
from sweeperd.store.errors import REFUSED
from sweeperd.store.shard import Shard
from sweeperd.sweep.preview import PreviewDocument


class CheckLevel(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class CheckFinding(Document):
    """The result of one check, and what to do if it is bad."""

    level: CheckLevel
    where: str = Field(description="configuration, a shard or an endpoint.")
    check: str
    says: Argument
    advice: str = Field(description="What to do; empty if there is nothing to do.")

    @classmethod
    def of(cls, where: str, check: str, result: "CheckResult") -> Self:
        """`where`: `configuration`, `shard NAME` or `endpoint NAME`."""
        level, says, advice = result
        return cls(level=level, where=where, check=check, says=says, advice=advice)


class CheckDocument(CommandDocument, title="sweeperd check --json"):
    result: CheckLevel = Field(description="The worst level.")
    checks: list[CheckFinding]
    samples: list[PreviewDocument] = Field(
        default=[], description="What a sweep would do with a sample of each kind; only with --sample."
    )


#: The result of one check: level, text, advice.
CheckResult = tuple[CheckLevel, str, str]


def ok(says: str) -> CheckResult:
    return CheckLevel.OK, says, ""


def warning(says: str, advice: str) -> CheckResult:
    """Something could be better, but sweeperd works."""
    return CheckLevel.WARNING, says, advice


def failure(says: str, advice: str) -> CheckResult:
    """sweeperd does not work, or breaks a promise."""
    return CheckLevel.FAILURE, says, advice


class NotAllowed(Exception):
    """The user may not run the command that the check needs, or a managed service has renamed it."""

    def __init__(self, command: str, level: CheckLevel = CheckLevel.WARNING) -> None:
        super().__init__(f"this user may not run {command}")
        self.result: CheckResult = level, f"unknown: {self}", f"run the check as a user who may run {command}"


def worst(findings: Sequence[CheckFinding]) -> CheckLevel:
    levels = {finding.level for finding in findings}
    return next((level for level in (CheckLevel.FAILURE, CheckLevel.WARNING) if level in levels), CheckLevel.OK)


@dataclass
class CheckedShard:
    """One shard, and the INFO of its server, which is read once."""

    shard: Shard
    settings: Settings
    daemon_role: Role = "all"

    @functools.cached_property
    def info(self) -> Mapping[str, Any]:
        try:
            return cast(Mapping[str, Any], self.shard.client.info())
        except (redis.ResponseError, *REFUSED) as error:
            raise NotAllowed("INFO") from error

    def config(self, name: str) -> str | None:
        """A setting of the server; None if this user may not read it, or if the server does not know it."""
        try:
            value = self.shard.client.config_get(name).get(name)
        except (redis.ResponseError, *REFUSED):
            return None  # managed services rename CONFIG
        return value.decode() if isinstance(value, bytes) else value
