"""The body of a webhook: the event and the CloudEvent of an entry of the outbox."""

import json
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given, strategies

from sweeperd.config import Format
from sweeperd.outbox import EventEncoder, Message, OutboxEntry, message
from sweeperd.outbox.event import EXPIRY_FIELDS
from sweeperd.outbox.request import webhook_request

TRACE = "0123456789abcdef0123456789abcdef"
EVENT = {
    b"id": b"r1",
    b"tenant": b"acme",
    b"scope": b"tenant:acme/workspace:prod",
    b"unit": b"TOKENS",
    b"amount": b"500",
    b"created_at": b"1700000000123",
    b"expires_at": b"1700000060123",
    b"expired_at": b"1700000065456",
    b"grace_ms": b"5000",
    b"extensions": b"2",
    b"missing": b"[]",
    b"closed": b"[]",
    b"trace_id": TRACE.encode(),
}


def body(prefix: bytes = b"", without: bytes = b"", **fields: bytes) -> dict[str, Any]:
    """The event's JSON, with these fields changed and that one missing."""
    changed = EVENT | {name.encode(): value for name, value in fields.items()}
    changed.pop(without, None)
    parsed: dict[str, Any] = json.loads(message(prefix, changed).body)
    return parsed


def event_id(prefix: bytes = b"", **fields: bytes) -> str:
    found: str = body(prefix, **fields)["event_id"]
    return found


# ---- the event


def test_balances_for_the_endpoint_that_asks() -> None:
    balances = {"tenant:acme": {"remaining": -(2**63), "reserved": 2**63 - 1}, "\\xff": {"remaining": 1, "reserved": 0}}
    text = b'{"tenant:acme":{"remaining":-9223372036854775808,"reserved":9223372036854775807},'
    event = OutboxEntry.of(b"1-0", 1, EVENT | {b"balances": text + b'"\xff":{"remaining":1,"reserved":0}}'})
    assert event.is_plain_expiry
    forms: list[Format] = ["event", "cloudevents"]
    for form in forms:
        told, plain = (
            json.loads(EventEncoder("a", b"", form, balances=wanted)(event).body)["data"] for wanted in (True, False)
        )
        assert told.pop("balances") == balances
        assert told == plain
    assert "balances" not in json.loads(message(b"", event.fields).body)["data"]
    older = EventEncoder("a", b"", balances=True)(OutboxEntry.of(b"1-0", 1, EVENT))
    assert "balances" not in json.loads(older.body)["data"]
    for text in (b"[]", b"[" * 5000):
        broken = EventEncoder("a", b"", balances=True)(OutboxEntry.of(b"1-0", 1, EVENT | {b"balances": text}))
        assert "balances" not in json.loads(broken.body)["data"]


def test_the_body() -> None:
    told = message(b"", EVENT)
    assert json.loads(told.body) == {
        "event_id": told.event_id,
        "event_type": "reservation.expired",
        "category": "reservation",
        "timestamp": "2023-11-14T22:14:25.456Z",
        "tenant_id": "acme",
        "scope": "tenant:acme/workspace:prod",
        "actor": {"type": "system"},
        "source": "sweeperd",
        "data": {
            "reservation_id": "r1",
            "scope": "tenant:acme/workspace:prod",
            "unit": "TOKENS",
            "estimated_amount": 500,
            "created_at": "2023-11-14T22:13:20.123Z",
            "expires_at": "2023-11-14T22:14:20.123Z",
            "expired_at": "2023-11-14T22:14:25.456Z",
            "ttl_ms": 60000,
            "grace_ms": 5000,
            "extensions_used": 2,
            "missing_budgets": [],
            "closed_budgets": [],
        },
        "trace_id": TRACE,
    }
    assert told == Message(told.event_id, "reservation.expired", TRACE, told.body)


#: Field of the stream -> keys of the body that need it, `data`'s with a dot before.
NEEDED = {
    b"id": {".reservation_id"},
    b"tenant": {"tenant_id"},
    b"scope": {"scope", ".scope"},
    b"unit": {".unit"},
    b"amount": {".estimated_amount"},
    b"created_at": {".created_at", ".ttl_ms"},
    b"expires_at": {".expires_at", ".ttl_ms"},
    b"expired_at": {"timestamp", ".expired_at"},
    b"grace_ms": {".grace_ms"},
    b"extensions": {".extensions_used"},
    b"missing": set(),
    b"trace_id": {"trace_id"},
}


def keys(event: dict[str, Any]) -> set[str]:
    return set(event) | {f".{key}" for key in event["data"]}


@pytest.mark.parametrize("field", NEEDED, ids=bytes.decode)
def test_what_is_unknown_is_left_out(field: bytes) -> None:
    for event in (body(without=field), *([] if field == b"missing" else [body(**{field.decode(): b""})])):
        assert keys(event) == keys(body()) - NEEDED[field]
        assert None not in (*event.values(), *event["data"].values())


