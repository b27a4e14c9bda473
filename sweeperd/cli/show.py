"""`sweeperd show`."""

from collections.abc import Iterator, Sequence

import click

from sweeperd.cli.endpoints import attempt_text
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import Cell, Output, printable, shortened, timestamp
from sweeperd.cli.shards import Run, check_name, on_shards
from sweeperd.ops.search import BatchDocument, EventMatches, ShowDocument, find_by_event_id, is_event_id
from sweeperd.ops.show import EventDelivery, EventDocument, Fate, Inspection, inspect_all
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.text import decode, span

DetailRow = tuple[str, object, object]

_FATES = {Fate.PENDING: "yellow", Fate.NOT_TAKEN: "yellow", Fate.DEAD_LETTER: "red", Fate.ACKNOWLEDGED: "green"}


@click.command("show")
@click.argument("entry", metavar="ID")
@click.option("--kind", metavar="NAME", help="The kind of the entry, if two kinds have an entry of this id.")
@on_shards()
def command(run: Run, entry: str, kind: str | None) -> None:
    r"""
    Everything about a reservation, or an entry of a configured kind: the hash, the places in index and quarantine, the
    budgets of a reservation's scopes, the event and its deliveries, and what a sweep would decide now and why. Nothing
    is changed.

    ID is the bare id, raw or as in logs and tables (\xff); or the id of an event or a webhook (evt_..., batch_...), or
    the stream id of an event, if no entry has this id. A search reads at most 20,000 entries of a
    shard; a batch is known only while one of its attempts is recorded. Exit code 1 if no shard knows the id.
    """
    names = kind_names(run.settings)
    if kind is not None:
        check_name("kind", kind, names)
        names = [kind]
    seen = run.each(lambda shard: list(inspect_all(run.settings, shard, names, entry)))
    found = [(shard, inspection) for shard, inspections in seen for inspection in inspections]
    if len(kinds := {inspection.kind.name for _, inspection in found}) > 1:
        fail(f"it is an id of {' and '.join(sorted(kinds))}: name one with --kind", Exit.USAGE)
    sent = (
        run.each(lambda shard: find_by_event_id(run.settings, shard, entry)) if not found and is_event_id(entry) else []
    )
    known = bool(found) or any(each.entries or each.events or each.batches for _, each in sent)
    if known and run.output.as_json:
        run.report(ShowDocument.of(found, sent, run.down))
    elif known:
        _show(run.output, found, sent)
    if not known and not run.down:
        run.output.name_address()
        fail(_unknown(run, names, entry, sent), Exit.FAILED)


def _unknown(run: Run, names: Sequence[str], entry: str, sent: Sequence[tuple[Shard, EventMatches]]) -> str:
    """How far back the search went, if not over all events."""
    words = [kinds_of(run.settings, run.shards[0])[name].labels.entry for name in names]
    thing = " or ".join([*words, *(["event"] if sent else [])]) or "kind"
    searched = [(shard, each.looked) for shard, each in sent if not each.looked.complete]
    looked = "; ".join(
        f"the events of {shard.name} were read back to {_time(each.back_to or 0)}" for shard, each in searched
    )
    return f"there is no {thing} {shortened(printable(entry))}" + (f", and {looked}" if looked else "")


def _show(
    output: Output, found: Sequence[tuple[Shard, Inspection]], sent: Sequence[tuple[Shard, EventMatches]]
) -> None:
    rows = [row for shard, inspection in found for row in _rows(shard, inspection)]
    for shard, each in sent:
        rows += [row for inspection in each.entries for row in _rows(shard, inspection)]
        rows += [row for event in each.events for row in _event_rows(f"event on {shard.name}", event)]
        rows += [row for batch in each.batches for row in _batch_rows(batch)]
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
    about = f"{inspection.kind.labels.entry} on {shard.name}"
    yield about, "id", decode(inspection.id)
    yield about, "key", decode(inspection.key)
    if inspection.type != "hash":
        yield about, "type", Cell(inspection.type, "red")
    for name, value in inspection.fields.items():
        yield about, decode(name), _value(decode(name), decode(value))
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
    yield sweep, "because", inspection.why
    if inspection.score is None:
        yield sweep, "but", "it is not in the index, so none comes to it"
    for write in inspection.explanation.writes:
        yield sweep, "would write", " ".join(map(decode, write))


def _event(section: str, inspection: Inspection) -> Iterator[DetailRow]:
    if inspection.event is None:
        if b"expired_at" in inspection.fields:
            yield section, "(none)", "not in the stream, or not any more"
        return
    yield from _event_rows(section, inspection.event)


def _event_rows(section: str, event: EventDocument) -> Iterator[DetailRow]:
    yield section, "webhook-id", event.webhook_id
    yield section, "stream id", event.stream_id
    for name, value in event.fields.items():
        yield section, name, _value(name, value)
    for delivery in event.deliveries:
        yield (
            section.replace("event", "deliveries"),
            delivery.endpoint,
            Cell(_delivery(delivery), _FATES.get(delivery.fate, "")),
        )
    for attempt in event.attempts:
        yield section.replace("event", "attempts"), timestamp(attempt.at), attempt_text(attempt)


def _batch_rows(batch: BatchDocument) -> Iterator[DetailRow]:
    section = f"batch on {batch.shard}"
    yield section, "webhook-id", batch.webhook_id
    yield section, "endpoint", batch.endpoint
    yield section, "events", batch.count
    if not batch.exact:
        yield section, "(not certain)", "the events that the endpoint asks for, between the first and the last event"
    for event in batch.events:
        yield section, event.stream_id, f"{event.event_id} {event.id}".rstrip()
    for attempt in batch.attempts:
        yield f"attempts on {batch.shard}", timestamp(attempt.at), attempt_text(attempt)


def _delivery(delivery: EventDelivery) -> str:
    if delivery.fate is Fate.PENDING:
        place = f"in hand of {delivery.owner}" if delivery.owner else "waiting for its next hand-over"
        return f"pending, {place}, {delivery.hand_overs} hand-overs, {span(delivery.idle_seconds)} ago"
    if delivery.fate is Fate.DEAD_LETTER:
        return f"dead letter after {delivery.hand_overs} hand-overs: {delivery.reason}"
    return delivery.fate.value


def _budget(budget: dict[bytes, bytes] | str | None) -> object:
    if budget is None:
        return Cell("there is none", "yellow")
    if isinstance(budget, str):
        return Cell(f"not a hash but a {budget}", "red")
    told_first = (b"reserved", b"remaining", b"spent", b"debt", b"allocated")
    first = {name: budget[name] for name in told_first if name in budget}
    return " ".join(f"{decode(name)}={decode(value)}" for name, value in (first | budget).items())


def _value(name: str, value: str) -> str:
    """Times as people read them too."""
    if name.endswith("_at") and value.isascii() and value.isdigit() and len(value) <= 16:
        return f"{value} ({_time(int(value))})"
    return value


def _time(milliseconds: float) -> str:
    return timestamp(milliseconds) or str(milliseconds)
