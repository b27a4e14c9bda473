"""An entry that `unless` protects: asked again later, for how long, and what happens then. Both forms, each Redis."""

import time
from typing import Any

import pytest
import redis

from tests.lua.kinds.world import DEADLINE, ID, SCRIPT, SEATS, Seats, scripted
from tests.support.servers import Binary, Server

GUARDED = "sweeperd:protected:seat-hold"
MINUTE = 60_000
#: After the grace of 5 s, ms.
DUE = DEADLINE + 5000
FORMS = pytest.mark.parametrize("form", ["declared", "script"])


def kind(form: str, **more: Any) -> dict[str, Any]:
    base = SEATS if form == "declared" else scripted(SCRIPT)
    return base | {"grace": "5s", "unless": "EXISTS jobs:running:{id}"} | more


def seats_of(client: redis.Redis, form: str, prefix: str = "", **more: Any) -> Seats:
    seats = Seats(client, kind(form, **more), prefix=prefix)
    seats.show()
    seats.hold()
    return seats


@FORMS
@pytest.mark.parametrize("prefix", ["", "{p}:"])
def test_while_its_key_exists_nothing_but_the_time_of_the_next_question_changes(
    client: redis.Redis, form: str, prefix: str
) -> None:
    seats = seats_of(client, form, prefix)
    client.set(prefix + "jobs:running:h1", 1)
    before = seats.snapshot()
    for now in (DUE + 1, DUE + 40 * MINUTE):
        decision = seats.run(at=now)
        assert (decision.outcome, decision.detail) == ("not_due", "protected")
        expected = before | {seats.kind.index: {ID: now + 30_000}, seats.key(GUARDED): {ID: DUE}}
        assert seats.snapshot() == expected
    client.delete(prefix + "jobs:running:h1")
    decision = seats.run(at=DUE + 41 * MINUTE)
    assert (decision.outcome, seats.seats()) == ("expired", (13, 2))
    # Late is what was not asked when it was to be asked, and not what was protected.
    assert decision.lag_ms == MINUTE - 30_000
    assert not client.exists(seats.key(GUARDED), seats.kind.index)
    assert len(seats.events()) == 1


@FORMS
def test_a_field_protects_too(client: redis.Redis, form: str) -> None:
    seats = seats_of(client, form, unless={"paid": "yes", "by": "card"}, unless_recheck="2m")
    for fields, outcome in (({"paid": "yes", "by": "card"}, "not_due"), ({"paid": "yes", "by": ""}, "expired")):
        seats.hold(**fields)
        assert seats.run(at=DUE + 1).outcome == outcome
        if outcome == "not_due":
            assert client.zscore(seats.kind.index, ID) == DUE + 1 + 2 * MINUTE


@FORMS
@pytest.mark.parametrize(("now", "outcome"), [(DEADLINE, "not_due"), (DUE, "in_grace")])
def test_nothing_is_asked_before_the_end_of_the_grace(client: redis.Redis, form: str, now: int, outcome: str) -> None:
    seats = seats_of(client, form)
    client.set("jobs:running:h1", 1)
    before = seats.snapshot()
    assert (seats.run(at=now).outcome, seats.run(at=now).detail) == (outcome, "")
    assert seats.snapshot() == before


@FORMS
@pytest.mark.parametrize("then", ["quarantine", "expire"])
def test_the_longest_protection(client: redis.Redis, form: str, then: str) -> None:
    seats = seats_of(client, form, unless_max="10m", protected=then)
    client.set("jobs:running:h1", 1)
    last = DUE + 10 * MINUTE
    assert seats.run(at=last - 1).detail == "protected"
    assert client.zscore(seats.kind.index, ID) == last, "asked again at the moment at which the protection ends"
    decision = seats.run(at=last)
    assert not client.exists(GUARDED, seats.kind.index)
    if then == "expire":
        assert (decision.outcome, seats.seats(), decision.lag_ms) == ("expired", (13, 2), 0)
        return
    assert (decision.outcome, decision.detail) == ("quarantined", "PROTECTED_TOO_LONG")
    assert (seats.seats(), seats.events()) == ((10, 5), [])
    assert client.hget("seats:hold:h1", "quarantine_reason") == b"PROTECTED_TOO_LONG"
    # Put back while it is still protected: set aside again. Put back afterwards: expired.
    client.zadd(seats.kind.index, {ID: DEADLINE})
    assert seats.run(at=last + MINUTE).detail == "PROTECTED_TOO_LONG"
    client.delete("jobs:running:h1")
    client.zadd(seats.kind.index, {ID: DEADLINE})
    assert seats.run(at=last + MINUTE).outcome == "expired"