@pytest.mark.parametrize("field", ["amount", "created_at", "expires_at", "expired_at", "grace_ms", "extensions"])
@pytest.mark.parametrize("value", [b"many", b"-1", b"1.5", b" 1", "²".encode(), b"1" * 20, b"\xff"])
def test_a_number_that_is_none_is_left_out(field: str, value: bytes) -> None:
    assert keys(body(**{field: value})) == keys(body()) - NEEDED[field.encode()]


@pytest.mark.parametrize("value", [b"nonsense", b"[", b"\xff", b"[" * 5000])
def test_missing_budgets_that_cannot_be_told_are_left_out(value: bytes) -> None:
    assert keys(body(missing=value)) == keys(body()) - {".missing_budgets"}


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\xff", b"[1]", b"null", b"[" * 5000])
@pytest.mark.parametrize("form", ["event", "cloudevents"])
def test_the_data_of_a_foreign_writer_that_are_no_object_are_left_out(form: Format, value: bytes) -> None:
    """Such an entry is delivered and listed like any other."""
    entry = OutboxEntry.of(b"1-1", 1, EVENT | {b"data": value})
    event = json.loads(EventEncoder("one", b"", form)(entry).body)
    assert event["data"] == ({} if form == "event" else {"tenant_id": "acme"})


@pytest.mark.parametrize(
    ("data", "written"),
    [(b'{"rate": 1e-7}', b'"data":{"rate":1e-07}'), (b'{"name": "caf\xe9"}', rb'"data":{"name":"caf\\xe9"}')],
)
def test_the_data_of_an_operational_event(data: bytes, written: bytes) -> None:
    """As the standard library writes them; a byte that is not UTF-8 is shown."""
    assert written in message(b"", EVENT | {b"type": b"webhook.failing", b"data": data}).body


def test_a_moment_beyond_the_calendar_is_left_out() -> None:
    event = body(expires_at=b"9007199254740992")
    assert keys(event) == keys(body()) - {".expires_at"}
    assert event["data"]["ttl_ms"] == 9007199254740992 - 1700000000123


def test_nothing_is_known() -> None:
    event = json.loads(message(b"", {}).body)
    assert set(event) == {"event_id", "event_type", "category", "actor", "source", "data"}


@pytest.mark.parametrize("amount", [0, 2**53 + 1, 2**63 - 1])
def test_amounts_are_exact(amount: int) -> None:
    raw = message(b"", EVENT | {b"amount": str(amount).encode()}).body
    assert f'"estimated_amount":{amount},'.encode() in raw


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"a b:c\nd", "a b:c\nd"),
        ("réservé".encode(), "réservé"),
        (b"\xff\xfe-1", "\\xff\\xfe-1"),
        (b'"quoted"\\', '"quoted"\\'),
        (b"\x00", "\x00"),
    ],
)
def test_any_bytes_are_shown(value: bytes, shown: str) -> None:
    event = body(id=value, tenant=value, scope=value, unit=value)
    data = event["data"]
    told = data["reservation_id"], event["tenant_id"], event["scope"], data["scope"], data["unit"]
    assert told == (shown,) * 5


@pytest.mark.parametrize("name", ["missing", "closed"])
def test_budgets_left_alone(name: str) -> None:
    data = body(**{name: b'["tenant:acme","a\\"b"]'})["data"]
    assert data[f"{name}_budgets"] == ["tenant:acme", 'a"b']


def test_missing_budgets_that_are_not_utf8() -> None:
    """The script copies a scope's bytes into its JSON as they are."""
    assert body(missing=b'["tenant:\xff","ok"]')["data"]["missing_budgets"] == ["tenant:\\xff", "ok"]


def test_event_id() -> None:
    assert event_id() == event_id()
    assert event_id().startswith("evt_")
    assert event_id() == event_id(trace_id=b"ffff", amount=b"1", missing=b'["x"]'), "only the expiry counts"
    others = [
        event_id(),
        event_id(b"{tenant-a}:"),
        event_id(expired_at=b"1700000065457"),
        event_id(tenant=b"globex"),
        event_id(id=b"r2"),
        event_id(tenant=b"acmer", id=b"1"),
        event_id(b"a", tenant=b"cme"),
        event_id(id=b"\xff"),
        event_id(id=b"\\xff"),
    ]
    assert len(set(others)) == len(others)


#: An event that is no expiry, as the stream has it.
PAUSED = {
    b"type": b"webhook.disabled",
    b"tenant": b"__system__",
    b"id": b"billing",
    b"at": b"1700000065456",
    b"data": b'{"disable_reason":"gone"}',
}


