"""Which events the template takes. That it writes the same as the dicts is tested where those are: in test_payload."""

from collections.abc import Sequence

import pytest

from sweeperd.config import Format
from sweeperd.outbox.event import EXPIRY_FIELDS, Filled, Template
from tests.unit.outbox.test_payload import EVENT, TRACE

ODD: list[dict[str, bytes]] = [{"id": b'"'}, {"amount": b"007"}, {"expired_at": b"1"}, {"missing": b'["tenant:acme"]'}]


def values(**changed: bytes) -> Sequence[bytes]:
    """An everyday event, with these fields changed."""
    event = EVENT | {name.encode(): value for name, value in changed.items()}
    return [event[name] for name in EXPIRY_FIELDS]


@pytest.mark.parametrize("form", ["event", "cloudevents"])
def test_a_batch_of_everyday_events_is_filled_at_once(form: Format) -> None:
    """Event by event it would come to the same, and cost twice as much."""
    template = Template("seats", b"origin", form)
    events, sequences = [values(), values(id=b"r2", tenant=b"b")], ["seats:1", "seats:2"]
    messages = [message for each in zip(events, sequences, strict=True) if (message := template.message(*each))]
    ids, bodies = [message.event_id for message in messages], [message.body for message in messages]
    assert template.fill(events, sequences) == Filled(ids, [TRACE] * 2, b",".join(bodies))


@pytest.mark.parametrize("event", [None, *(values(**changed) for changed in ODD)])
def test_a_batch_with_one_odd_event_is_not_filled(event: Sequence[bytes] | None) -> None:
    template = Template("seats", b"origin", "event")
    assert template.fill([values(), event], ["seats:1", "seats:2"]) is None
    assert event is None or template.message(event, "seats:2") is None
