"""What an operator may do about a finding: a sentence, the commands to copy, and the section of the runbook."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeperd.ops.details import ReasonCount
from sweeperd.ops.endpoint_status import EndpointStatus
from sweeperd.ops.last_walk import WalkEnd
from sweeperd.ops.presence import WARNING
from sweeperd.ops.status import ShardStatus
from sweeperd.sweep.kind import RESERVATIONS
from sweeperd.text import span

#: An event that waits for longer is late, seconds: the alert SweeperdDeliveriesStuck has the same limit.
LATE = 900.0
#: The longest command that is offered, characters.
LONGEST = 200
#: What a process does -> its role, and the section of the runbook where no process does it.
_DUTIES = {"sweeps": ("sweep", "sweeperdnobodysweeps"), "delivers": ("deliver", "sweeperdnobodydelivers")}


@dataclass(frozen=True, slots=True)
class Advice:
    """`runbook`: the anchor of a section in docs/runbook.md; empty where none is about it."""

    text: str = ""
    commands: tuple[str, ...] = ()
    runbook: str = ""


def shard_advice(status: ShardStatus, options: Sequence[str] = ()) -> Iterator[Advice]:
    """What is worth a line about a shard that answers. `options` are added to each command."""
    if status.empty:
        yield Advice(f"{status.address}: {WARNING}", (_command("check", *options),))
    for duty in status.processes.missing:
        role, section = _DUTIES[duty]
        yield Advice(f"no process {duty}: start a daemon with the role {role} or all", (), section)
    walk = status.last_walk
    if walk and (walk.total or walk.foreign_expiries):
        foreign = {"expired by another sweeper": walk.foreign_expiries} if walk.foreign_expiries else {}
        yield _walk_advice(status, walk, "the last walk", foreign, options)
    for kind in status.kinds:
        if kind.last_walk and kind.last_walk.total:
            over = f"the last walk over {kind.name}"
            yield _walk_advice(status, kind.last_walk, over, {}, ("--kind", kind.name, *options))


def _walk_advice(
    status: ShardStatus, walk: WalkEnd, name: str, more: Mapping[str, int], options: Sequence[str]
) -> Advice:
    """What a walk has found, and `more`."""
    found = {**{fault.value: count for fault, count in walk.found.items() if count}, **more}
    counts = ", ".join(f"{count} {kind}" for kind, count in found.items())
    age = span(max(0, status.now_ms - walk.finished_at) / 1000)
    commands = (_command("reconcile", "--last", *options), _command("reconcile", "--repair", *options))
    return Advice(f"{name}, {age} ago, found {counts}", commands, "sweeperdreconcilefindings")


def endpoint_advice(endpoint: EndpointStatus, options: Sequence[str] = ()) -> Advice:
    """What may be done about an endpoint, by its state."""
    name = endpoint.name
    letters = _command("dead-letters", "list", "--endpoint", name, *options)
    replay = _command("dead-letters", "replay", "--endpoint", name, *options)
    if not endpoint.configured:
        return Advice(commands=(letters,), runbook="sweeperddeadletters")
    ending = (letters, replay) if endpoint.dead_letters else ()
    test, resume = _command("endpoints", "test", name, *options), _command("endpoints", "resume", name, *options)
    attempts = _command("endpoints", "attempts", name, *options)
    if endpoint.state == "paused":
        return Advice(commands=(test, resume, *ending), runbook="sweeperdendpointpaused")
    if endpoint.state == "failing":
        return Advice(commands=(attempts, test, resume, *ending), runbook="sweeperdcircuitopen")
    if endpoint.oldest_pending_seconds > LATE:
        return Advice(commands=(attempts, test, *ending), runbook="sweeperddeliveriesstuck")
    if endpoint.pending is None:
        return Advice(commands=ending, runbook="sweeperdgrouplost")
    return Advice(commands=(attempts, *ending), runbook="sweeperddeadletters" if ending else "")


def reason_advice(reason: ReasonCount, options: Sequence[str] = ()) -> Advice:
    """What may be done about quarantined entries with one reason."""
    kind = () if reason.kind == RESERVATIONS else ("--kind", reason.kind)
    newest = reason.newest[0]
    by_reason = ("--reason", reason.reason) if reason.reason else ()
    commands = (
        _command("quarantine", "list", *kind, *by_reason, *options),
        _command("show", *kind, *options, *(["--"] if newest.startswith("-") else []), newest),
        *([_command("quarantine", "requeue", *kind, *by_reason, *options)] if by_reason else []),
    )
    return Advice(commands=commands, runbook="sweeperdquarantinegrowing")


def _command(*words: str) -> str:
    """The command for a shell. It is empty where a word cannot be shown as it is, and so cannot be copied."""
    line = shlex.join(["sweeperd", *words])
    return line if line.isprintable() and len(line) <= LONGEST else ""
