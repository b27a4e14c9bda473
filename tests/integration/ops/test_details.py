"""What the status page shows beyond `status`."""

import tomllib
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.ops import reasons
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.status import read_details, read_status
from sweeperd.store import Shard
from sweeperd.sweep import configured, kinds_of
from sweeperd.sweep.kind_script import kind_script
from sweeperd.sweep.reservations import REASONS
from tests.support.kind_settings import SEAT_HOLD


def set_aside(client: redis.Redis, **reasons: str) -> None:
    for at, (entry, reason) in enumerate(reasons.items()):
        client.zadd("sweeperd:quarantine", {entry: at})
        client.hset(f"reservation:res_{entry}", "quarantine_reason", reason)


def test_the_quarantine_by_reason_the_newest_first(shard: Shard, client: redis.Redis) -> None:
    set_aside(client, a="INVALID_STATE", b="INVALID_STATE", c="INVALID_BUDGET", d="INVALID_STATE", e="INVALID_STATE")
    client.zadd("sweeperd:quarantine", {"text": 10, "gone": 11})
    client.set("reservation:res_text", "no hash")
    assert read_details(Settings(), shard, ()).reasons == (
        ReasonCount("reservations", "INVALID_STATE", 4, ("e", "d", "b"), REASONS["INVALID_STATE"]),
        ReasonCount("reservations", "INVALID_BUDGET", 1, ("c",), REASONS["INVALID_BUDGET"]),
        ReasonCount("reservations", "WRONG_TYPE", 1, ("text",), REASONS["WRONG_TYPE"]),
        ReasonCount("reservations", "", 1, ("gone",)),
    )


def test_a_reading_generates_and_hashes_no_script_again(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds are built once for a shard, and so is the script that explains what is due."""
    generated: list[str] = []
    generate = kind_script

    def counted(kind: KindSettings, *arguments: Any) -> Any:
        generated.append(kind.name)
        return generate(kind, *arguments)

    monkeypatch.setattr(configured, "kind_script", counted)
    settings = Settings.model_validate(tomllib.loads(SEAT_HOLD + 'give_back = ["HINCRBY seats:{show} free {qty}"]'))
    client.zadd("reservation:ttl", {"overdue": 1})
    client.zadd("seats:ttl", {"overdue": 1})
    client.zadd("sweeperd:quarantine:seat-hold", {"h1": 1})
    client.hset("seats:hold:h1", "quarantine_reason", "INVALID_PLAN")

    def read() -> None:
        status = read_status(settings, shard, detailed=True)
        assert (status.error, status.due.entries, [kind.due for kind in status.kinds]) == ("", 1, [1, 1])
        assert [(each.kind, each.newest) for each in status.details.reasons] == [("seat-hold", ("h1",))]

    read()
    scripts = [kind.explainer for kind in kinds_of(settings, shard).values()]
    read()
    again = [kind.explainer for kind in kinds_of(settings, shard).values()]
    assert all(one is other for one, other in zip(scripts, again, strict=True))
    assert generated == ["seat-hold"], "once, to explain what is due"


def test_only_the_newest_are_counted(shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "COUNTED", 2)
    set_aside(client, a="INVALID_STATE", b="INVALID_STATE", c="INVALID_STATE")
    assert read_details(Settings(), shard, ()).reasons == (
        ReasonCount("reservations", "INVALID_STATE", 2, ("c", "b"), REASONS["INVALID_STATE"]),
    )
