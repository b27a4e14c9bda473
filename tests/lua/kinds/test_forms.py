"""Each form of an entry: JSON, a member, several elements; and deadlines that are scores, in ms or in seconds."""

import json
from dataclasses import replace
from typing import Any

import pytest
import redis

from sweeperd.kit.lab import NEIGHBOURS, Lab
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import DEADLINE, Sample, derived_samples, sample_of
from sweeperd.store.shard import Shard
from sweeperd.sweep import Decision
from sweeperd.sweep.explanation import explain
from tests.lua.kinds.forms import BACK, EACH, FORMS, JOB, JSON, MEMBER, ORDER, SCORED, without
from tests.lua.kinds.world import SEATS, scripted, settings_of
from tests.support.builders import make_sweeper

HOLD: dict[str, Any] = {
    "id": "h1",
    "hash": {"state": "HELD", "show": "s1", "qty": "3", "customer": "c1"},
    "keys": {"seats:s1": {"hash": {"free": "10", "held": "5"}}},
}


def lab_of(client: Any, kind: dict[str, Any]) -> Lab:
    settings = settings_of(kind, reservations=False)
    return Lab(client, settings, settings.kinds[0])


def loaded(client: Any, kind: dict[str, Any], row: dict[str, Any] = HOLD) -> tuple[Lab, Sample]:
    lab = lab_of(client, kind)
    sample = sample_of(row, lab.settings)
    lab.load(sample)
    return lab, sample


def run(lab: Lab, entry: bytes = b"h1", **more: Any) -> Decision:
    decision = lab.run(entry, **more)
    assert isinstance(decision, Decision), decision
    return decision


def why(decision: Decision) -> tuple[str, str, str]:
    return decision.outcome.value, decision.detail, decision.why


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_proved(name: str) -> None:
    settings = settings_of(FORMS[name], reservations=False)
    (kind,) = settings.kinds
    row = HOLD | {"after": {"keys": {"seats:s1": {"hash": {"free": "13", "held": "2"}}}}}
    if kind.entry == "member":
        row = {"id": "call|c1|s", "keys": {"permits:c1": {"hash": {"used": "3"}}}}
    samples = [sample_of(row, kind)] if kind.script else derived_samples(kind)
    proofs = {proof.name: proof.failure for proof in prove(settings, kind, samples)}
    assert not any(proofs.values()), proofs


# ---- the score is the deadline


@pytest.mark.every_redis
@pytest.mark.parametrize(("unit", "text"), [("ms", b"1700000000000"), ("s", b"1700000000"), ("s", b"1699999999.9996")])
def test_the_score_is_the_deadline(client: Any, unit: str, text: bytes) -> None:
    lab, _ = loaded(client, SCORED | {"unit": unit})
    client.zadd(lab.kind.index, {b"h1": text})
    before = client.zscore(lab.kind.index, b"h1")
    assert run(lab, at=DEADLINE).outcome == "not_due"
    assert client.zscore(lab.kind.index, b"h1") == before
    assert run(lab, at=DEADLINE + 1).outcome == "expired"
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"expires_at"] == b"1700000000000"
    assert (run(lab).outcome, client.xlen(lab.keys.events)) == ("not_found", 2), "the same call once more"


def test_a_kind_may_name_no_field(client: Any) -> None:
    kind = {key: SCORED[key] for key in ("name", "index", "key")} | {"retention": "0s"}
    lab, _ = loaded(client, kind)
    assert run(lab).outcome == "expired"
    assert run(lab).outcome == "not_found"


@pytest.mark.every_redis
@pytest.mark.parametrize("unit", ["ms", "s"])
def test_a_score_that_stands_for_a_deadline_has_a_note(client: Any, unit: str) -> None:
    lab, _ = loaded(client, SCORED | {"unit": unit, "grace": "1s"} | JOB)
    client.set("jobs:h1", "1")
    deadline, again = DEADLINE // lab.kind.unit_ms, DEADLINE + 1001 + 7 * 60_000
    decision = run(lab, at=DEADLINE + 1001)
    assert (decision.outcome, decision.detail) == ("not_due", "protected")
    note = client.hget(lab.kind.notes, "h1")
    assert note == f"{deadline} {again if unit == 'ms' else f'{again / 1000:.3f}'}".encode()
    assert client.zscore(lab.kind.index, "h1") == again / lab.kind.unit_ms
    client.delete("jobs:h1")
    decision = run(lab, at=again + 3)
    assert (decision.outcome, decision.lag_ms) == ("expired", 3), "late by what it waited after the protection"
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"expires_at"] == b"%d" % DEADLINE, "of the note"
    assert not client.hexists(lab.kind.notes, "h1")


