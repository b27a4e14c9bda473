"""`sweeperd show`: shows one entry, and what a sweep would do with it."""

from collections.abc import Iterator, Mapping, Sequence

import click

from sweeperd.cli.endpoints import attempt_text
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import Cell, Output, printable, shortened
from sweeperd.cli.shards import Run, check_name, on_shards
from sweeperd.ops.search import BatchDocument, EventMatches, ShowDocument, find_by_event_id, is_event_id
from sweeperd.ops.show import EventDelivery, EventDocument, Fate, InspectionDocument, inspect_all
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.text import counted, span, timestamp

DetailRow = tuple[str, object, object]

_FATES = {Fate.PENDING: "yellow", Fate.NOT_TAKEN: "yellow", Fate.DEAD_LETTER: "red", Fate.ACKNOWLEDGED: "green"}


@click.command("show")
@click.argument("entry", metavar="ID")
@click.option("--kind", metavar="NAME", help="The kind of the entry, if several kinds have this id.")
@on_shards()
def command(run: Run, entry: str, kind: str | None) -> None:
    r"""
    Show a reservation or an entry of a configured kind: its hash, its place in index and quarantine, its budgets, its
    event with deliveries, and what a sweep would decide now and why. Changes nothing.

    ID is the bare id, raw or escaped as in logs and tables (\xff). If no entry has this id, it may also be a webhook-id
    (evt_..., batch_...) or a stream id. A search reads up to 20,000 entries of a shard, and finds a batch only while
    one of its attempts is recorded. Exit code 1 if no shard knows the id.
    """
    names = kind_names(run.settings)
    if kind is not None:
        check_name("kind", kind, names)
        names = [kind]
    seen = run.each(lambda shard: list(inspect_all(run.settings, shard, names, entry)))
    found = [inspection for _, inspections in seen for inspection in inspections]
    if len(kinds := {inspection.kind for inspection in found}) > 1:
        fail(f"{' and '.join(sorted(kinds))} have this id; choose one with --kind", Exit.USAGE)
    search = not found and is_event_id(entry)
    sent = run.each(lambda shard: find_by_event_id(run.settings, shard, entry)) if search else []
    document = ShowDocument.of(found, [each for _, each in sent], run.down)
    known = bool(document.shards or document.events or document.batches)
    labels = {name: kind.labels.entry for name, kind in kinds_of(run.settings, run.shards[0]).items()}
    if known and run.output.as_json:
        run.report(document)
    elif known:
        _show(run.output, document, labels)
    if not known and not run.down:
        if not entry:  # as an id may be, in the index of somebody else
            raise click.UsageError("ID is empty, and no entry has an empty id")
        run.output.name_address()
        fail(_unknown([labels[name] for name in names], entry, sent), Exit.FAILED)


def _unknown(words: Sequence[str], entry: str, sent: Sequence[tuple[Shard, EventMatches]]) -> str:
    """The error for an unknown id, with how far back the search went."""
    thing = " or ".join([*words, *(["event"] if sent else [])]) or "kind"
    searched = [(shard, each.looked) for shard, each in sent if not each.looked.complete]
    looked = ", ".join(f"{shard.name} back to {_time(each.back_to or 0)}" for shard, each in searched)
    return f"there is no {thing} {shortened(printable(entry))}" + (f"; searched the events of {looked}" * bool(looked))


def _show(output: Output, document: ShowDocument, labels: Mapping[str, str]) -> None:
    rows = [row for entry in document.shards for row in _rows(entry, labels[entry.kind])]
    rows += [row for event in document.events for row in _event_rows(f"event on {event.shard}", event)]
    rows += [row for batch in document.batches for row in _batch_rows(batch)]
    if not output.terminal:
        output.table(("section", "name", "value"), rows)
        return
    sections: dict[str, list[DetailRow]] = {}
    for row in rows:
        sections.setdefault(row[0], []).append(row)
    for section, of_section in sections.items():
        output.table((section, ""), [row[1:] for row in of_section])
        output.say("")


