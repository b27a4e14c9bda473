"""The receiver of the benchmarks: what it answers, when, and what it counts."""

import socket

import pytest

from benchmarks.receiver import ANSWER, Receiver
from sweeperd.outbox import Message
from tests.support.deliveries import Sender

pytestmark = pytest.mark.usefixtures("bare_environment")

DELAY = 0.02


def test_it_answers_after_the_delay_and_counts() -> None:
    with Receiver(DELAY) as receiver:
        sender = Sender(receiver.url)
        for event_id in ("evt_1", "evt_2", "evt_1"):
            verdict = sender.deliver(Message(event_id, "reservation.expired", "", b"{}"))
            assert verdict.status == 204
            assert verdict.seconds >= DELAY
        tally = receiver.tally()
        assert (tally.requests, tally.distinct) == (3, 2)
        assert tally.last - tally.first >= 3 * DELAY
        assert tally.rate == pytest.approx(2 / (tally.last - tally.first))
        receiver.begin()
        assert receiver.tally().requests == 0
        sender.webhook.close()


def test_requests_in_pieces_and_side_by_side() -> None:
    head = b"POST /hook HTTP/1.1\r\nContent-Length: 4\r\nwebhook-id: evt_%d\r\n\r\n"
    with Receiver(DELAY) as receiver:
        place = receiver.url.removeprefix("http://").partition("/")[0].split(":")
        connections = [socket.create_connection((place[0], int(place[1])), timeout=5) for _ in range(8)]
        for number, connection in enumerate(connections):
            connection.sendall(head % number)
            connection.sendall(b"bo")
        assert receiver.tally().requests == 0, "none is complete"
        for connection in connections:
            connection.sendall(b"dy")
        assert [connection.recv(1024) for connection in connections] == [ANSWER] * len(connections)
        assert receiver.tally().distinct == len(connections)
        for connection in connections:
            connection.close()