@pytest.mark.parametrize(("seen_after", "outcome"), [(0, "not_due"), (500, "in_grace")])
def test_another_score_is_a_renewal_and_ends_the_note(client: Any, seen_after: int, outcome: str) -> None:
    lab, _ = loaded(client, SCORED | {"grace": "1s"} | JOB)
    client.set("jobs:h1", "1")
    run(lab, at=DEADLINE + 1001)
    renewed = DEADLINE + 9_000_000
    client.zadd(lab.kind.index, {"h1": renewed})
    client.delete("jobs:h1")
    assert run(lab, at=renewed + seen_after).outcome == outcome
    assert not client.hexists(lab.kind.notes, "h1")
    assert run(lab, at=renewed + 1000).outcome == "in_grace"
    assert run(lab, at=renewed + 1001).outcome == "expired"
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"expires_at"] == b"%d" % renewed


def test_a_script_that_waits_keeps_the_deadline_of_a_score(client: Any) -> None:
    until = DEADLINE + 60_000
    script = f"""
function decide(_, now)
  if now < {until} then return 'wait', {until} end
  return 'expire'
end
function plan() return {{}} end
"""
    lab, _ = loaded(client, without(scripted(script), "deadline"))
    assert run(lab, at=DEADLINE + 1).outcome == "not_due"
    assert client.zscore(lab.kind.index, "h1") == until
    assert run(lab, at=until).outcome == "expired"
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"expires_at"] == b"%d" % DEADLINE


@pytest.mark.parametrize(("unit", "score"), [("ms", DEADLINE // 1000), ("s", -1), ("ms", "-inf")])
def test_a_score_that_is_no_deadline_is_set_aside(client: Any, unit: str, score: Any) -> None:
    lab, _ = loaded(client, SCORED | {"unit": unit})
    client.zadd(lab.kind.index, {"h1": score})
    assert why(run(lab))[:2] == ("quarantined", "INVALID_EXPIRY")


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("1700000000", 0),
        ("1700000000.5", 500),
        ("1700000000.0004", 0),
        ("1700000000." + "0" * 21, 0),
        ("1700000000." + "0" * 22, None),
        ("1700000000000", None),
        ("1e9", None),
        ("-1", None),
    ],
)
def test_a_deadline_in_seconds(client: Any, text: str, due: int | None) -> None:
    lab, _ = loaded(client, SEATS | {"unit": "s"})
    client.hset("seats:hold:h1", "expires_at", text)
    if due is None:
        assert why(run(lab))[:2] == ("quarantined", "INVALID_EXPIRY")
        return
    assert run(lab, at=DEADLINE + due).outcome == "not_due"
    assert client.zscore(lab.kind.index, "h1") == float(text)
    assert run(lab, at=DEADLINE + due + 1).outcome == "expired"
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"expires_at"] == b"%d" % (DEADLINE + due)


def test_a_deadline_in_ms_is_whole(client: Any) -> None:
    lab, _ = loaded(client, SEATS)
    client.hset("seats:hold:h1", "expires_at", f"{DEADLINE}.5")
    assert why(run(lab))[:2] == ("quarantined", "INVALID_EXPIRY")


