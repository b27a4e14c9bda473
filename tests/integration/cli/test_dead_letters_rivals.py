"""Dead letters that come or go while a command is at work: functions are replaced, so that the moment is certain."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.cli.output import Output
from sweeperd.ops.actions import read_actions
from sweeperd.outbox import dead_letters
from sweeperd.store import Shard
from tests.integration.cli.conftest import Run, give_up
from tests.integration.cli.test_dead_letters import DEAD, ENDPOINTS, EVENTS, listed, reservations
from tests.support.streams import entries


def test_more_than_a_page_and_those_that_come_meanwhile(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given up on after somebody has said yes was not meant: else a replay that fails would never end."""
    give_up(shard, [str(number) for number in range(2 * dead_letters.PAGE + 5)])
    replay = dead_letters.replay

    def and_one_more(here: Shard, ids: list[str]) -> Any:
        give_up(shard, [f"meanwhile {client.xlen(EVENTS)}"])
        return replay(here, ids)

    monkeypatch.setattr(dead_letters, "replay", and_one_more)
    result = invoke("dead-letters", "replay", "--endpoint", "billing", "--yes", endpoints=ENDPOINTS)
    assert result.stdout.splitlines()[-1] == f"{2 * dead_letters.PAGE + 5} replayed"
    assert all(name.startswith("meanwhile") for name in reservations(listed(invoke)))


def test_somebody_else_was_faster(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = dead_letters.read

    def before_somebody_else(*arguments: Any) -> Iterator[dead_letters.DeadLetter]:
        letters = list(read(*arguments))
        if asked:
            client.xdel(DEAD, *(letter.id for letter in letters))
        return iter(letters)

    asked: list[str] = []
    monkeypatch.setattr(Output, "confirm", lambda _output, question, *, yes: asked.append(question))
    monkeypatch.setattr(dead_letters, "read", before_somebody_else)
    for verb in ("replay", "drop"):
        asked.clear()
        give_up(shard, [verb])
        result = invoke("dead-letters", verb, "--all", endpoints=ENDPOINTS)
        assert (result.exit_code, len(asked)) == (1, 1)
        assert dead_letters.Replayed.GONE.why_not in result.stdout
    asked.clear()
    give_up(shard, ["again"])
    document = json.loads(invoke("dead-letters", "drop", "--all", "--json", endpoints=ENDPOINTS).stdout)
    assert [letter["result"] for letter in document["dead_letters"]] == ["dropped", "left"], "the copy comes first"
    assert (document["dropped"], document["left"]) == (0, 1)


def test_a_drop_that_redis_refuses_halfway_is_told_letter_by_letter(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a primary that becomes a replica within a page."""
    drop = dead_letters.drop

    def half(here: Shard, ids: list[str]) -> list[bool | Exception]:
        return [*drop(here, ids[:40]), *[redis.exceptions.ReadOnlyError("read only") for _ in ids[40:]]]

    monkeypatch.setattr(dead_letters, "drop", half)
    letters = [letter.decode() for letter in give_up(shard, [str(number) for number in range(dead_letters.PAGE + 5)])]
    result = invoke("dead-letters", "drop", "--all", "--yes", "--json", endpoints=ENDPOINTS)
    document = json.loads(result.stdout)
    told = [(letter["id"], letter["result"], letter.get("problem", "")) for letter in document["dead_letters"]]
    page = letters[: dead_letters.PAGE]
    assert told == [(each, "dropped", "") for each in page] + [(each, "left", "read only") for each in page[40:]]
    assert (result.exit_code, document["dropped"], document["left"]) == (1, 40, 65), "with those of the next page"
    assert [entry.decode() for entry, _ in entries(client, DEAD)] == letters[40:]
    assert [(action.count, action.finished) for _, action in read_actions(shard)] == [(40, True)]
