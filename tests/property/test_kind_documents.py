"""Generated JSON: a script reads each text and number of a document as it stands there, and never fails in between."""

import json
from collections.abc import Iterator
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeperd.store.scripts import Call, Script, expand
from sweeperd.sweep.kind import Outcome
from tests.lua.kinds.forms import EACH
from tests.lua.kinds.test_forms import HOLD, loaded

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
#: The texts at these paths, each a JSON array of names, or false; or why the text is no object.
READ = Script(
    "read",
    expand(
        "-- @include kind_json\n"
        "local document, why = json_read.decoded(ARGV[1], '{')\n"
        "if not document then\n  return why\nend\n"
        "return json_read.row(document, cjson.decode(ARGV[2]))\n"
    ),
)
texts = st.one_of(st.text(max_size=8), st.sampled_from(['": 5,', "[1,-2]", '\\"', "\\", ",-0.5e3}", "{}", "é\x00"]))
numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([-0.0, 2**63, 1e300])
)
values = st.recursive(
    st.one_of(texts, numbers, st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)
documents = st.dictionaries(texts, values, max_size=6)
layouts = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 1]),
        "separators": st.sampled_from([None, (",", ":")]),
    }
)


def flat(document: dict[str, Any], *before: str) -> Iterator[tuple[list[str], bytes | None]]:
    """Each path with the text that is expected there."""
    for name, value in document.items():
        path = [*before, name]
        match value:
            case dict():
                yield path, None
                yield from flat(value, *path)
            case list() | None:
                yield path, None
            case bool():
                yield path, str(value).lower().encode()
            case str():
                yield path, value.encode()
            case _:
                yield path, json.dumps(value).encode()


@given(document=documents, layout=layouts)
@SETTINGS
def test_every_text_and_number_is_read_as_it_stands(
    client: redis.Redis, document: dict[str, Any], layout: dict[str, Any]
) -> None:
    expected = list(flat(document))
    reply: Any = READ.run(
        client, Call([], [json.dumps(document, **layout), json.dumps([path for path, _ in expected])])
    )
    assert reply == [text for _, text in expected]


@given(text=st.text(alphabet='{}[]",:-0123.eE \\nutf', max_size=30))
@SETTINGS
def test_any_text_is_read_or_refused(client: redis.Redis, text: str) -> None:
    reply: Any = READ.run(client, Call([], [text, "[]"]))
    if reply == []:
        assert text.lstrip(" ").startswith("{")
    else:
        assert reply in (b"not JSON", b"not a JSON object")
    try:
        accepted = isinstance(json.loads(text), dict)
    except ValueError:
        accepted = False
    if accepted:
        assert reply == []


rows = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {}, optional={"sku": st.sampled_from(["a", "b", "", "x:y"]), "qty": st.one_of(st.integers(-2, 4), values)}
        ),
        values,
    ),
    max_size=4,
)


@given(items=st.one_of(rows, values))
@settings(SETTINGS)
def test_all_elements_are_moved_or_none(client: redis.Redis, items: Any) -> None:
    stock = {f"stock:{sku}": {"hash": {"free": "0", "held": "5"}} for sku in ("a", "b", "x:y")}
    hold = HOLD | {
        "hash": HOLD["hash"] | {"items": json.dumps(items)},
        "keys": stock | {"carts:given": {"string": "0"}},
    }
    lab, sample = loaded(client, EACH, hold)
    before = lab.snapshot(sample)
    decision: Any = lab.run(b"h1")
    moved = {
        sku: [int(value) for value in lab.client.hmget(f"stock:{sku}", "free", "held")] for sku in ("a", "b", "x:y")
    }
    assert all(free + held == 5 and free >= 0 <= held for free, held in moved.values())
    if decision.outcome is Outcome.EXPIRED:
        wanted = sum(row["qty"] for row in items if row["sku"] in ("a", "b", "x:y"))
        assert sum(free for free, _ in moved.values()) == wanted
    else:
        assert decision.outcome is Outcome.QUARANTINED
        changed = lab.snapshot(sample).changed_since(before)
        assert changed == {b"seats:hold:h1", b"seats:ttl", b"sweeperd:quarantine:seat-hold"}
