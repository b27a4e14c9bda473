"""The events that expire.lua writes, as an endpoint gets them."""

import json
from typing import Any

import pytest
import redis

from sweeperd.config import Format
from sweeperd.outbox import EventEncoder, OutboxEntry
from tests.integration.cli.conftest import expire
from tests.support.harness import reserve


@pytest.mark.parametrize("form", ["event", "cloudevents"])
def test_an_event_of_the_script(form: Format, client: redis.Redis) -> None:
    reserve(client, ["res-1"], amount=2**61)
    expire(client, ["res-1"])
    entries: Any = client.xrange("sweeperd:events")
    ((stream_id, fields),) = entries
    encoder, event = EventEncoder("default", b"", form), OutboxEntry.of(stream_id, 1, fields)
    message = encoder(event)
    assert message.sequence == f"default:{int(stream_id.split(b'-')[0]):020}-{0:020}"
    assert event.is_plain_expiry
    assert message.body == json.dumps(json.loads(message.body), separators=(",", ":")).encode()
    assert json.loads(message.body)["data"]["estimated_amount"] == 2**61