def test_notes_that_hold_no_longer_are_dropped(client: Any, shard: Shard) -> None:
    lab, _ = loaded(client, JSON | JOB | {"deadline": None}, {**HOLD, "hash": {}, "json": {"state": "HELD"}})
    client.zadd(lab.kind.quarantine, {"aside": 1})
    client.hset(lab.kind.notes, mapping={"h1": "1 2", "aside": "1 ", "gone": "1 2"})
    marks = {"aside": "INVALID_PLAN x", "gone": "INVALID_PLAN", "h1": "dismissed 1", "gone-string": "dismissed 1"}
    client.hset(lab.kind.marks, mapping=marks | {"kept": "dismissed 1"})
    client.set("carts:kept", "{}")
    make_sweeper(shard, lab.kind).backlog()
    assert set(client.hkeys(lab.kind.notes)) - {*NEIGHBOURS} == {b"h1", b"aside"}
    assert set(client.hkeys(lab.kind.marks)) - {*NEIGHBOURS} == {b"aside", b"kept"}


@pytest.mark.parametrize("key", ["notes", "marks"])
def test_a_key_of_another_type_moves_nothing(client: Any, key: str) -> None:
    lab, sample = loaded(client, MEMBER, {"id": "call|c1|s"})
    name = getattr(lab.kind, key)
    client.delete(name)
    client.set(name, "text")
    client.set("permits:c1", "no hash, so it would be quarantined")
    before = lab.snapshot(sample)
    assert isinstance(lab.run(b"call|c1|s"), redis.ResponseError)
    assert not lab.snapshot(sample).changed_since(before)


def test_what_an_unlisted_entry_would_do_is_asked_without_a_write(client: Any, shard: Shard) -> None:
    lab, _ = loaded(client, SCORED)
    client.zrem(lab.kind.index, "h1")
    client.hset("seats:hold:h1", "state", "SOLD")
    before = lab.snapshot(sample_of(HOLD, lab.settings))
    (explanation,) = explain(shard, lab.kind, [b"h1"], 1)
    assert explanation.decision.outcome == "skipped", "for the walk: it has ended and is not lost"
    assert run(lab).outcome == "not_found"
    assert not lab.snapshot(sample_of(HOLD, lab.settings)).changed_since(before)


# ---- JSON


def cart(client: Any, text: str, **kind: Any) -> Lab:
    lab = lab_of(client, JSON | kind)
    client.flushall()
    client.set("carts:h1", text)
    client.hset("seats:s1", mapping={"free": 10, "held": 9_007_199_254_740_995})
    client.zadd(lab.kind.index, {"h1": DEADLINE})
    return lab


def text_of(**fields: Any) -> str:
    return json.dumps({"state": "HELD", "show": "s1", "customer": "c1", "expires": {"at": DEADLINE}} | fields)


#: The length of a filler that makes the text 65,536 bytes.
ROOM = 65_536 - len(text_of(filler=""))


@pytest.mark.every_redis
@pytest.mark.parametrize("qty", ["3", "9007199254740993", "0"])
@pytest.mark.parametrize("show", ["s1", r": 5, \"x", r"\u0073\u0031", "[1,2]", r"\\"])
def test_numbers_are_exact_and_texts_stay(client: Any, qty: str, show: str) -> None:
    lab = cart(client, text_of(show="SHOW", order={"qty": "QTY"}).replace('"QTY"', qty).replace("SHOW", show))
    key = "seats:" + json.loads(client.get("carts:h1") or "")["show"]
    client.hset(key, mapping={"free": 10, "held": 9_007_199_254_740_995})
    assert run(lab).outcome == "expired"
    assert client.hget(key, "held") == b"%d" % (9_007_199_254_740_995 - int(qty))
    assert not client.exists("carts:h1")
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert event[b"data.order.qty"] == qty.encode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"paid": True}, ("expired", "", "")),
        ({"show": None}, ("quarantined", "MISSING_FIELD", "show")),
        ({"show": {"a": 1}}, ("quarantined", "MISSING_FIELD", "show")),
        ({"state": None}, ("quarantined", "INVALID_STATE", "state")),
        ({"expires": DEADLINE}, ("quarantined", "INVALID_EXPIRY", "expires.at")),
        ({"order": {"qty": 1.5}}, ("quarantined", "INVALID_PLAN", "no amount: 1.5")),
        ({"order": {"qty": -3}}, ("quarantined", "INVALID_PLAN", "no amount: -3")),
        ({"state": "SOLD"}, ("skipped", "SOLD", "")),
        ({"filler": "x" * ROOM}, ("expired", "", "")),
        ({"filler": "x" * (ROOM + 1)}, ("quarantined", "INVALID_JSON", "more than 65536 bytes")),
    ],
)
def test_values_of_json(client: Any, fields: dict[str, Any], expected: tuple[str, str, str]) -> None:
    lab = cart(client, text_of(**fields))
    assert why(run(lab)) == expected
    if expected[0] == "quarantined":
        assert client.get("carts:h1") == text_of(**fields).encode()
        assert client.hget(lab.kind.marks, "h1") == f"{expected[1]} {expected[2]}".encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, ("not_found", "", "")), ("", ("quarantined", "INVALID_JSON", "not a JSON object"))],
)
def test_a_key_that_is_gone_is_not_an_empty_one(client: Any, text: str | None, expected: tuple[str, str, str]) -> None:
    lab = cart(client, text or "")
    if text is None:
        client.delete("carts:h1")
    assert why(run(lab)) == expected
    assert client.zscore(lab.kind.index, "h1") is None


