"""`sweeperd endpoints attempts`."""

from typing import Any

import click

from sweeperd.cli.names import check_name
from sweeperd.cli.options import Options, json_option, shard_option
from sweeperd.cli.output import Cell, Output, timestamp
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.ops.attempts import RecordedAttempt, read_attempts
from sweeperd.text import decode

#: The colour of each result.
STYLES = {"delivered": "green", "rejected": "yellow", "failed": "red"}


@click.command("attempts")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@json_option
@shard_option
@click.pass_obj
def attempts(options: Options, name: str, limit: int, as_json: bool, shard: str | None) -> None:
    """
    The last attempts to deliver to it, the newest first: every failure, and a sample of the successes. Of a batch, the
    ids are those of its first event. What is secret in an answer is hidden. Times are of Redis's clock.
    """
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        check_name("endpoint", name, [endpoint.name for endpoint in settings.webhooks.endpoints])
        on_shards = for_each_shard(shards, lambda one: read_attempts(one, name, limit), troubles)
    every = [each for _, found in on_shards for each in found]
    newest = sorted(every, key=lambda each: each.attempt.at_ms, reverse=True)[:limit]
    if as_json:
        output.json({"endpoint": name, "attempts": [attempt_document(each) for each in newest], "down": troubles.down})
    else:
        columns = ["at", "shard", "result", "ms", "attempt", "events", "event", "id", "replica", "answer"]
        output.table(columns, map(_cells, newest))
    troubles.end()


def attempt_document(recorded: RecordedAttempt) -> dict[str, Any]:
    """For JSON."""
    attempt = recorded.attempt
    return {
        "at": timestamp(attempt.at_ms),
        "shard": recorded.shard,
        "endpoint": recorded.endpoint,
        "result": attempt.result,
        "reason": attempt.reason,
        "milliseconds": attempt.milliseconds,
        "hand_over": attempt.hand_over,
        "attempt": attempt.attempt,
        "events": attempt.events,
        "event_id": attempt.event_id,
        "reservation_id": decode(attempt.reservation),
        "first_stream_id": decode(attempt.first),
        "last_stream_id": decode(attempt.last),
        "replica": attempt.replica,
        "answer": attempt.answer,
    }


def attempt_text(recorded: RecordedAttempt) -> Cell:
    """One line about it."""
    attempt = recorded.attempt
    batch = f", in a batch of {attempt.events}" if attempt.events > 1 else ""
    number = f"{attempt.hand_over}.{attempt.attempt}"
    text = f"{number} to {recorded.endpoint}: {attempt.reason} after {attempt.milliseconds} ms{batch}"
    return Cell(text, STYLES.get(attempt.result, ""))


def _cells(recorded: RecordedAttempt) -> list[object]:
    attempt = recorded.attempt
    return [
        timestamp(attempt.at_ms),
        recorded.shard,
        Cell(attempt.reason, STYLES.get(attempt.result, "")),
        attempt.milliseconds,
        f"{attempt.hand_over}.{attempt.attempt}",
        attempt.events,
        attempt.event_id,
        decode(attempt.reservation),
        attempt.replica,
        attempt.answer,
    ]