def _rows(entry: InspectionDocument, label: str) -> Iterator[DetailRow]:
    about, of_event, sweep = f"{label} on {entry.shard}", f"event on {entry.shard}", f"a sweep of {entry.shard} now"
    yield about, "id", entry.id
    yield about, "key", entry.key
    if entry.type != "hash":
        yield about, "type", Cell(entry.type, "red")
    for name, value in entry.fields.items():
        yield about, name, _value(name, value)
    if entry.ttl_ms is not None:
        yield about, "(TTL)", span(entry.ttl_ms / 1000)
    yield about, "(in the index)", "no" if entry.score is None else _time(entry.score)
    if entry.quarantined_at is not None:
        yield about, "(quarantined)", Cell(_time(entry.quarantined_at), "red")
    for scope, budget in entry.budgets.items():
        yield f"budgets on {entry.shard}", scope, _budget(budget)
    if entry.event is not None:
        yield from _event_rows(of_event, entry.event)
    elif "expired_at" in entry.fields:
        yield of_event, "(none)", "not in the stream, or trimmed"
    yield sweep, "would decide", Cell(entry.sweep.outcome, "bold")
    yield sweep, "because", entry.sweep.why
    if entry.score is None:
        yield sweep, "but", "no sweep reads it, because it is not in the index"
    for write in entry.sweep.writes:
        yield sweep, "would write", " ".join(write)
    for line in entry.commands:
        if not line.startswith("sweeperd show "):
            yield f"next on {entry.shard}", "run", line


def _event_rows(section: str, event: EventDocument) -> Iterator[DetailRow]:
    yield section, "webhook-id", event.webhook_id
    yield section, "stream id", event.stream_id
    for name, value in event.fields.items():
        yield section, name, _value(name, value)
    for delivery in event.deliveries:
        text = Cell(_delivery(delivery), _FATES.get(delivery.fate, ""))
        yield section.replace("event", "deliveries"), delivery.endpoint, text
    for attempt in event.attempts:
        yield section.replace("event", "attempts"), timestamp(attempt.at), attempt_text(attempt)


def _batch_rows(batch: BatchDocument) -> Iterator[DetailRow]:
    section = f"batch on {batch.shard}"
    yield section, "webhook-id", batch.webhook_id
    yield section, "endpoint", batch.endpoint
    yield section, "events", batch.count
    if not batch.exact:
        yield section, "(uncertain)", "all events for the endpoint between the first and the last one"
    for event in batch.events:
        yield section, event.stream_id, f"{event.event_id} {event.id}".rstrip()
    for attempt in batch.attempts:
        yield f"attempts on {batch.shard}", timestamp(attempt.at), attempt_text(attempt)


def _delivery(delivery: EventDelivery) -> str:
    if delivery.fate is Fate.PENDING:
        place = f"in flight at {delivery.owner}" if delivery.owner else "waiting for its next attempt"
        last = "due now" if delivery.idle_seconds is None else f"the last {span(delivery.idle_seconds)} ago"
        return f"pending, {place}, {counted(delivery.hand_overs, 'hand-over')}, {last}"
    if delivery.fate is Fate.DEAD_LETTER:
        return f"dead letter after {counted(delivery.hand_overs, 'hand-over')}: {delivery.reason}"
    return delivery.fate.value


def _budget(budget: dict[str, str] | str | None) -> object:
    if budget is None:
        return Cell("missing", "yellow")
    if isinstance(budget, str):
        return Cell(f"a {budget} instead of a hash", "red")
    first = {name: budget[name] for name in ("reserved", "remaining", "spent", "debt", "allocated") if name in budget}
    return " ".join(f"{name}={value}" for name, value in (first | budget).items())


def _value(name: str, value: str) -> str:
    """The value of a field; a time is also shown in RFC 3339."""
    if name.endswith("_at") and value.isascii() and value.isdigit() and len(value) <= 16:
        return f"{value} ({_time(int(value))})"
    return value


def _time(milliseconds: float) -> str:
    return timestamp(milliseconds) or str(milliseconds)
