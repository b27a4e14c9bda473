"""The webhook of a configured kind."""

import json
from typing import Any

from sweeperd.outbox import EventEncoder, OutboxEntry, message

FIELDS = {
    b"type": b"seat-hold.expired",
    b"kind": b"seat-hold",
    b"id": b"h1",
    b"tenant": b"c1",
    b"expires_at": b"1700000000000",
    b"expired_at": b"1700000001000",
    b"trace_id": b"0" * 32,
    b"missing": b"[]",
    b"data.show": b"s1",
    b"data.id_of_hall": b"7",
}


def body(fields: dict[bytes, bytes], origin: bytes = b"") -> dict[str, Any]:
    read: dict[str, Any] = json.loads(message(origin, fields).body)
    return read


def test_it_carries_the_kind_and_its_fields() -> None:
    told = body(FIELDS)
    assert told.pop("event_id").startswith("evt_")
    assert told == {
        "event_type": "seat-hold.expired",
        "category": "seat-hold",
        "timestamp": "2023-11-14T22:13:21.000Z",
        "tenant_id": "c1",
        "actor": {"type": "system"},
        "source": "sweeperd",
        "data": {
            "id": "h1",
            "expires_at": "2023-11-14T22:13:20.000Z",
            "expired_at": "2023-11-14T22:13:21.000Z",
            "show": "s1",
            "id_of_hall": "7",
        },
        "trace_id": "0" * 32,
    }


def test_counters_that_did_not_exist_are_named() -> None:
    assert body(FIELDS | {b"missing": b'["seats:s1"]'})["data"]["missing"] == ["seats:s1"]


def test_the_tenant_is_left_out_where_there_is_none() -> None:
    assert "tenant_id" not in body(FIELDS | {b"tenant": b""})


def test_own_fields_never_replace_sweeperds() -> None:
    assert body(FIELDS | {b"data.id": b"forged"})["data"]["id"] == "h1"


def test_two_kinds_with_one_id_in_one_millisecond_have_two_event_ids() -> None:
    ids = {message(b"", FIELDS | {b"kind": kind}).event_id for kind in (b"seat-hold", b"lock")}
    ids.add(message(b"", {name: value for name, value in FIELDS.items() if name != b"kind"}).event_id)
    assert len(ids) == 3


def test_both_formats_and_the_header_name_the_type() -> None:
    for format_, key in (("event", "event_type"), ("cloudevents", "type")):
        sent = EventEncoder("default", b"", format_)(OutboxEntry.of(b"1-0", 1, FIELDS))  # type: ignore[arg-type]
        assert sent.event_type == json.loads(sent.body)[key] == "seat-hold.expired"