def test_the_event_id_of_an_event_that_is_no_expiry() -> None:
    """An endpoint can be paused twice, and fail on two events within a millisecond."""
    assert message(b"", PAUSED).event_id == message(b"", PAUSED | {b"trace_id": b"ffff"}).event_id
    others = [
        PAUSED,
        PAUSED | {b"id": b"audit"},
        PAUSED | {b"type": b"system.webhook_delivery_failed"},
        PAUSED | {b"at": b"1700000065457"},
        PAUSED | {b"data": b'{"disable_reason":"moving"}'},
    ]
    assert len({message(b"", fields).event_id for fields in others}) == len(others)


@pytest.mark.parametrize(("form", "key"), [("event", "timestamp"), ("cloudevents", "time")])
def test_the_time_of_an_event_that_is_no_expiry(form: Format, key: str) -> None:
    told = json.loads(EventEncoder("seats", b"", form)(OutboxEntry.of(STREAM_ID, 1, PAUSED)).body)
    assert (told[key], told["data"]) == ("2023-11-14T22:14:25.456Z", {"disable_reason": "gone"} | _tenant(form))


def _tenant(form: Format) -> dict[str, str]:
    """A CloudEvent has the tenant in its data."""
    return {"tenant_id": "__system__"} if form == "cloudevents" else {}


def test_times_are_utc() -> None:
    created_at = body()["data"]["created_at"]
    assert datetime.fromisoformat(created_at) == datetime.fromtimestamp(1700000000.123, UTC)


# ---- the encoder of an endpoint

STREAM_ID = b"1700000065456-3"
SEQUENCE = "seats:00000001700000065456-00000000000000000003"


def test_the_encoder_makes_the_same_event() -> None:
    plain = message(b"origin", EVENT)
    assert EventEncoder("seats", b"origin")(OutboxEntry.of(STREAM_ID, 1, EVENT)) == plain._replace(sequence=SEQUENCE)


def test_sequences_sort_as_the_stream_does() -> None:
    ids = [b"999-9", b"999-10", b"1000-0", b"1700000000000-0", b"18446744073709551615-18446744073709551615"]
    sequences = [EventEncoder("seats", b"")(OutboxEntry.of(stream_id, 1, EVENT)).sequence for stream_id in ids]
    assert sequences == sorted(sequences)
    assert {len(sequence) for sequence in sequences} == {len(SEQUENCE)}


def test_a_cloud_event() -> None:
    encoded = EventEncoder("seats", b"", "cloudevents")(OutboxEntry.of(STREAM_ID, 1, EVENT))
    # The library has no batches; it reads an element as it reads a single event.
    event = JSONFormat().read(CloudEvent, encoded.body)
    assert event.get_attributes() == {
        "specversion": "1.0",
        "id": message(b"", EVENT).event_id,
        "source": "/sweeperd/seats",
        "type": "reservation.expired",
        "subject": "r1",
        "time": datetime(2023, 11, 14, 22, 14, 25, 456000, UTC),
        "datacontenttype": "application/json",
        "sequence": SEQUENCE,
    }
    assert event.get_data() == {"tenant_id": "acme"} | body()["data"]


def test_what_is_unknown_is_left_out_of_a_cloud_event() -> None:
    encoded = EventEncoder("seats", b"", "cloudevents")(OutboxEntry.of(STREAM_ID, 1, {}))
    assert JSONFormat().read(CloudEvent, encoded.body).get_data() == {"missing_budgets": [], "closed_budgets": []}


#: The bytes of an everyday event. A receiver may have kept their hash, so they stay the same from version to version.
BODIES: dict[Format, bytes] = {
    "event": (
        b'{"event_id":"evt_98b9e90f6546011b9cda2942f7d2c665","event_type":"reservation.expired","category"'
        b':"reservation","timestamp":"2023-11-14T22:14:25.456Z","tenant_id":"acme","scope":"tenant:acme/wo'
        b'rkspace:prod","actor":{"type":"system"},"source":"sweeperd","data":{"reservation_id":"r1","scope'
        b'":"tenant:acme/workspace:prod","unit":"TOKENS","estimated_amount":500,"created_at":"2023-11-14T2'
        b'2:13:20.123Z","expires_at":"2023-11-14T22:14:20.123Z","expired_at":"2023-11-14T22:14:25.456Z","t'
        b'tl_ms":60000,"grace_ms":5000,"extensions_used":2,"missing_budgets":[],"closed_budgets":[]},"trac'
        b'e_id":"0123456789abcdef0123456789abcdef"}'
    ),
    "cloudevents": (
        b'{"specversion":"1.0","id":"evt_98b9e90f6546011b9cda2942f7d2c665","source":"/sweeperd/seats","typ'
        b'e":"reservation.expired","subject":"r1","time":"2023-11-14T22:14:25.456Z","datacontenttype":"app'
        b'lication/json","sequence":"seats:00000001700000065456-00000000000000000003","data":{"tenant_id":'
        b'"acme","reservation_id":"r1","scope":"tenant:acme/workspace:prod","unit":"TOKENS","estimated_amo'
        b'unt":500,"created_at":"2023-11-14T22:13:20.123Z","expires_at":"2023-11-14T22:14:20.123Z","expire'
        b'd_at":"2023-11-14T22:14:25.456Z","ttl_ms":60000,"grace_ms":5000,"extensions_used":2,"missing_bud'
        b'gets":[],"closed_budgets":[]}}'
    ),
}


