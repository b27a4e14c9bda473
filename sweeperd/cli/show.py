"""`sweeperd show`."""

import contextlib
from collections.abc import Iterator, Sequence

import click

from sweeperd.cli.endpoints import attempt_text
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import Cell, Output, printable, shortened, timestamp
from sweeperd.cli.shards import Run, check_name, on_shards
from sweeperd.config import Settings
from sweeperd.ops.show import EventDelivery, Fate, Inspection, InspectionDocument, ShowDocument, inspect
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.sweep.kind import Outcome
from sweeperd.sweep.reservations import REASONS
from sweeperd.text import candidates, decode, rfc3339, span

DetailRow = tuple[str, object, object]

_FATES = {Fate.PENDING: "yellow", Fate.NOT_TAKEN: "yellow", Fate.DEAD_LETTER: "red", Fate.ACKNOWLEDGED: "green"}
_WHY = {
    Outcome.IN_GRACE: "the deadline has passed, its grace has not: a late commit is still accepted",
    Outcome.NOT_DUE: "its deadline is yet to come; the index would be set to it",
}


@click.command("show")
@click.argument("entry", metavar="ID")
@click.option("--kind", metavar="NAME", help="The kind of the entry, if two kinds have an entry of this id.")
@on_shards()
def command(run: Run, entry: str, kind: str | None) -> None:
    r"""
    Everything about a reservation, or an entry of a configured kind: the hash, the places in index and quarantine, the
    budgets of a reservation's scopes, the event and its deliveries, and what a sweep would decide now and why. Nothing
    is changed.

    ID is the bare id, raw or as in logs and tables (\xff). Exit code 1 if no shard knows the id.
    """
    names = kind_names(run.settings)
    if kind is not None:
        check_name("kind", kind, names)
        names = [kind]
    seen = run.each(lambda shard: list(_inspect(run.settings, shard, names, entry)))
    found = [(shard, inspection) for shard, inspections in seen for inspection in inspections]
    if len(kinds := {inspection.kind.name for _, inspection in found}) > 1:
        fail(f"it is an id of {' and '.join(sorted(kinds))}: name one with --kind", Exit.USAGE)
    if run.output.as_json and found:
        documents = [InspectionDocument.of(shard, inspection, _why(inspection)) for shard, inspection in found]
        run.report(ShowDocument(shards=documents, down=run.down))
    elif found:
        _show(run.output, found)
    if not found and not run.down:
        run.output.name_address()
        thing = " or ".join(kinds_of(run.settings, run.shards[0])[name].words.entry for name in names) or "kind"
        fail(f"there is no {thing} {shortened(printable(entry))}", Exit.FAILED)


def _inspect(settings: Settings, shard: Shard, names: Sequence[str], text: str) -> Iterator[Inspection]:
    """The first entry of each of these kinds with this id."""
    for name in names:
        kind = kinds_of(settings, shard)[name]
        inspections = (inspect(settings, shard, kind, entry) for entry in candidates(text))
        if inspection := next(filter(None, inspections), None):
            yield inspection


def _show(output: Output, found: list[tuple[Shard, Inspection]]) -> None:
    rows = [row for shard, inspection in found for row in _rows(shard, inspection)]
    if not output.terminal:
        output.table(("section", "name", "value"), rows)
        return
    sections: dict[str, list[DetailRow]] = {}
    for row in rows:
        sections.setdefault(row[0], []).append(row)
    for section, of_section in sections.items():
        output.table((section, ""), [row[1:] for row in of_section])
        output.say("")