def test_a_name_in_quotes_is_no_path(client: Any) -> None:
    gives_back = ["HINCRBY seats:{show} free {order.qty}", 'HINCRBY seats:{show} held -{"order.qty"}']
    lab = cart(client, text_of(order={"qty": 3}, **{"order.qty": 5}), give_back=gives_back, event=[])
    client.hset("seats:s1", "held", 5)
    assert run(lab).outcome == "expired"
    assert client.hmget("seats:s1", "free", "held") == [b"13", b"0"]


def test_a_script_extends_no_json(client: Any) -> None:
    script = "function decide(_, now) return 'extend', now + 10000000 end function plan() return {} end"
    lab = lab_of(client, without(scripted(script), "ended") | {"entry": "json", "retention": "0s"})
    text = json.dumps({"state": "HELD", "expires_at": DEADLINE})
    client.set("seats:hold:h1", text)
    client.zadd(lab.kind.index, {"h1": DEADLINE})
    expected = ("quarantined", "SCRIPT_ERROR", "extend: the deadline of entry = json cannot be written")
    assert why(run(lab)) == expected
    assert client.get("seats:hold:h1") == text.encode()


# ---- a member


@pytest.mark.every_redis
@pytest.mark.parametrize("member", [b"call|a|1", b"call|a|1|2", b"call||", b"|\xff|\n"])
def test_a_member_is_the_entry(client: Any, member: bytes) -> None:
    lab = lab_of(client, MEMBER | {"give_back": ["INCRBY used -1"]})
    client.flushall()
    client.set("used", 5)
    client.zadd(lab.kind.index, {member: DEADLINE, b"other": DEADLINE})
    decision = run(lab, member)
    type_, name, slot = member.split(b"|", 2)
    assert (decision.outcome, decision.tenant) == ("expired", name)
    (_, event), *_ = client.xrevrange(lab.keys.events, count=1)
    assert [event[b"data." + part] for part in (b"type", b"client", b"slot")] == [type_, name, slot]
    assert (run(lab, member).outcome, client.get("used")) == ("not_found", b"4"), "no score, no entry"
    assert client.zrange(lab.kind.index, 0, -1) == [b"other"]
    client.zadd(lab.kind.index, {member: DEADLINE})
    assert (run(lab, member).outcome, client.get("used")) == ("expired", b"3"), "there again, it is a new entry"


@pytest.mark.parametrize(
    ("template", "member", "fits"),
    [
        ("{a}", b"", True),
        ("x{a}|{b}y", b"x|y", True),
        ("x{a}|{b}y", b"x|", False),
        ("x{a}|{b}y", b"a|y", False),
        ("{a}||{b}", b"1|2||3||4", True),
        ("{a}ab", b"aab", True),
        ("aa{a}aa", b"aaa", False),
    ],
)
def test_what_fits(client: Any, template: str, member: bytes, fits: bool) -> None:
    lab = lab_of(client, MEMBER | {"member": template, "tenant": None, "give_back": [], "event": ["a"]})
    client.zadd(lab.kind.index, {member: DEADLINE})
    assert run(lab, member, proven=False).outcome == ("expired" if fits else "held")
    if not fits:
        assert why(run(lab, member)) == ("quarantined", "INVALID_MEMBER", f"it does not fit {template}")


