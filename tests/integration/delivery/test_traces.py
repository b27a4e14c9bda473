"""The spans of deliveries, as a collector gets them from the sender in this process."""

import pytest

from sweeperd import tracing
from sweeperd.outbox import Message
from tests.support.collector import Collector
from tests.support.deliveries import Sender
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver

pytestmark = pytest.mark.usefixtures("bare_environment")


def test_the_span_of_a_delivery_tells_each_attempt_and_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message("evt_1", "reservation.expired", f"{1:032x}", b"{}")
    with Collector() as collector, Receiver(lambda *_: Answer(500)) as receiver:
        for name, value in collector.variables.items():
            monkeypatch.setenv(name, value)
        with tracing.tracing():
            sender = Sender(receiver.url, {"attempts": 2})
            sender.deliver(message)
            receiver.behaviour = lambda *_: Answer()
            sender.deliver(message)
        failed, delivered = eventually(lambda: spans if len(spans := collector.spans("deliver")) == 2 else None)
    assert (failed.error, [event["result"] for event in failed.events]) == ("HTTP 500", ["HTTP 500"] * 2)
    assert [event["seconds"] for event in failed.events] == [verdict.seconds for verdict in sender.verdicts[:2]]
    assert (delivered.error, [event["result"] for event in delivered.events]) == ("", ["HTTP 200"])
