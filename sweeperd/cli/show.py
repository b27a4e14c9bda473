"""`sweeperd show`: shows one entry, and what a sweep would do with it."""

from collections.abc import Iterator, Sequence

import click

from sweeperd.cli.endpoints import attempt_text
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import Cell, Output, printable, shortened
from sweeperd.cli.shards import Run, check_name, on_shards
from sweeperd.ops.search import BatchDocument, EventMatches, ShowDocument, find_by_event_id, is_event_id
from sweeperd.ops.show import EventDelivery, EventDocument, Fate, Inspection, inspect_all
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.text import decode, span, timestamp

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
    found = [(shard, inspection) for shard, inspections in seen for inspection in inspections]
    if len(kinds := {inspection.kind.name for _, inspection in found}) > 1:
        fail(f"{' and '.join(sorted(kinds))} have this id; choose one with --kind", Exit.USAGE)
    search = not found and is_event_id(entry)
    sent = run.each(lambda shard: find_by_event_id(run.settings, shard, entry)) if search else []
    known = bool(found) or any(each.entries or each.events or each.batches for _, each in sent)
    if known and run.output.as_json:
        run.report(ShowDocument.of(found, sent, run.down))
    elif known:
        _show(run.output, found, sent)
    if not known and not run.down:
        run.output.name_address()
        fail(_unknown(run, names, entry, sent), Exit.FAILED)


def _unknown(run: Run, names: Sequence[str], entry: str, sent: Sequence[tuple[Shard, EventMatches]]) -> str:
    """The error for an unknown id, with how far back the search went."""
    words = [kinds_of(run.settings, run.shards[0])[name].labels.entry for name in names]
    thing = " or ".join([*words, *(["event"] if sent else [])]) or "kind"
    searched = [(shard, each.looked) for shard, each in sent if not each.looked.complete]
    looked = ", ".join(f"{shard.name} back to {_time(each.back_to or 0)}" for shard, each in searched)
    return f"there is no {thing} {shortened(printable(entry))}" + (f"; searched the events of {looked}" * bool(looked))


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
        yield about, "(TTL)", span(inspection.ttl_ms / 1000)
    yield about, "(in the index)", "no" if inspection.score is None else _time(inspection.score)
    if inspection.quarantined_at is not None:
        yield about, "(quarantined)", Cell(_time(inspection.quarantined_at), "red")
    for scope, budget in inspection.budgets.items():
        yield f"budgets on {shard.name}", decode(scope), _budget(budget)
    if inspection.event is not None:
        yield from _event_rows(f"event on {shard.name}", inspection.event)
    elif b"expired_at" in inspection.fields:
        yield f"event on {shard.name}", "(none)", "not in the stream, or trimmed"
    decision, sweep = inspection.explanation.decision, f"a sweep of {shard.name} now"
    yield sweep, "would decide", Cell(decision.outcome.value, "bold")
    yield sweep, "because", inspection.why
    if inspection.score is None:
        yield sweep, "but", "no sweep reads it, because it is not in the index"
    for write in inspection.explanation.writes:
        yield sweep, "would write", " ".join(map(decode, write))
    for line in inspection.commands:
        if not line.startswith("sweeperd show "):
            yield f"next on {shard.name}", "run", line


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
        return f"pending, {place}, {delivery.hand_overs} hand-overs, {span(delivery.idle_seconds)} ago"
    if delivery.fate is Fate.DEAD_LETTER:
        return f"dead letter after {delivery.hand_overs} hand-overs: {delivery.reason}"
    return delivery.fate.value


def _budget(budget: dict[bytes, bytes] | str | None) -> object:
    if budget is None:
        return Cell("missing", "yellow")
    if isinstance(budget, str):
        return Cell(f"a {budget} instead of a hash", "red")
    leading = (b"reserved", b"remaining", b"spent", b"debt", b"allocated")
    first = {name: budget[name] for name in leading if name in budget}
    return " ".join(f"{decode(name)}={decode(value)}" for name, value in (first | budget).items())


def _value(name: str, value: str) -> str:
    """The value of a field; a time is also shown in RFC 3339."""
    if name.endswith("_at") and value.isascii() and value.isdigit() and len(value) <= 16:
        return f"{value} ({_time(int(value))})"
    return value


def _time(milliseconds: float) -> str:
    return timestamp(milliseconds) or str(milliseconds)
