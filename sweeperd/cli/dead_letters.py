"""`sweeperd dead-letters`."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

import click

from sweeperd.cli.dead_letter_change import (
    Drop,
    Replay,
    as_dict,
    change_letters,
    check_endpoint,
    endpoint_option,
    selecting,
    tenant_option,
)
from sweeperd.cli.options import Options, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.cli.troubles import Troubles, warn
from sweeperd.ops import dead_letters
from sweeperd.ops.dead_letters import DeadLetter, DeadLetterFilter
from sweeperd.store.shard import Shard
from sweeperd.text import decode


@click.group("dead-letters", short_help="Deliveries that were given up on: list, replay, drop.")
def command() -> None:
    """Deliveries that were given up on, because the event was older than webhooks.max_age."""


@command.command("list")
@endpoint_option
@tenant_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@json_option
@shard_option
@click.pass_obj
def list_(
    options: Options, endpoint: str | None, tenant: str | None, limit: int, as_json: bool, shard: str | None
) -> None:
    """The newest first. The first column is what `replay` and `drop` take."""
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        now: dict[str, int] = {}
        usable = []
        for one in shards:
            with troubles.noted(one):
                now[one.name] = one.read_clock()
                usable.append(one)
        check_endpoint(settings, usable, endpoint, troubles)
        wanted = DeadLetterFilter(endpoint, tenant)
        newest = heapq.merge(
            *(_noted(troubles, one, dead_letters.read(one, wanted, newest_first=True)) for one in usable),
            key=lambda letter: letter.order,
            reverse=True,
        )
        letters = list(itertools.islice(newest, limit + 1))
        more, letters = len(letters) > limit, letters[:limit]
        if as_json:
            found = [as_dict(letter) | {"age_seconds": _age(letter, now)} for letter in letters]
            output.json({"dead_letters": found, "more": more, "down": troubles.down})
        else:
            columns = ["id", "shard", "endpoint", "age", "reason", "attempts", "tenant", "reservation", "event_id"]
            output.table(columns, ([*_cells(letter, _age(letter, now))] for letter in letters))
        if more:
            warn(f"there are more than {limit}; --limit shows more")
    troubles.end()


@command.command("replay")
@selecting
def replay(options: Options, **selected: Any) -> None:
    """
    Deliver dead letters to their endpoint again: by ID, by --endpoint, by --tenant, or --all.

    The webhook has the same webhook-id as before, and webhooks.max_age counts anew. A letter that would not reach its
    endpoint, because that is in the configuration no more or does not ask for the tenant any more, stays where it is.
    """
    change_letters(options, Replay(), **selected)


@command.command("drop")
@selecting
def drop(options: Options, **selected: Any) -> None:
    """
    Remove dead letters for good: by ID, by --endpoint, by --tenant, or --all.

    With --json they are printed whole, so that the output can serve as a copy.
    """
    change_letters(options, Drop(), **selected)


def _noted(troubles: Troubles, shard: Shard, letters: Iterator[DeadLetter]) -> Iterator[DeadLetter]:
    with troubles.noted(shard):
        yield from letters


def _age(letter: DeadLetter, now: dict[str, int]) -> float:
    return max(0.0, (now[letter.shard] - letter.at_ms) / 1000)


def _cells(letter: DeadLetter, age: float) -> list[object]:
    body = letter.body or {}
    return [
        letter.id,
        letter.shard,
        letter.endpoint,
        f"{age:.0f}s",
        letter.reason,
        letter.attempts,
        decode(letter.tenant),
        body.get("data", {}).get("reservation_id", ""),
        body.get("event_id", "(lost)"),
    ]