@FORMS
def test_an_empty_field_of_its_key_is_a_missing_field(client: redis.Redis, form: str) -> None:
    seats = seats_of(client, form, unless="EXISTS jobs:{job}:{id}")
    for job in ("", None):
        seats.hold(job=job)
        seats.check_quarantined("MISSING_FIELD", why="job")
        client.zrem(seats.kind.quarantine, ID)
        client.delete("seats:hold:h1")
    seats.hold(job="j 1")
    client.set("jobs:j 1:h1", 1)
    assert seats.run().detail == "protected"


@FORMS
@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": "SOLD"}, "skipped"),
        ({"expires_at": 9_000_000_000_000}, "not_due"),
        ({"expires_at": "soon"}, "quarantined"),
        ({"qty": "x"}, "quarantined"),
        (None, "not_found"),
    ],
)
def test_every_other_outcome_ends_the_protection(
    client: redis.Redis, form: str, fields: dict[str, Any] | None, outcome: str
) -> None:
    seats = seats_of(client, form)
    client.set("jobs:running:h1", 1)
    seats.run()
    client.delete("jobs:running:h1")
    if fields is None:
        client.delete("seats:hold:h1")
    else:
        seats.client.hset("seats:hold:h1", mapping=fields)
    decision = seats.run()
    assert (decision.outcome, decision.detail == "protected") == (outcome, False)
    assert not client.exists(GUARDED)


def test_a_script_that_waits_or_extends_is_not_asked(client: redis.Redis) -> None:
    for answer in ("'wait', now + 1000", "'extend', now + 60000", "'quarantine', 'ODD'"):
        client.flushall()
        text = f"function decide(hash, now) return {answer} end function plan() return {{}} end"
        seats = Seats(client, scripted(text, unless="EXISTS jobs:running:{id}"))
        seats.hold()
        client.set("jobs:running:h1", 1)
        assert seats.run().detail in ("", "ODD")
        assert not client.exists(GUARDED)


def test_a_script_reads_the_key_too(client: redis.Redis) -> None:
    text = (
        "function decide() if get('EXISTS', 'jobs:running:h1') == 1 then return 'skip', 'runs' end return 'expire' end"
        " function plan() return {} end"
    )
    seats = Seats(client, scripted(text, unless="EXISTS jobs:running:{id}"))
    seats.hold()
    client.set("jobs:running:h1", 1)
    assert (seats.run().outcome, seats.run().detail) == ("skipped", "runs")


@pytest.mark.every_redis
@FORMS
def test_a_full_redis_takes_it(redis_binary: Binary, form: str) -> None:
    with Server(redis_binary, ["--maxmemory-policy", "noeviction"]) as server:
        with redis.Redis.from_url(server.url, protocol=2) as client:
            seats = seats_of(client, form)
            client.set("jobs:running:h1", 1)
            for outcome in ("not_due", "expired"):
                client.config_set("maxmemory", 1)
                assert seats.run().outcome == outcome
                client.config_set("maxmemory", 0)
                client.delete("jobs:running:h1")


@FORMS
def test_another_type_under_the_key_of_protected_entries_moves_nothing(client: redis.Redis, form: str) -> None:
    seats = seats_of(client, form)
    client.set(GUARDED, "text")
    before = seats.snapshot()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        seats.run()
    assert seats.snapshot() == before


