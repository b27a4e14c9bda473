"""What the commands of operators say of configured kinds: show, status, expired."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import load
from sweeperd.ops.reconcile.faults import WalkStage
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.walk import reconcile
from sweeperd.store import Shard
from tests.integration.cli.conftest import Configured
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Sweeperd
from tests.support.builders import make_reconciler
from tests.support.harness import reserve, server_time
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

EXAMPLES = Path(__file__).parents[3] / "examples"
#: The deadline of what is overdue, and of what is not.
PAST, FUTURE = 1_700_000_000_000, 4_000_000_000_000
KINDS = (
    SEAT_HOLD
    + """tenant = "customer"
give_back = ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0", "LPUSH seats:log {id}"]
event = ["show", "qty"]
sums = [{ key = "seats:{show}", field = "held", of = "qty" }]

[[kinds]]
name = "lock"
index = "locks:ttl"
key = "locks:{id}"
deadline = "expires_at"
ended = { state = "EXPIRED" }
script = "file:lock.lua"
writes = ["owners:*"]
commands = ["HINCRBY"]
"""
)
LOCK = """
function decide(hash, now)
  if hash.state ~= 'HELD' then return 'skip', hash.state end
  if hash.odd then error('odd') end
  return 'expire'
end
function plan(hash)
  local held = get('HGET', 'owners:' .. hash.owner, 'held')
  return {{'HINCRBY', 'owners:' .. hash.owner, 'held', '-1'}}, {owner = hash.owner, before = held}
