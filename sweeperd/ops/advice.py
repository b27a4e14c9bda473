"""Names the commands and the runbook section that help with a finding."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sweeperd.ops.endpoint_health import HealthLevel, judge_endpoint, most_troubled
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.health import ALMOST_FULL, DETAILS, OVERDUE_BAD
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.status import WARNING, ShardStatus, WalkDocument
from sweeperd.sweep.reservations import kind_option
from sweeperd.text import span

#: An event that waits longer is late, seconds; the same as in the alert SweeperdDeliveriesStuck.
LATE = 900.0
#: For how many drifted budgets a command is offered.
BUDGETS = 3
#: The longest command that is offered, characters.
LONGEST = 200
#: Duty of a process -> its role, and the section of the runbook for the case that no process has this duty.
_DUTIES = {"sweeps": ("sweep", "sweeperdnobodysweeps"), "delivers": ("deliver", "sweeperdnobodydelivers")}


@dataclass(frozen=True, slots=True)
class Advice:
    """What an operator can do. `runbook`: the anchor of a section in docs/runbook.md, or empty."""

    text: str = ""
    commands: tuple[str, ...] = ()
    runbook: str = ""


def shard_advice(status: ShardStatus, options: Sequence[str] = ()) -> Iterator[Advice]:
    """Advice about a shard that answers. `options` are added to each command."""
    if status.empty:
        yield Advice(WARNING.format(status.address), (command_line("check", *options),))
    for duty in status.processes.missing:
        role, section = _DUTIES[duty]
        yield Advice(f"no process {duty}: start a daemon with the role {role} or all", (), section)
    yield from _memory_advice(status, options)
    for process in status.processes.silent:
        age = span(process.heartbeat_age_seconds)
        text = f"process {process.process} has been silent for {age}: it died or hangs, or Redis refuses its writes"
        yield Advice(text, (command_line("check", *options),), "sweeperdprocesssilent")
    if status.unwalked and not status.empty:
        text = f"no walk has run yet over {', '.join(status.unwalked)}"
        commands = tuple(command_line("reconcile", *kind_option(name), *options) for name in status.unwalked)
        yield Advice(text, commands, "sweeperdreconcileneverended")
    for kind in status.kinds:
        if kind.held:
            entries = "entry is" if kind.held == 1 else "entries are"
            text = f"{kind.held} {entries} held, because no entry of {kind.kind} was seen alive: {kind.held_because}"
            commands = (command_line("check", *options), command_line("kinds", "accept", kind.kind, *options))
            yield Advice(text, commands, "sweeperdentriesheld")
        if kind.oldest_overdue_seconds > OVERDUE_BAD and not kind.deferred:
            about = "" if kind.exact else "about "
            text = f"{kind.kind}: {about}{kind.overdue:,} overdue, the oldest for {span(kind.oldest_overdue_seconds)}"
            yield Advice(text, (command_line("check", *options),), "sweeperdfallingbehind")
        if kind.last_walk:
            option = kind_option(kind.kind)
            name = f"the last walk over {kind.kind}" if option else "the last walk"
            yield from _walk_advice(status, kind.last_walk, name, (*option, *options))


def set_aside_advice(status: ShardStatus, options: Sequence[str] = ()) -> Iterator[Advice]:
    """Advice about quarantine, endpoints and dead letters, which the status page shows beside each of them."""
    for kind in status.kinds:
        if kind.quarantined:
            command = command_line("quarantine", "list", *kind_option(kind.kind), *options)
            yield Advice(f"{kind.kind}: {kind.quarantined:,} in quarantine", (command,), "sweeperdquarantinegrowing")
    judged = [(endpoint, judge_endpoint(endpoint)) for endpoint in most_troubled(status.endpoints)]
    bad = [(endpoint, found[1]) for endpoint, found in judged if found and found[0] is HealthLevel.BAD]
    for endpoint, text in bad[:DETAILS]:
        yield replace(endpoint_advice(endpoint, options), text=text)
    if len(bad) > DETAILS:
        yield Advice(f"and {len(bad) - DETAILS} more endpoints", (command_line("endpoints", "list", *options),))
    if status.dead_letters:
        commands = (command_line("dead-letters", "list", *options),)
        yield Advice(f"dead letters: {status.dead_letters:,}", commands, "sweeperddeadletters")


def _memory_advice(status: ShardStatus, options: Sequence[str]) -> Iterator[Advice]:
    percent, commands = status.memory_percent, (command_line("check", *options),)
    if status.deferred:
        text = (
            f"{status.deferred:,} expiries wait, because Redis uses {percent} % of its maxmemory: give it memory first"
        )
        yield Advice(text, commands, "sweeperdexpiriesdeferred")
    elif percent is not None and percent >= ALMOST_FULL:
        effect = "and refuses new reservations" if percent >= 100 else "and refuses new reservations at 100 %"
        yield Advice(f"Redis uses {percent} % of its maxmemory, {effect}", commands, "sweeperdredisalmostfull")


def _walk_advice(status: ShardStatus, walk: WalkDocument, name: str, options: Sequence[str]) -> Iterator[Advice]:
    found = walk.found | {"expired by another sweeper": walk.foreign_expiries}
    counts = ", ".join(f"{count} {fault}" for fault, count in found.items() if count)
    if not counts:
        return
    age = span(max(0, status.now_ms - walk.finished_at) / 1000)
    commands = *_mending(walk, options), command_line("reconcile", "--last", *options)
    yield Advice(f"{name}, {age} ago, found {counts}", commands, "sweeperdreconcilefindings")


def _mending(walk: WalkDocument, options: Sequence[str]) -> Iterator[str]:
    if any(Fault(fault).mendable for fault, count in walk.found.items() if count):
        yield command_line("reconcile", "--repair", *options)
    for budget in walk.drifted[:BUDGETS]:
        yield command_line("reconcile", "--repair-budget", budget, *options)
    if walk.found.get(Fault.FOREIGN_QUARANTINE):
        yield command_line("quarantine", "adopt", "--all", *options)


def endpoint_advice(endpoint: EndpointDocument, options: Sequence[str] = ()) -> Advice:
    name = endpoint.endpoint
    letters = [command_line("dead-letters", verb, "--endpoint", name, *options) for verb in ("list", "replay")]
    if endpoint.state == "group":
        return Advice(runbook="sweeperdgroupfallsbehind")
    if not endpoint.configured:
        return Advice(commands=(letters[0],), runbook="sweeperddeadletters")
    if endpoint.stalled and endpoint.state != "paused":
        return Advice(commands=(command_line("check", *options),), runbook="sweeperdendpointstalled")
    if endpoint.state == "paused":
        verbs, section = ["test", "resume"], "sweeperdendpointpaused"
    elif endpoint.state == "open":
        verbs, section = ["attempts", "test", "resume"], "sweeperdcircuitopen"
    elif endpoint.falling_behind:
        verbs, section = ["attempts", "test"], "sweeperddeliveriesrunningout"
    elif endpoint.oldest_pending_seconds > LATE:
        verbs, section = ["attempts", "test"], "sweeperddeliveriesstuck"
    elif endpoint.pending is None:
        verbs, section = [], "sweeperdgrouplost"
    else:
        verbs, section = ["attempts"], "sweeperddeadletters" if endpoint.dead_letters else ""
    commands = [command_line("endpoints", verb, name, *options) for verb in verbs]
    return Advice(commands=(*commands, *(letters if endpoint.dead_letters else ())), runbook=section)


def reason_advice(reason: ReasonCount, options: Sequence[str] = ()) -> Advice:
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
    """A command of sweeperd for a shell; empty if it cannot be copied from where it is shown."""
    line = shlex.join(["sweeperd", *words])
    return line if line.isprintable() and len(line) <= LONGEST else ""