@pytest.mark.parametrize("form", ["event", "cloudevents"])
def test_the_bytes_of_an_everyday_event(form: Format) -> None:
    entry = OutboxEntry.of(STREAM_ID, 1, EVENT)
    assert EventEncoder("seats", b"origin", form)(entry).body == BODIES[form]
    batch = EventEncoder("seats", b"origin", form, batches=True).request([entry, entry])
    bodies = [json.loads(BODIES[form])] * 2
    assert json.loads(batch.body) == bodies


def standard(body: bytes) -> bytes:
    """What the standard library writes in place of this JSON."""
    return json.dumps(json.loads(body), separators=(",", ":")).encode()


def test_each_character_is_written_as_the_standard_library_writes_it() -> None:
    for value in {value for code in range(256) for value in (bytes([code]), chr(code).encode())}:
        body = message(b"", EVENT | {b"id": value}).body
        assert body == standard(body)
        assert json.loads(body)["data"]["reservation_id"] == value.decode(errors="backslashreplace")


odd = strategies.sampled_from(
    [b"", b'"', b"\\", b"\n", b"\xff", b"%s", b"<id>", b"1001", b"[]", b'["a"]', b"007", b"0", "é".encode(), b"-1"]
)
plain_text = strategies.text(alphabet=string.ascii_letters + string.digits + " :/._-%<>", min_size=1).map(str.encode)
amounts = strategies.integers(0, 2**63 - 1).map(lambda number: b"%d" % number)
times = strategies.integers(0, 10**14).map(lambda number: b"%d" % number)
entries = strategies.fixed_dictionaries(
    dict.fromkeys([b"id", b"tenant", b"scope", b"unit", b"trace_id"], plain_text | odd)
    | dict.fromkeys([b"amount", b"grace_ms", b"extensions"], amounts | odd)
    | dict.fromkeys([b"created_at", b"expires_at", b"expired_at"], times | odd)
    | dict.fromkeys([b"missing", b"closed"], strategies.just(b"[]") | odd),
    optional=dict.fromkeys([b"only_for", b"type", b"kind"], odd),
).map(lambda fields: {name: fields[name] for name in EXPIRY_FIELDS} | fields)  # in the script's order


@pytest.mark.parametrize("form", ["event", "cloudevents"])
@given(entry=entries, without=strategies.sets(strategies.sampled_from(sorted(EVENT)), max_size=1))
@example(entry=EVENT, without=set())
@example(entry=EVENT | {b"created_at": b"1700000060124"}, without=set())
@example(entry=EVENT | {b"created_at": b"9" * 19, b"expires_at": b"0"}, without=set())
@example(entry=EVENT | {b"type": b"webhook.disabled", b"data": b'{"a":1e22,"b":"\\ud800"}'}, without=set())
@example(entry=EVENT | {b"type": b"webhook.disabled", b"data": b'{"a":1e-7}'}, without=set())
def test_an_event_is_written_as_the_standard_library_writes_it(
    form: Format, entry: dict[bytes, bytes], without: set[bytes]
) -> None:
    fields = {name: value for name, value in entry.items() if name not in without}
    body = EventEncoder("seats", b"origin", form)(OutboxEntry.of(STREAM_ID, 1, fields)).body
    assert body == standard(body)


@pytest.mark.parametrize("form", ["event", "cloudevents"])
@given(events=strategies.lists(entries | strategies.just(EVENT), min_size=1, max_size=5))
@example(events=[EVENT, EVENT | {b"kind": b"seat"}])
@example(events=[EVENT, EVENT | {b"missing": b'["tenant:acme"]'}])
def test_a_batch_holds_the_events(form: Format, events: list[dict[bytes, bytes]]) -> None:
    encoder = EventEncoder("seats", b"origin", form, batches=True)
    ids = [b"1700000065456-%d" % number for number in range(len(events))]
    taken = [OutboxEntry.of(name, 1, fields) for name, fields in zip(ids, events, strict=True)]
    sent, messages = encoder.request(taken), list(map(encoder, taken))
    messages[0] = messages[0]._replace(sequence="seats:00000001700000065456-00000000000000000000")
    assert sent == webhook_request(messages, form, batches=True)
    assert json.loads(sent.body) == [json.loads(each.body) for each in messages]