end
"""


class Kinds(Configured):
    """A hold and a lock, overdue and not yet swept."""

    def __init__(self, client: redis.Redis, run: Sweeperd, config: Path, url: str) -> None:
        super().__init__(client, run, config, url, KINDS)
        client.hset("seats:hamlet", mapping={"free": 7, "held": 3})
        client.hset("owners:ada", "held", 1)
        self.hold("h1", qty=3)
        self.lock("l1")

    def hold(self, entry: str, *, qty: object, deadline: int = PAST) -> None:
        hold_seats(self.client, entry, qty, deadline, customer="c1")

    def lock(self, entry: str, **fields: Any) -> None:
        lock: dict[Any, Any] = {"state": "HELD", "owner": "ada", "expires_at": PAST, **fields}
        self.client.hset(f"locks:{entry}", mapping=lock)
        self.client.zadd("locks:ttl", {entry: PAST})


@pytest.fixture
def kinds(server: Server, client: redis.Redis, sweeperd: Sweeperd, tmp_path: Path) -> Kinds:
    (tmp_path / "lock.lua").write_text(LOCK)
    return Kinds(client, sweeperd, tmp_path / "config.toml", server.url)


def shown(kinds: Kinds, *arguments: str) -> dict[str, Any]:
    ran = kinds.run("show", *arguments, "--json")
    assert ran.code == 0, ran.err
    check("show", ran.document)
    (only,) = ran.document["shards"]
    return dict(only)


def test_show_says_what_a_sweep_would_do_and_does_not_do_it(kinds: Kinds) -> None:
    dumps = {key: kinds.client.dump(key) for key in kinds.client.scan_iter()}
    hold = shown(kinds, "h1")
    assert (hold["kind"], hold["key"], hold["fields"]["qty"]) == ("seat-hold", "seats:hold:h1", "3")
    assert hold["sweep"]["outcome"] == "expired"
    assert ["HSET", "seats:hamlet", "free", "10", "held", "0"] in hold["sweep"]["writes"]
    assert ["LPUSH", "seats:log", "h1"] in hold["sweep"]["writes"]
    lock = shown(kinds, "l1", "--kind", "lock")
    assert (lock["kind"], lock["sweep"]["outcome"]) == ("lock", "expired")
    assert ["HSET", "owners:ada", "held", "0"] in lock["sweep"]["writes"]
    assert {key: kinds.client.dump(key) for key in kinds.client.scan_iter()} == dumps


def test_show_names_the_line_of_a_script_that_fails(kinds: Kinds) -> None:
    kinds.lock("l2", odd="1")
    assert "SCRIPT_ERROR: " in shown(kinds, "l2")["sweep"]["why"]
    predicted = shown(kinds, "l2")["sweep"]["why"].removeprefix("SCRIPT_ERROR: ")
    kinds.sweep()
    assert kinds.client.hget("locks:l2", "quarantine_detail") == predicted.encode()
    assert shown(kinds, "l2")["quarantined_at"] is not None


def test_show_finds_the_event_of_its_kind(kinds: Kinds) -> None:
    kinds.hold("same", qty=0)
    kinds.lock("same")
    kinds.sweep()
    assert shown(kinds, "same", "--kind", "lock")["event"]["fields"]["kind"] == "lock"
    assert shown(kinds, "same", "--kind", "seat-hold")["event"]["fields"]["kind"] == "seat-hold"
    ambiguous = kinds.run("show", "same")
    assert (ambiguous.code, "lock and seat-hold" in ambiguous.err, "--kind" in ambiguous.err) == (2, True, True)


@pytest.mark.parametrize(("kind", "taken"), [("seat-hold", False), ("lock", True), ("reservations", False)])
def test_a_script_alone_may_have_reasons_that_nobody_knows(kinds: Kinds, kind: str, taken: bool) -> None:
    ran = kinds.run("quarantine", "list", "--kind", kind, "--reason", "NO_OWNER")
    assert (ran.code, "'NO_OWNER'" in ran.err) == ((0, False) if taken else (2, True))


def test_status_has_a_row_for_each_kind(kinds: Kinds) -> None:
    kinds.hold("broken", qty="many")
    before = {row["kind"]: row for row in kinds.run("status", "--json").document["shards"][0]["kinds"]}
    assert (before["seat-hold"]["due"], before["lock"]["due"], before["lock"]["tick"]) == (2, 1, None)
    assert before["seat-hold"]["oldest_due_seconds"] > 3600
    kinds.sweep()
    document = kinds.run("status", "--json").document
    check("status", document)
    after = {row["kind"]: row for row in document["shards"][0]["kinds"]}
    assert (after["seat-hold"]["due"], after["seat-hold"]["quarantined"]) == (0, 1)
    assert (after["seat-hold"]["tick"]["expired"], after["lock"]["tick"]["expired"]) == (1, 1)
    reserve(kinds.client, ["r1", "r2"])
    kinds.hold("h9", qty=1)
    shown = {row["kind"]: row for row in kinds.run("status").rows}
    assert [(shown[kind]["alive"], shown[kind]["overdue"]) for kind in ("reservations", "seat-hold", "lock")] == [
        ("2", "2"),
        ("1", "1"),
        ("0", "0"),
    ]


def test_each_kind_counts_its_own_events(kinds: Kinds) -> None:
    reserve(kinds.client, ["r1", "r2", "r3"])
    for name in ("l2", "l3", "l4", "l5"):
        kinds.lock(name)
    kinds.sweep()
    reserve(kinds.client, ["late"])
    kinds.lock("late")
    (shard,) = kinds.run("status", "--json").document["shards"]
    rows = {row["kind"]: row for row in shard["kinds"]}
    expired = {kind: (row["expired"], round(60 * row["rate"])) for kind, row in rows.items()}
    assert expired == {"reservations": (3, 3), "seat-hold": (1, 1), "lock": (5, 5)}
    assert round(rows["lock"]["empty_in_seconds"]) in range(11, 14), "one in 12 s, at its own rate"
    assert (shard["rate"], shard["due"]["overdue"]) == (rows["reservations"]["rate"], 1)


def test_the_grace_of_a_kind_counts(kinds: Kinds) -> None:
    kinds.hold("h1", qty=2, deadline=server_time(kinds.client) - 60_000)
    kinds.config.write_text(KINDS.replace("[[kinds]]", '[[kinds]]\ngrace = "1h"', 1))
    (shard,) = kinds.run("status", "--json").document["shards"]
    row = next(row for row in shard["kinds"] if row["kind"] == "seat-hold")
    assert (row["due"], row["in_grace"], row["overdue"], row["exact"]) == (1, 1, 0, True)


def test_expired_of_one_kind(kinds: Kinds) -> None:
    reserve(kinds.client, ["r1"])
    kinds.sweep()

    def ids(*arguments: str) -> list[str]:
        lines = [json.loads(line) for line in kinds.run("expired", "--json", *arguments).out.splitlines()]
        return [line["data"].get("id", line["data"].get("reservation_id")) for line in lines]

    assert sorted(ids()) == ["h1", "l1", "r1"]
    assert ids("--kind", "seat-hold") == ["h1"]
    assert ids("--kind", "reservations") == ["r1"]
    assert kinds.run("expired", "--kind", "seat").code == 2


def test_reservations_that_are_not_swept_are_no_trouble(kinds: Kinds) -> None:
    kinds.config.write_text("[reservations]\nenabled = false\n" + KINDS)
    kinds.sweep()
    (shard,) = kinds.run("status", "--json").document["shards"]
    assert (shard["tick"], shard["quarantined"], len(shard["kinds"])) == (None, 0, 2)


def walked(kinds: Kinds, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = kinds.run("reconcile", "--kind", *arguments, "--json")
    check("reconcile", ran.document)
    (only,) = ran.document["shards"]
    return ran.code, dict(only)


def test_reconcile_finds_what_the_index_lost_and_repairs_it(kinds: Kinds) -> None:
    for entry in ("lost", "late", "aside", "ended"):
        kinds.hold(entry, qty=0, deadline=FUTURE)
    kinds.client.hset("seats:hold:ended", "state", "EXPIRED")
    kinds.client.zrem("seats:ttl", "lost", "aside", "ended")
    kinds.client.zadd("seats:ttl", {"orphan": FUTURE, "late": FUTURE + 1})
    kinds.client.zadd("sweeperd:quarantine:seat-hold", {"aside": 1})
    kinds.client.set("seats:hold:text", "no hash")
    code, report = walked(kinds, "seat-hold")
    assert (code, report["remaining"]) == (1, 3)
    assert {(each["fault"], each["id"], each["deadline"]) for each in report["findings"]} == {
        ("lost", "lost", str(FUTURE)),
        ("orphan", "orphan", None),
        ("wrong_score", "late", str(FUTURE)),
    }
    code, report = walked(kinds, "seat-hold", "--repair", "--yes")
    assert (code, report["mended"]) == (0, {"lost": 1, "orphan": 1, "wrong_score": 1, "short_ttl": 0})
    assert kinds.client.zrange("seats:ttl", 0, -1, withscores=True) == [
        (b"h1", PAST),
        (b"late", FUTURE),
        (b"lost", FUTURE),
    ]
    assert walked(kinds, "seat-hold")[0] == 0
    assert "\trepair\tindex of seat-hold\t3" in kinds.run("actions").out


def test_reconcile_compares_the_sums_that_a_kind_declares(kinds: Kinds) -> None:
    assert walked(kinds, "seat-hold")[0] == 0
    kinds.hold("h2", qty=5, deadline=FUTURE)
    kinds.hold("odd", qty="many", deadline=FUTURE)
    kinds.client.hset("seats:lear", mapping={"free": 0, "held": 2})  # no hold is left of it
    code, report = walked(kinds, "seat-hold", "--repair", "--yes")
    assert (code, report["unreadable"]) == (1, 1)
    assert [(each["key"], each["field"], each["holds"], each["sum"]) for each in report["findings"]] == [
        ("seats:hamlet", "held", 3, 8),
        ("seats:lear", "held", 2, 0),
    ]
    assert kinds.client.hget("seats:hamlet", "held") == b"3", "sums are reported and not changed"
    assert "seat-hold\tsum_drift\tseats:hamlet held\t3\t8\t-5" in kinds.run("reconcile", "--kind", "seat-hold").out
    told = kinds.run("reconcile", "--kind", "seat-hold").err
    assert "unreadable: 1 active hash (odd)" in told
    assert "dismiss" not in told, "a dismissed entry of a kind would be omitted as before"


def test_reconcile_goes_by_the_prefix(kinds: Kinds) -> None:
    kinds.config.write_text('[keys]\nprefix = "{t}:"\n' + KINDS)
    fields: dict[Any, Any] = {"state": "HELD", "show": "hamlet", "qty": 1, "customer": "c", "expires_at": FUTURE}
    kinds.client.hset("{t}:seats:hold:x", mapping=fields)
    kinds.client.hset("{t}:seats:hamlet", mapping={"free": 0, "held": 1})
    code, report = walked(kinds, "seat-hold")
    assert (code, [each["id"] for each in report["findings"]]) == (1, ["x"])


def test_reconcile_walks_the_only_kind(kinds: Kinds) -> None:
    kinds.config.write_text("[reservations]\nenabled = false\n" + SEAT_HOLD)
    kinds.client.zrem("seats:ttl", "h1")
    ran = kinds.run("reconcile", "--repair", "--yes", "--json")
    (report,) = ran.document["shards"]
    assert (ran.code, report["kind"], report["mended"]["lost"]) == (0, "seat-hold", 1)
    assert kinds.client.zscore("seats:ttl", "h1") == PAST
    assert "\trepair\tindex of seat-hold\t1" in kinds.run("actions").out


def test_reconcile_names_the_kinds_that_it_does_not_walk(kinds: Kinds) -> None:
    hint = "kinds are walked with --kind NAME: seat-hold, lock\n"
    assert kinds.run("reconcile").err.endswith(hint)
    others = ("--json",), ("--kind", "lock"), ("--last",)
    assert not any("--kind NAME" in kinds.run("reconcile", *words).err for words in others)


def daemon_walks(kinds: Kinds) -> None:
    settings = load(kinds.config, {"SWEEPERD_REDIS__URL": kinds.url, "SWEEPERD_RECONCILE__RATE": "1000000"})
    shard = Shard(settings.redis)
    try:
        reconciler = make_reconciler(settings, shard)
        for _ in range(2):  # the first time it does not walk
            reconciler.run_if_due()
    finally:
        shard.close()


def test_the_last_walk_of_the_daemon_over_a_kind(kinds: Kinds) -> None:
    none = kinds.run("reconcile", "--last")
    assert (none.code, "seat-hold" in none.err) == (3, True)
    kinds.hold("lost", qty=1, deadline=FUTURE)
    kinds.client.zrem("seats:ttl", "lost")
    kinds.lock("l2")
    kinds.client.zrem("locks:ttl", "l2")
    daemon_walks(kinds)
    kinds.client.zadd("seats:ttl", {"lost": FUTURE})  # what it found is shown as it was

    code, report = walked(kinds, "seat-hold", "--last")
    assert (code, report["found"]["lost"], report["found"]["sum_drift"], report["remaining"]) == (1, 1, 1, 2)
    assert report["started_at"] <= report["finished_at"]
    ran = kinds.run("reconcile", "--last", "--json")
    check("reconcile", ran.document)
    assert (ran.code, ran.document["found"], ran.document["remaining"]) == (1, 3, 3)
    assert {each["shard"] for each in ran.document["shards"]} == {"default"}
    lost = {each["kind"]: each["found"]["lost"] for each in ran.document["shards"]}
    assert lost == {"reservations": 0, "seat-hold": 1, "lock": 1}
    only = kinds.run("reconcile", "--last", "--kind", "reservations", "--json")
    assert (only.code, only.document["found"]) == (0, 0)
    assert [each["kind"] for each in only.document["shards"]] == ["reservations"]
    table = kinds.run("reconcile", "--last")
    assert "default\tseat-hold\tlost\tlost\t" in table.out
    assert "default\tlock\tlost\tl2\t" in table.out
    assert "lock: 2 hashes" in table.err


def test_without_reservations_the_last_walks_are_those_over_kinds(kinds: Kinds) -> None:
    kinds.config.write_text("[reservations]\nenabled = false\n" + KINDS)
    daemon_walks(kinds)
    ran = kinds.run("reconcile", "--last", "--json")
    check("reconcile", ran.document)
    assert (ran.code, [each["kind"] for each in ran.document["shards"]]) == (0, ["seat-hold", "lock"])
    assert kinds.run("reconcile", "--last").out.startswith("shard\tkind\tfault")


def test_status_names_the_kind_with_findings(kinds: Kinds) -> None:
    kinds.lock("l2")
    kinds.client.zrem("locks:ttl", "l2")
    (shard,) = kinds.run("status", "--json").document["shards"]
    assert [row["last_walk"] for row in shard["kinds"]] == [None, None, None]
    daemon_walks(kinds)
    document = kinds.run("status", "--json").document
    check("status", document)
    rows = {row["kind"]: row["last_walk"] for row in document["shards"][0]["kinds"]}
    assert rows.pop("reservations") is not None
    assert {kind: walk["findings"] for kind, walk in rows.items()} == {"seat-hold": 0, "lock": 1}
    assert rows["lock"]["found"]["lost"] == 1
    told = kinds.run("status").err
    assert "the last walk over lock, " in told
    assert "found 1 lost; see `sweeperd reconcile --repair --kind lock`" in told
    assert "over seat-hold" not in told


def test_a_script_that_is_broken_is_an_answer(kinds: Kinds) -> None:
    (kinds.config.parent / "lock.lua").write_text("local first = nil .. 'x'\n" + LOCK)
    kinds.client.zrem("locks:ttl", "l1")
    ran = kinds.run("reconcile", "--kind", "lock", "--json")
    check("reconcile", ran.document)
    (down,) = ran.document["down"]
    assert (ran.code, ran.document["shards"], "script file fails" in down["error"]) == (1, [], True)


def test_the_walk_tells_how_far_it_is(kinds: Kinds) -> None:
    kinds.client.mset({f"other:{number}": "" for number in range(1500)})
    kinds.client.hset("seats:hamlet", "held", 4)  # one too many, so that the sums are added up again
    settings = load(kinds.config, {"SWEEPERD_REDIS__URL": kinds.url})
    shard, told = Shard(settings.redis), list[tuple[WalkStage, int, int]]()
    try:
        subject = subject_of(shard, settings, "seat-hold")
        subject.progress = lambda *step: told.append(step)
        reconcile(subject)
    finally:
        shard.close()
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == list(WalkStage)[1:]
    assert all(0 < done <= total for _, done, total in told)
    last = {stage: (done, total) for stage, done, total in told}
    assert all(done == total for done, total in last.values()), "a bar ends full"
