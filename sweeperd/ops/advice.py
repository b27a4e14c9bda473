"""Names the commands and the runbook section that help with a finding."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.quarantine import ReasonCount
from sweeperd.ops.status import WARNING, ShardStatus, WalkDocument
from sweeperd.sweep.reservations import kind_option
from sweeperd.text import span

#: If an event waits longer, seconds, the event is late. The alert SweeperdDeliveriesStuck has this limit too.
LATE = 900.0
#: The longest command that is offered, characters.
LONGEST = 200
#: Work of a process -> the role, and the section of the runbook if no process does this work.
_DUTIES = {"sweeps": ("sweep", "sweeperdnobodysweeps"), "delivers": ("deliver", "sweeperdnobodydelivers")}


@dataclass(frozen=True, slots=True)
class Advice:
    """What an operator may do. `runbook`: the anchor of a section in docs/runbook.md; empty if there is no section."""

    text: str = ""
    commands: tuple[str, ...] = ()
    runbook: str = ""


def shard_advice(status: ShardStatus, options: Sequence[str] = ()) -> Iterator[Advice]:
    """About a shard that answers. `options` are added to each command."""
    if status.empty:
        yield Advice(f"{status.address}: {WARNING}", (command_line("check", *options),))
    for duty in status.processes.missing:
        role, section = _DUTIES[duty]
        yield Advice(f"no process {duty}: start a daemon with the role {role} or all", (), section)
    if status.last_walk:
        yield from _walk_advice(status, status.last_walk, "the last walk", options)
    for kind in status.kinds:
        if kind.held:
            entries = "entry is" if kind.held == 1 else "entries are"
            text = f"{kind.held} {entries} held, because no entry of {kind.kind} was seen alive: {kind.held_because}"
            commands = (command_line("check", *options), command_line("kinds", "accept", kind.kind, *options))
            yield Advice(text, commands, "sweeperdentriesheld")
        if kind.last_walk:
            over = f"the last walk over {kind.kind}"
            yield from _walk_advice(status, kind.last_walk, over, ("--kind", kind.kind, *options))


def _walk_advice(status: ShardStatus, walk: WalkDocument, name: str, options: Sequence[str]) -> Iterator[Advice]:
    found = walk.found | {"expired by another sweeper": walk.foreign_expiries}
    counts = ", ".join(f"{count} {fault}" for fault, count in found.items() if count)
    if not counts:
        return
    age = span(max(0, status.now_ms - walk.finished_at) / 1000)
    commands = (command_line("reconcile", "--last", *options), command_line("reconcile", "--repair", *options))
    yield Advice(f"{name}, {age} ago, found {counts}", commands, "sweeperdreconcilefindings")


def endpoint_advice(endpoint: EndpointDocument, options: Sequence[str] = ()) -> Advice:
    """About an endpoint, by state."""
    name = endpoint.endpoint
    letters = command_line("dead-letters", "list", "--endpoint", name, *options)
    replay = command_line("dead-letters", "replay", "--endpoint", name, *options)
    if endpoint.state == "group":
        return Advice(runbook="sweeperdgroupfallsbehind")
    if not endpoint.configured:
        return Advice(commands=(letters,), runbook="sweeperddeadletters")
    ending = (letters, replay) if endpoint.dead_letters else ()
    test, resume = (
        command_line("endpoints", "test", name, *options),
        command_line("endpoints", "resume", name, *options),
    )
    attempts = command_line("endpoints", "attempts", name, *options)
    if endpoint.state == "paused":
        return Advice(commands=(test, resume, *ending), runbook="sweeperdendpointpaused")
    if endpoint.state == "open":
        return Advice(commands=(attempts, test, resume, *ending), runbook="sweeperdcircuitopen")
    if endpoint.falling_behind:
        return Advice(commands=(attempts, test, *ending), runbook="sweeperddeliveriesrunningout")
    if endpoint.oldest_pending_seconds > LATE:
        return Advice(commands=(attempts, test, *ending), runbook="sweeperddeliveriesstuck")
    if endpoint.pending is None:
        return Advice(commands=ending, runbook="sweeperdgrouplost")
    return Advice(commands=(attempts, *ending), runbook="sweeperddeadletters" if ending else "")


def reason_advice(reason: ReasonCount, options: Sequence[str] = ()) -> Advice:
    """About quarantined entries with one reason."""
    kind = kind_option(reason.kind)
    newest = reason.newest[0]
    by_reason = ("--reason", reason.reason) if reason.reason else ()
    commands = (
        command_line("quarantine", "list", *kind, *by_reason, *options),
        command_line("show", *kind, *options, *(["--"] if newest.startswith("-") else []), newest),
        *([command_line("quarantine", "requeue", *kind, *by_reason, *options)] if by_reason else []),
    )
    return Advice(reason.meaning, commands, "sweeperdquarantinegrowing")


def command_line(*words: str) -> str:
    """A command of sweeperd for a shell; empty if a word cannot be shown unchanged, and so cannot be copied."""
    line = shlex.join(["sweeperd", *words])
    return line if line.isprintable() and len(line) <= LONGEST else ""