# ---- each


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"sku": f"p{number}", "qty": number, **more}


@pytest.mark.every_redis
def test_a_template_is_repeated_for_each_element(client: Any) -> None:
    stock = {f"stock:p{n}": {"hash": {"free": "0", "held": str(n)}} for n in range(1, 128)}
    items = [line(number) for number in range(1, 128)]
    hold = HOLD | {
        "hash": HOLD["hash"] | {"items": json.dumps(items)},
        "keys": stock | {"carts:given": {"string": "1"}},
    }
    lab, _ = loaded(client, EACH, hold)
    assert run(lab).outcome == "expired"
    assert [client.hmget(f"stock:p{n}", "free", "held") for n in (1, 127)] == [[b"1", b"0"], [b"127", b"0"]]
    assert client.get("carts:given") == b"2"


def test_the_array_of_a_hash_is_read_where_no_event_tells_it(client: Any) -> None:
    stock = {"stock:p3": {"hash": {"free": "0", "held": "3"}}, "carts:given": {"string": "1"}}
    hold = HOLD | {"hash": HOLD["hash"] | {"items": json.dumps([line(3)])}, "keys": stock}
    lab, _ = loaded(client, EACH | {"event": []}, hold)
    assert run(lab).outcome == "expired"
    assert client.hmget("stock:p3", "free", "held") == [b"3", b"0"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("[]", ("expired", "", "")),
        (None, ("quarantined", "MISSING_FIELD", "items")),
        ('{"sku": 1}', ("quarantined", "INVALID_PLAN", "items: not a JSON array")),
        ("[1]", ("quarantined", "INVALID_PLAN", "element 1 of items is not an object")),
        (json.dumps([line(1), {"sku": "p2"}]), ("quarantined", "MISSING_FIELD", "items.qty of element 2")),
        (json.dumps([line(1), line(2, qty=-1)]), ("quarantined", "INVALID_PLAN", "no amount: -1")),
        (json.dumps([line(1), line(2, qty=9)]), ("quarantined", "INVALID_PLAN", "below MIN 0: stock:p2 held")),
        (json.dumps([line(1, qty=2), line(1, qty=3)]), ("quarantined", "INVALID_PLAN", "below MIN 0: stock:p1 held")),
        (json.dumps([line(1)] * 128), ("quarantined", "INVALID_PLAN", "items has 128 elements, which need more")),
    ],
)
def test_all_elements_are_checked_before_the_first_write(
    client: Any, items: str | None, expected: tuple[str, str, str]
) -> None:
    stock = {f"stock:p{n}": {"hash": {"free": "0", "held": "4"}} for n in (1, 2)}
    fields = {name: text for name, text in {**HOLD["hash"], "items": items}.items() if text is not None}
    lab, _ = loaded(client, EACH, HOLD | {"hash": fields, "keys": stock | {"carts:given": {"string": "1"}}})
    outcome, reason, cause = why(run(lab))
    assert (outcome, reason) == expected[:2]
    assert cause.startswith(expected[2])
    if outcome == "quarantined":
        assert client.hmget("stock:p1", "free", "held") == [b"0", b"4"]
        assert client.get("carts:given") == b"1"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], ("expired", "", "")),
        ([{"sku": "p1"}], ("expired", "", "")),
        ({"sku": "p1"}, ("quarantined", "INVALID_PLAN", "order.items: not a JSON array")),
    ],
)
def test_elements_of_a_json_entry(client: Any, items: Any, expected: tuple[str, str, str]) -> None:
    lab = cart(client, text_of(order={"items": items}), **ORDER)
    client.hset("stock:p1", "free", 1)
    assert why(run(lab)) == expected
    assert client.hget("stock:p1", "free") == (b"2" if items == [{"sku": "p1"}] else b"1")


def test_a_renewal_between_two_sweeps_counts(client: Any) -> None:
    lab, sample = loaded(client, SCORED | {"give_back": BACK})
    lab.load(replace(sample, due=DEADLINE + 60_000))
    assert run(lab, at=DEADLINE + 1).outcome == "not_due"
    assert client.zscore(lab.kind.index, "h1") == DEADLINE + 60_000
