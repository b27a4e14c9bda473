"""Tests which `[[kinds]]` are accepted, and that each error names file and key."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import text

from sweeperd.config.kinds import any_match, may_overlap
from sweeperd.config.templates import Amount, Command, Field, parse_command, parse_word
from sweeperd.errors import ConfigError
from tests.support.fixtures import Load

SEATS = {
    "name": '"seat-hold"',
    "index": '"seats:ttl"',
    "key": '"seats:hold:{id}"',
    "deadline": '"expires_at"',
    "active": '{ state = "HELD" }',
    "ended": '{ state = "EXPIRED" }',
    "give_back": '["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"]',
    "event": '["show"]',
}


def toml(**changes: str | None) -> str:
    keys = {name: value for name, value in (SEATS | changes).items() if value is not None}
    return "[[kinds]]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items())


def test_a_kind_comes_to_commands_and_patterns(config: Load) -> None:
    (kind,) = config(toml()).kinds
    assert kind.key_parts == ("seats:hold:", "")
    assert kind.entry_patterns == ["seats:hold:*"]
    assert kind.write_patterns == ["seats:*"]
    assert kind.given_back == [
        Command("HINCRBY", ("seats:", Field("show")), (("free",),), Amount(field=Field("qty"))),
        Command("HINCRBY", ("seats:", Field("show")), (("held",),), Amount(field=Field("qty"), negative=True), "0"),
    ]
    assert kind.given_back[0].fields == (Field("show"), Field("qty"))
    assert (kind.grace_ms, kind.retention_ms) == (0, 7 * 86_400_000)


REFUSED: dict[str, list[tuple[str, str | None]]] = {
    "name": [
        *(
            (f'"{name}"', "reserved by sweeperd")
            for name in ("reservation", "reservations", "system", "webhook", "sweeperd")
        ),
        ('"Seat"', "lower-case"),
        ('"seat_hold"', "lower-case"),
    ],
    "key": [
        ('"seats"', "{id}"),
        ('"{id}"', "{id}"),
        ('"a:{id}:{id}"', "{id}"),
        ('"a:{id"', "brace"),
        ('"a:{x}"', "{id}"),
        ('"{id}_1"', "literal text"),
        ('"{id}s"', "literal text"),
        # With the id `weeperd:endpoints` and `eservation:res_1`.
        ('"s{id}"', "sweeperd's own"),
        ('"r{id}"', "reservation:* belongs to reservations"),
    ],
    "index": [
        ('"reservation:ttl"', "that of reservations"),
        ('"sweeperd:x"', "sweeperd's own"),
        ('""', "must not be empty"),
    ],
    "ended": [
        ("{}", "another value"),
        ('{ state = "HELD" }', "another value"),
        ('{ other = "EXPIRED" }', "another value"),
        ('{ state = "EXPIRED", expired_at = "1" }', "sweeperd itself"),
        ('{ state = "EXPIRED", expires_at = "1" }', "deadline"),
    ],
    "active": [
        ('{ state = ["HELD", "PAYING"] }', None),
        ("{ state = [] }", "must not be empty"),
        ('{ state = ["HELD", "EXPIRED"] }', "another value"),
    ],
    "over": [
        ('{ other = "SOLD" }', "active"),
        ('{ state = ["SOLD", "HELD"] }', "is active"),
        ("{ state = [] }", "must not be empty"),
        ("{ state = 1 }", "must be a list"),
        ('{ state = ["SOLD", "VOID"] }', None),
        ('{ state = "SOLD" }', None),
    ],
    "event": [
        ('["id"]', "sweeperd itself"),
        ('["expired_at"]', "sweeperd itself"),
        ('["a", "a"]', "once"),
        ('["a", "a:0"]', "once"),
        ('["points:0"]', None),
        ("['\"a:b\"']", None),
        ('["a:b"]', "after a colon"),
        ('["a:9223372036854775808"]', "up to 2^63-1"),
    ],
    "give_back": [
        ("['HINCRBY a {\"b:c\"} {points:0}']", None),
        ('["HINCRBY a b {qty:x}"]', "after a colon"),
        ('["HINCRBY a b {qty:-1}"]', "after a colon"),
        ('["HINCRBY a b {qty:0.5}"]', "after a colon"),
        ('["HINCRBY a b {qty:9223372036854775808}"]', "up to 2^63-1"),
        ('["HINCRBY a b {qty:9223372036854775807}"]', None),
        ('["SADD a {qty:9999999999999999999}"]', "up to 2^63-1"),
        ('["SADD a {id:5}"]', "{id} has no default"),
        ('["ZADD a {qty:9007199254740993} b"]', "not a score"),
        ('["PEXPIRE a {ms:0}"]', "not a time"),
        ('["SET a b PX {ms:1}"]', None),
        ('["hincrby a b 1"]', "did you mean HINCRBY?"),
        ('["EVAL x"]', "EVAL is not a command"),
        ('["HINCRBY a b"]', "the form is: HINCRBY key field amount"),
        ('["HINCRBY a b 1 MAX 3"]', "MIN"),
        ('["HINCRBY a b +1"]', "not an amount"),
        ('["HINCRBY a b 007"]', "not an amount"),
        ('["HINCRBY a b {qty}0"]', "not an amount"),
        ('["HINCRBY a b {id}"]', "not an amount"),
        ('["HSET a b"]', "the form is"),
        ('["HSET a b c d"]', "the form is"),
        ('["SET a b EX 3"]', "the form is"),
        ('["SET a b PX 0"]', "not a time"),
        ('["PEXPIRE a 0"]', "not a time"),
        ('["PEXPIRE a -{ms}"]', "not a time"),
        ('["ZADD a 1 b c"]', "the form is"),
        ('["ZADD a inf b"]', "not an amount"),
        ('["DEL a b"]', "the form is"),
        ('["SADD a {"]', "brace"),
        ('["SADD a {}"]', "brace"),
        ('["PUBLISH a b"]', "channels"),
        ('["SADD sweeperd:x {id}"]', "sweeperd's own"),
        ('["ZREM seats:ttl {id}"]', "is the index"),
        ('["HINCRBY budget:{x} remaining {qty}"]', "belongs to reservations"),
    ],
    "deadline": [
        ('"expired_at"', "sweeperd itself"),
        ('"quarantined_at"', "sweeperd itself"),
        ('"dismissed_at"', "sweeperd itself"),
    ],
    "retention": [('"7"', "a duration"), ('"36501d"', 'at most "36500d"'), ('"36500d"', None)],
    "max_writes": [("0", "at least 1"), ("257", "at most 256"), ("65", "need `each`"), ("1", "max_writes = 1")],
    "grace": [('"-1s"', "a duration"), ('"36501d"', 'at most "36500d"')],
    "max_wait": [('"366d"', 'at most "365d"')],
    "writes": [('["other:*"]', None)],
    "fields": [('["a"]', "script")],
    "reads": [('["a"]', "script")],
    "commands": [('["HSET"]', "script"), ('["hset"]', "did you mean HSET?"), ('["XADD"]', "only HSET")],
    "unless": [
        ('"GET jobs:{id}"', "the form is"),
        ('"EXISTS a b"', "the form is"),
        ('"EXISTS"', "the form is"),
        ('["EXISTS", ""]', "the form is"),
        ('"EXISTS jobs:{id"', "brace"),
        ('"EXISTS {job}"', "literal text"),
        ('"EXISTS seats:hold:{id}"', "every active entry would be protected"),
        ('{ state = "HELD" }', "every active entry would be protected"),
        ("{}", "names no field"),
        ('{ quarantined_at = "1" }', "sweeperd itself"),
        ('["EXISTS", "jobs of {id}"]', None),
        ('{ state = "HELD", paid = "yes" }', None),
    ],
    "unless_recheck": [('"1m"', "belongs to `unless`")],
    "unless_max": [('"1m"', "belongs to `unless`")],
    "protected": [('"expire"', "belongs to `unless`"), ('"drop"', "protected")],
    "script": [('"x.lua"', "file:PATH"), ('"file:missing.lua"', "cannot be read")],
}


@pytest.mark.parametrize(("key", "value", "problem"), [(k, v, p) for k, pairs in REFUSED.items() for v, p in pairs])
def test_it_is_refused_with_its_key(config: Load, key: str, value: str, problem: str | None) -> None:
    text = toml(**{key: value})
    if problem is None:
        config(text)
        return
    with pytest.raises(ConfigError, match=re.escape(problem)) as error:
        config(text)
    assert "config.toml: " in str(error.value)
    assert "kinds" in str(error.value)
    assert key in str(error.value) or problem in str(error.value)


def test_what_protects_an_entry(config: Load) -> None:
    (kind,) = config(toml(unless='"EXISTS jobs:{show}:{id}"')).kinds
    assert kind.unless_key == ("jobs:", Field("show"), ":", Field("id"))
    assert (kind.unless_recheck_ms, kind.unless_max_ms, kind.protected) == (30_000, None, "quarantine")
    assert "jobs:*:*" in kind.read_patterns
    with pytest.raises(ConfigError, match="needs unless_max"):
        config(toml(unless='{ paid = "yes" }', protected='"expire"'))
    more = {"unless_max": '"1h"', "protected": '"expire"', "unless_recheck": '"5s"'}
    (kind,) = config(toml(unless='{ paid = "yes" }', **more)).kinds
    assert (kind.unless_values, kind.unless_key) == ({"paid": "yes"}, None)
    assert (kind.unless_recheck_ms, kind.unless_max_ms) == (5000, 3_600_000)


def test_no_ended_is_needed_where_the_hash_goes_at_once(config: Load) -> None:
    (kind,) = config(toml(active=None, ended=None, retention='"0s"')).kinds
    assert kind.retention_ms == 0


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({}, r"config\.toml: kinds: two are named seat-hold$"),
        ({"name": '"other"'}, "the index seats:ttl is that of seat-hold"),
        ({"name": '"other"', "index": '"other"'}, "the same key"),
    ],
)
def test_two_kinds_that_meet_are_refused(config: Load, second: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(toml() + toml(**second))


def test_without_reservations_their_keys_are_free(config: Load) -> None:
    text = toml(
        index='"reservation:ttl"', key='"reservation:res_{id}"', give_back='["HINCRBY budget:{s} reserved -{a}"]'
    )
    with pytest.raises(ConfigError, match="reservations"):
        config(text)
    (kind,) = config(text + "[reservations]\nenabled = false\n").kinds
    assert kind.index == "reservation:ttl"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"writes": None}, "writes"),
        ({"ended": None}, "ended"),
        ({"active": '{ state = "HELD" }'}, "active"),
        ({"give_back": '["DEL seats:{x}"]'}, "give_back"),
        ({"event": '["show"]'}, "event"),
        ({"commands": '["PUBLISH"]'}, "channels"),
        ({}, None),
    ],
)
def test_a_script_takes_the_place_of_the_declaration(
    config: Load, tmp_path: Path, changes: dict[str, str | None], problem: str | None
) -> None:
    (tmp_path / "k.lua").write_text("x")
    script: dict[str, str | None] = {"active": None, "give_back": None, "event": None, "writes": '["seats:*"]'}
    text = toml(**(script | {"script": '"file:k.lua"'} | changes))
    if problem is None:
        (kind,) = config(text).kinds
        assert (kind.script, kind.read_patterns) == ("x", ["seats:*"])
    else:
        with pytest.raises(ConfigError, match=problem):
            config(text)


def test_words_are_split_before_they_are_filled() -> None:
    assert parse_command("SADD  a {b} c{d}e") == parse_command(["SADD", "a", "{b}", "c{d}e"])
    assert parse_command(["SADD", "a b", "{c d}"]).key == ("a b",)
    assert parse_command(["SADD", "a b", "{c d}"]).fields == (Field("c d"),)
    assert parse_word("{{{x}}}") == ("{", Field("x"), "}")


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("seats:*", "seats:1", True),
        ("seats:*", "xseats:1", False),
        ("a?c", "abc", False),
        ("a[b]", "a[b]", True),
        ("*:x", "a\nb:x", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
    ],
)
def test_only_the_star_is_special(pattern: str, key: str, matches: bool) -> None:
    assert any_match([pattern], key) is matches


@given(text("ab*", min_size=1), text("ab*", min_size=1), text("ab"))
def test_patterns_that_cannot_meet_have_no_key_in_common(one: str, other: str, key: str) -> None:
    if any_match([one], key) and any_match([other], key):
        assert may_overlap(one, other)


MEMBER = {
    "name": '"permit"',
    "index": '"permits"',
    "entry": '"member"',
    "member": '"{type}|{slot}"',
    "give_back": '["INCRBY used:{type} -1"]',
}
JSON = SEATS | {"entry": '"json"', "ended": None, "retention": '"0s"'}
EACH = SEATS | {"each": '"items"', "give_back": '["HINCRBY stock:{items.sku} free {items.qty:1}"]'}


@pytest.mark.parametrize("base", [MEMBER, JSON, EACH, SEATS | {"deadline": None, "unit": '"s"'}])
def test_other_forms_are_accepted(config: Load, base: dict[str, str | None]) -> None:
    (kind,) = config(toml(**(dict.fromkeys(SEATS) | base))).kinds
    assert kind.unit_ms in (1, 1000)


@pytest.mark.parametrize(
    ("base", "changes", "problem"),
    [
        (MEMBER, {"member": None}, "member: must name the parts"),
        (MEMBER, {"member": '"slots"'}, "must name the parts"),
        (MEMBER, {"member": '"{type}{slot}"'}, "must have a text between"),
        (MEMBER, {"member": '"{type}|{type}"'}, "each part once"),
        (MEMBER, {"member": '"{type}|{id}"'}, "none of them id"),
        (MEMBER, {"key": '"a:{id}"'}, 'key: does not go with entry = "member"'),
        (MEMBER, {"active": '{ type = "a" }'}, "active: does not go with"),
        (MEMBER, {"ended": '{ type = "a" }'}, "ended: does not go with"),
        (MEMBER, {"retention": '"0s"'}, "retention: does not go with"),
        (MEMBER, {"event": '["domain"]'}, "domain is not a part of member"),
        (JSON, {"retention": '"1d"'}, 'must be "0s"'),
        (JSON, {"ended": '{ state = "OVER" }'}, "ended: does not go with"),
        (JSON, {"member": '"{a}"'}, "member: does not go with"),
        (JSON, {"key": None}, "key: must name the key"),
        (SEATS, {"key": None}, "key: must name the key"),
        (SEATS, {"unit": '"us"'}, "unit"),
        (EACH, {"give_back": '["INCRBY a 1"]'}, "each: no template"),
        (EACH, {"event": '["items.sku"]'}, "only give_back"),
        (EACH | JSON | {"give_back": EACH["give_back"]}, {"event": '["items"]'}, "items is an array"),
    ],
)
def test_what_does_not_go_with_a_form(
    config: Load, base: dict[str, str | None], changes: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        config(toml(**(dict.fromkeys(SEATS) | base | changes)))
