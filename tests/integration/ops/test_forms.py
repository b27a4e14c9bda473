"""What operators see of entries that are not hashes, and of deadlines that are scores."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from sweeperd.config import Settings
from sweeperd.ops.acl import acl_users
from sweeperd.ops.check.kinds import misfit
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter
from sweeperd.ops.reasons import count_reasons
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.ops.show import inspect
from sweeperd.store import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Kind
from tests.lua.kinds.forms import JOB, JSON, MEMBER, SCORED
from tests.lua.kinds.world import settings_of
from tests.support.builders import make_sweeper
from tests.support.servers import Server

PAST, FUTURE = 1_700_000_000_000, 4_000_000_000_000
DOCUMENT = '{"state": "HELD", "show": "s1", "customer": "c1", "expires": {"at": %d}, "order": {"qty": %s}}'
FORMS: dict[str, dict[str, Any]] = {
    "json": JSON,
    "json, scored": {key: value for key, value in JSON.items() if key != "deadline"},
    "member": MEMBER | {"unit": "s"},
    "hash, scored": SCORED,
}
EACH = pytest.mark.parametrize("name", FORMS)
ALL = QuarantineFilter()


def entry_of(name: str, number: int) -> str:
    return f"call|c{number}|s" if name == "member" else f"h{number}"


def write(client: Any, kind: Kind, name: str, number: int, *, broken: bool = False, at: int = PAST) -> str:
    """Write an entry, with a counter that is wrong if it is `broken`."""
    entry, amount = entry_of(name, number), '"x"' if broken else "3"
    client.hset("seats:s1", mapping={"free": 10, "held": 50})
    if name == "member":
        client.hset(f"permits:c{number}", mapping={"free": 1, "used": 0 if broken else 1})
        client.sadd("slots:call", "s")
    elif name == "hash, scored":
        fields = {"state": "HELD", "show": "s1", "customer": "c1", "qty": amount.strip('"')}
        client.hset(f"seats:hold:{entry}", mapping=fields)
    else:
        client.set(f"carts:{entry}", DOCUMENT % (at, amount))
    client.zadd(kind.index, {entry: at / kind.unit_ms})
    return entry


@pytest.fixture
def settings(name: str) -> Settings:
    return settings_of(FORMS[name], reservations=False)


@pytest.fixture
def kind(settings: Settings, shard: Shard) -> Kind:
    (made,) = kinds_of(settings, shard).values()
    return made


@EACH
def test_a_quarantined_entry_is_listed_shown_and_put_back(
    shard: Shard, client: Any, kind: Kind, name: str, settings: Settings
) -> None:
    entry, other = write(client, kind, name, 1, broken=True), write(client, kind, name, 2)
    assert make_sweeper(shard, kind).tick().candidates == 2
    quarantine = Quarantine(shard, kind, 10)
    assert [(each.id, each.reason) for each in quarantine.find(ALL)] == [(entry.encode(), "INVALID_PLAN")]
    assert [(each.reason, each.newest) for each in count_reasons(shard, kind)] == [("INVALID_PLAN", (entry,))]
    if kind.marks is not None:
        client.hset(kind.marks, entry, "INVALID_EXPIRY as it was once")
    (change,) = next(quarantine.requeue(ALL))
    assert change.problem.startswith("INVALID_PLAN"), "it would be quarantined again"
    assert [each.reason for each in quarantine.find(ALL)] == ["INVALID_PLAN"], "and is listed as that"
    inspection = inspect(settings, shard, kind, entry.encode())
    assert inspection is not None
    assert inspection.sweep.detail == "INVALID_PLAN"
    assert inspection.fields["quarantine_reason"] == "INVALID_PLAN"
    held = client.xlen("sweeperd:events")
    if name == "member":
        client.hset("permits:c1", "used", 1)
    elif name == "hash, scored":
        client.hset("seats:hold:h1", "qty", 3)
    else:
        client.set("carts:h1", DOCUMENT % (PAST, "3"))
    (change,) = next(quarantine.requeue(ALL))
    assert change.problem == ""
    scored = name != "json"
    assert client.zscore(kind.index, entry) == (PAST / kind.unit_ms if scored else 0)
    assert client.exists(*filter(None, (kind.notes, kind.marks))) == 0
    assert make_sweeper(shard, kind).tick().candidates == 1
    assert client.xlen("sweeperd:events") == held + 1
    assert not client.zcard(kind.quarantine)
    assert not client.exists(f"carts:{other}", f"carts:{entry}")


@EACH
def test_a_renewal_in_quarantine_counts(shard: Shard, client: Any, kind: Kind, name: str) -> None:
    if name == "json":
        pytest.skip("the deadline is in the entry")
    entry = write(client, kind, name, 1, broken=True)
    make_sweeper(shard, kind).tick()
    client.zadd(kind.index, {entry: FUTURE / kind.unit_ms})
    write(client, kind, name, 1, at=FUTURE)
    next(Quarantine(shard, kind, 10).requeue(ALL))
    assert client.zscore(kind.index, entry) == FUTURE / kind.unit_ms


@EACH
def test_what_was_dismissed_is_left_alone(shard: Shard, client: Any, kind: Kind, name: str, settings: Settings) -> None:
    entry = write(client, kind, name, 1, broken=True)
    make_sweeper(shard, kind).tick()
    (change,) = next(Quarantine(shard, kind, 10).dismiss(ALL))
    assert change.problem == ""
    assert not walk(shard, settings, kind).found
    if kind.marks:
        assert client.hget(kind.marks, entry).startswith(b"dismissed ")
        make_sweeper(shard, kind).backlog()
        assert client.hexists(kind.marks, entry) == (name != "member")


def walk(shard: Shard, settings: Settings, kind: Kind) -> Any:
    return reconcile(subject_of(shard, settings, kind.name))


@EACH
def test_the_walk_finds_what_the_index_lacks_or_has_too_much(
    shard: Shard, client: Any, kind: Kind, name: str, settings: Settings
) -> None:
    alive, lost = (write(client, kind, name, number, at=FUTURE) for number in (1, 2))
    client.zrem(kind.index, lost)
    if name == "hash, scored":
        client.hset("seats:hold:ended", "state", "SOLD")
    client.zadd(kind.index, {"orphan": FUTURE / kind.unit_ms})
    report = walk(shard, settings, kind)
    if name == "member":
        assert not report.found
        return
    assert dict(report.found) == {Fault.LOST: 1, Fault.ORPHAN: 1}
    mend(subject_of(shard, settings, kind.name), report)
    assert client.zscore(kind.index, "orphan") is None
    # Without a field, nothing says when the lost one ends.
    assert client.zscore(kind.index, lost) == (FUTURE if name == "json" else None)
    assert client.zscore(kind.index, alive) == FUTURE / kind.unit_ms


@pytest.mark.parametrize("name", ["json"])
def test_an_entry_that_is_back_in_the_index_has_no_mark_of_a_quarantine(
    shard: Shard, client: Any, kind: Kind, name: str, settings: Settings
) -> None:
    assert kind.marks is not None
    entry = write(client, kind, name, 1, at=FUTURE)
    client.zrem(kind.index, entry)
    client.hset(kind.marks, mapping={entry: "INVALID_PLAN why", "another": "INVALID_PLAN why"})
    assert mend(subject_of(shard, settings, kind.name), walk(shard, settings, kind)).changed == 1
    assert client.zscore(kind.index, entry) == FUTURE
    assert client.hkeys(kind.marks) == [b"another"]


def test_the_walk_knows_a_protected_entry_by_its_note(shard: Shard, client: Any) -> None:
    settings = settings_of(SCORED | {"unless": JOB["unless"]}, reservations=False)
    (kind,) = kinds_of(settings, shard).values()
    entry = write(client, kind, "hash, scored", 1)
    client.set("jobs:h1", 1)
    make_sweeper(shard, kind).tick()
    assert not walk(shard, settings, kind).found
    client.zrem(kind.index, entry)
    report = walk(shard, settings, kind)
    assert dict(report.found) == {Fault.LOST: 1}
    mend(subject_of(shard, settings, kind.name), report)
    assert client.zscore(kind.index, entry) == PAST


@EACH
def test_check_names_the_setting_that_fits_no_entry(
    shard: Shard, client: Any, kind: Kind, name: str, settings: Settings
) -> None:
    write(client, kind, name, 1)
    assert misfit(settings.kinds[0], kind, shard) is None
    client.flushdb()
    client.zadd(kind.index, {"wrong": PAST / kind.unit_ms})
    result = misfit(settings.kinds[0], kind, shard)
    assert result is not None
    assert ("`member`" if name == "member" else "`key`") in " ".join(result[1:])


@pytest.fixture
def limited(server: Server, client: Any, settings: Settings) -> Iterator[Shard]:
    """A connection with the rights that `sweeperd acl --commands` prints."""
    (user,) = acl_users(settings, settings.all_shards, "all", commands=True)
    client.execute_command("ACL", "SETUSER", "limited", "reset", ">pw", *user.rules)
    made = Shard(settings.redis.model_copy(update={"url": SecretStr(server.url.replace("://", "://limited:pw@"))}))
    made.read_clock()
    yield made
    made.close()
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize("name", ["json", "member"])
@pytest.mark.every_redis
def test_the_rights_that_acl_prints_suffice(
    limited: Shard, client: Any, kind: Kind, name: str, settings: Settings
) -> None:
    write(client, kind, name, 1, broken=True)
    write(client, kind, name, 2)
    kind.check(limited.client)
    sweeper = make_sweeper(limited, kind)
    report = sweeper.tick()
    assert report.candidates == 2
    assert not report.failure
    sweeper.backlog()
    quarantine = Quarantine(limited, kind, 10)
    assert len(list(quarantine.find(ALL))) == 1
    assert inspect(settings, limited, kind, entry_of(name, 1).encode()) is not None
    next(quarantine.requeue(ALL))
    assert next(quarantine.dismiss(ALL))[0].problem == ""
    walk(limited, settings, kind)


@pytest.mark.parametrize("text", [" 1700000000", "nan", "inf", "1e400", "9" * 400])
def test_a_repair_keeps_an_entry_whose_deadline_is_no_score(shard: Shard, client: Any, text: str) -> None:
    """Lua takes it for a number, and ZADD refuses it: by then the entry must not have left the index."""
    settings = settings_of(SCORED | {"deadline": "expires_at", "unit": "s"}, reservations=False)
    kind = next(iter(kinds_of(settings, shard).values()))
    entry = write(client, kind, "hash, scored", 1, at=FUTURE)
    client.hset(f"seats:hold:{entry}", "expires_at", text)
    report = walk(shard, settings, kind)
    mended = mend(subject_of(shard, settings, kind.name), report)
    assert client.zscore(kind.index, entry) == 0, "the next sweep sets it aside"
    assert mended.mended == {Fault.WRONG_SCORE: 1}