def _rows(shard: Shard, inspection: Inspection) -> Iterator[DetailRow]:
    about = f"{inspection.kind.words.entry} on {shard.name}"
    yield about, "id", decode(inspection.id)
    yield about, "key", decode(inspection.key)
    if inspection.type != "hash":
        yield about, "type", Cell(inspection.type, "red")
    for name, value in inspection.fields.items():
        yield about, decode(name), _value(name, value)
    if inspection.ttl_ms is not None:
        yield about, "(goes away in)", span(inspection.ttl_ms / 1000)
    yield about, "(in the index)", "no" if inspection.score is None else _time(inspection.score)
    if inspection.quarantined_at is not None:
        yield about, "(in quarantine since)", Cell(_time(inspection.quarantined_at), "red")
    for scope, budget in inspection.budgets.items():
        yield f"budgets on {shard.name}", decode(scope), _budget(budget)
    yield from _event(f"event on {shard.name}", inspection)
    decision, sweep = inspection.explanation.decision, f"a sweep of {shard.name} now"
    yield sweep, "would answer", Cell(decision.outcome.value, "bold")
    yield sweep, "because", _why(inspection)
    if inspection.score is None:
        yield sweep, "but", "it is not in the index, so none comes to it"
    for write in inspection.explanation.writes:
        yield sweep, "would write", " ".join(map(decode, write))


def _event(section: str, inspection: Inspection) -> Iterator[DetailRow]:
    if inspection.event is None:
        if b"expired_at" in inspection.fields:
            yield section, "(none)", "not in the stream, or not any more"
        return
    yield section, "webhook-id", inspection.event.webhook_id
    yield section, "stream id", decode(inspection.event.id)
    for name, value in inspection.event.fields.items():
        yield section, decode(name), _value(name, value)
    for delivery in inspection.event.deliveries:
        yield (
            section.replace("event", "deliveries"),
            delivery.endpoint,
            Cell(_delivery(delivery), _FATES.get(delivery.fate, "")),
        )
    for recorded in inspection.event.attempts:
        yield section.replace("event", "attempts"), timestamp(recorded.attempt.at_ms), attempt_text(recorded)


def _delivery(delivery: EventDelivery) -> str:
    if delivery.fate is Fate.PENDING:
        place = f"in hand of {delivery.owner}" if delivery.owner else "waiting for its next hand-over"
        return f"pending, {place}, {delivery.hand_overs} hand-overs, {span(delivery.idle_seconds)} ago"
    if delivery.fate is Fate.DEAD_LETTER:
        return f"dead letter after {delivery.hand_overs} hand-overs: {delivery.reason}"
    return delivery.fate.value


def _why(inspection: Inspection) -> str:
    decision = inspection.explanation.decision
    if decision.outcome is Outcome.EXPIRED:
        missing = (
            f"; there is no {inspection.kind.words.lacking} {', '.join(decision.missing)}" if decision.missing else ""
        )
        return f"deadline and grace passed {span(decision.lag_ms / 1000)} ago{missing}"
    if decision.outcome is Outcome.QUARANTINED:
        return f"{decision.detail}: {decision.why or REASONS.get(decision.detail, '')}"
    if decision.outcome is Outcome.SKIPPED:
        return f"it is {decision.detail} already; the index entry would go"
    if decision.outcome is Outcome.NOT_FOUND:
        return f"there is no such {inspection.kind.words.entry}; the index entry would go"
    return _WHY.get(decision.outcome, decision.detail)


def _budget(budget: dict[bytes, bytes] | str | None) -> object:
    if budget is None:
        return Cell("there is none", "yellow")
    if isinstance(budget, str):
        return Cell(f"not a hash but a {budget}", "red")
    told_first = (b"reserved", b"remaining", b"spent", b"debt", b"allocated")
    first = {name: budget[name] for name in told_first if name in budget}
    return " ".join(f"{decode(name)}={decode(value)}" for name, value in (first | budget).items())


def _value(name: bytes, value: bytes) -> str:
    """Times as people read them too."""
    if name.endswith(b"_at") and value.isdigit() and len(value) <= 16:
        return f"{decode(value)} ({_time(int(value))})"
    return decode(value)


def _time(milliseconds: float) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return rfc3339(int(milliseconds))
    return str(milliseconds)
