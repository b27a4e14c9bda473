"""
The receivers, in place of delivery's transport: what each answers, how long it takes, which replies are lost, and a
book of every event that it has accepted.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import requests

from proof.simulation import kernel as kernels


@dataclass(slots=True)
class Acceptance:
    """One event that a receiver has accepted."""

    at: float
    event_id: str
    host: str
    #: Whether sweeperd got the answer.
    answered: bool


@dataclass
class Behaviour:
    """What a receiver does at the moment: how likely each sort of trouble is, and how long an answer takes, seconds."""

    slow: tuple[float, float] = (0.001, 0.05)
    fails: float = 0.0
    hangs: float = 0.0
    loses: float = 0.0
    too_many: float = 0.0
    gone: bool = False
    #: Refuses each event whose reservation's number is divisible by this number; 0: none.
    poison: int = 0


@dataclass
class Receiver:
    """One endpoint's receiver."""

    name: str
    random: random.Random
    behaviour: Behaviour = field(default_factory=Behaviour)
    accepted: dict[str, list[Acceptance]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0
    #: When it last answered 410; monotonic.
    gone_at: float | None = None
    #: Called with each newly accepted event.
    observe: Callable[["Receiver", str, Acceptance], None] = lambda *_: None

    def answer(self, headers: dict[str, str], body: bytes, timeout: float) -> Any:
        """Handle one request. Raises requests.RequestException if no answer comes."""
        kernel, how, draw = kernels.KERNEL, self.behaviour, self.random.random
        self.requests += 1
        if how.hangs and draw() < how.hangs:
            kernel.pause(timeout)
            raise requests.ReadTimeout("read timed out")
        seconds = self.random.uniform(*how.slow)
        if seconds >= timeout:
            kernel.pause(timeout)
            raise requests.ReadTimeout("read timed out")
        kernel.pause(seconds)
        if how.gone:
            self.gone_at = kernel.now
            return response(410)
        if how.fails and draw() < how.fails:
            if draw() < 0.3:
                raise requests.ConnectionError("connection refused")
            return response(self.random.choice([500, 502, 503, 404, 401]))
        if how.too_many and draw() < how.too_many:
            return response(429, {"Retry-After": str(self.random.randint(1, 8))})
        events = read_events(headers, body)
        if how.poison and any(number(key) % how.poison == 0 for key, _ in events):
            return response(self.random.choice([400, 422]))
        lost = bool(how.loses and draw() < how.loses)
        host = kernel.current.host.name if kernel.current else ""
        for key, event_id in events:
            acceptance = Acceptance(kernel.now, event_id, host, not lost)
            self.accepted[key].append(acceptance)
            self.observe(self, key, acceptance)
        if lost:
            kernel.pause(self.random.uniform(0, 0.5))
            raise requests.ConnectionError("connection reset")
        return response(self.random.choice([200, 202, 204]))


def number(key: str) -> int:
    """The number in the id of an entry."""
    return int(key.rpartition("-")[2])


def read_events(headers: dict[str, str], body: bytes) -> list[tuple[str, str]]:
    """The entry and the id of each event in a request."""
    whole = json.loads(body)
    found = []
    for event in whole if isinstance(whole, list) else [whole]:
        if "webhook_test" in (event.get("event_type") or event["type"]):
            continue
        data = event["data"]
        found.append((data.get("reservation_id") or data["id"], event.get("event_id") or event["id"]))
    return found


def response(status: int, headers: dict[str, str] | None = None) -> Any:
    """An answer without a body, as urllib3 gives it."""
    return SimpleNamespace(status=status, headers=headers or {}, closed=True, release_conn=lambda: None)


def transport(receivers: dict[str, Receiver]) -> type:
    """In place of `sweeperd.delivery.http.Transport`: the receiver is chosen by the host of the URL."""

    class Transport:
        def __init__(self, endpoint: Any, headers: Any, _connections: int, _connect: float, timeout: float) -> None:
            self._receiver = receivers[urlsplit(endpoint.url.get_secret_value()).hostname or ""]
            self._headers, self._timeout = headers, timeout

        def request(self, headers: dict[str, str], body: bytes) -> Any:
            return SimpleNamespace(headers=self._headers | headers, body=body)

        def send(self, request: Any) -> Any:
            return self._receiver.answer(request.headers, request.body, self._timeout)

        def tidy(self) -> None:
            """Nothing is open."""

        def close(self) -> None:
            """Nothing is open."""

    return Transport