@FORMS
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("rule", ["-exists", "-zadd", "-zrem", "-zscore", "jobs", "guarded"])
def test_a_missing_right_moves_nothing(server: Server, client: redis.Redis, form: str, runs: bool, rule: str) -> None:
    """Each right that the entry needs for the outcome, taken away after the entry was protected once."""
    seats = seats_of(client, form)
    client.set("jobs:running:h1", 1)
    seats.run()
    if not runs:
        client.delete("jobs:running:h1")
    keys = {"jobs": "~jobs:*", "guarded": "~sweeperd:protected:*"}
    every = ["~seats:*", "~sweeperd:events", "~sweeperd:quarantine:*", *keys.values()]
    allowed = " ".join(key for key in every if key != keys.get(rule))
    commands = f"+@all {rule}" if rule.startswith("-") else "+@all"
    client.execute_command("ACL", "SETUSER", "limited", "reset", *f"on >pw {allowed} &* {commands}".split())
    before = seats.snapshot()
    try:
        with redis.Redis(port=server.port, username="limited", password="pw", protocol=2) as limited:
            seats.client = limited
            with pytest.raises(redis.ResponseError, match=r"(?i)NOPERM|permission|can't"):
                seats.run()
    finally:
        seats.client = client
        client.execute_command("ACL", "DELUSER", "limited")
    assert seats.snapshot() == before
    assert seats.run().outcome == ("not_due" if runs else "expired")


@FORMS
@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"runs": "1"}, "not_due"),
        ({}, "expired"),
        ({"state": "SOLD"}, "skipped"),
        ({"expires_at": 9_000_000_000_000}, "not_due"),
        ({"expires_at": "soon"}, "quarantined"),
    ],
)
def test_a_right_to_write_the_index_alone_moves_nothing(
    server: Server, client: redis.Redis, form: str, fields: dict[str, Any], outcome: str
) -> None:
    if server.binary.numbers < (7, 0):
        pytest.skip("selectors came with Redis 7.0")
    seats = seats_of(client, form)
    client.set("jobs:running:h1", 1)
    seats.run()
    if "runs" not in fields:
        client.delete("jobs:running:h1")
    seats.hold(**fields)
    command = "zadd" if "runs" in fields else "zrem"
    rules = f"on >pw ~* &* +@all -{command}".split()
    selector = f"(+{command} ~seats:ttl ~sweeperd:quarantine:*)"
    client.execute_command("ACL", "SETUSER", "limited", "reset", *rules, selector)
    before = seats.snapshot()
    try:
        with redis.Redis(port=server.port, username="limited", password="pw", protocol=2) as limited:
            seats.client = limited
            with pytest.raises(redis.ResponseError, match="no permissions"):
                seats.run()
    finally:
        seats.client = client
        client.execute_command("ACL", "DELUSER", "limited")
    assert seats.snapshot() == before
    assert seats.run().outcome == outcome


@FORMS
def test_how_late_an_entry_is_that_was_protected(client: redis.Redis, form: str) -> None:
    seats = seats_of(client, form)
    client.set("jobs:running:h1", 1)
    seats.run(at=DUE + 1)
    client.delete("jobs:running:h1")
    assert seats.run(at=DUE + 2).lag_ms == 0, "before the time of the next question"
    client.flushall()
    seats.show()
    seats.hold()
    client.set("jobs:running:h1", 1)
    seats.run(at=DUE + 1)
    client.delete("jobs:running:h1")
    client.hset("seats:hold:h1", "expires_at", DEADLINE + 40_000)
    assert seats.run(at=DUE + 40_000).outcome == "in_grace"
    assert seats.run(at=DUE + 40_001).lag_ms == 1, "from the end of the later grace on"


def test_the_time_of_the_next_question_is_of_redis(client: redis.Redis) -> None:
    seats = seats_of(client, "declared", unless_recheck="1h")
    client.set("jobs:running:h1", 1)
    assert seats.run().detail == "protected"
    score = client.zscore(seats.kind.index, ID)
    assert score
    ahead = score - time.time() * 1000
    assert 50 * MINUTE < ahead < 70 * MINUTE
