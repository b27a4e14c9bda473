"""The endpoints: how each stands, pausing and resuming one, trying one out."""

import json
import re
import secrets
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from sweeperd.config import EndpointSettings, WebhooksSettings
from sweeperd.delivery.announcements import NO_TENANT, Announcements
from sweeperd.delivery.endpoint_state import CircuitStateStore, EndpointState, EndpointStateStore
from sweeperd.delivery.groups import ConsumerGroups
from sweeperd.delivery.outbox import Outbox, OutboxEntry, Pending
from sweeperd.delivery.payload import Message, message
from sweeperd.delivery.request import webhook_request
from sweeperd.delivery.sender import Exchange, WebhookClient
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.text import decode, rfc3339

#: The type of a test event, by the Cycles protocol: no receiver takes it for an expiry.
TEST_TYPE = "system.webhook_test"
#: The reason of a dead letter that an operator made.
SKIPPED = "an operator skipped it"
#: What is shown of a signature, and of the body of a response.
SIGNATURE_SHOWN, BODY_SHOWN = 12, 1024
HIDDEN = "***"
#: What is shorter is no secret, and to hide it everywhere would hide half of an answer.
SHORTEST_HIDDEN = 4

#: Headers of a request that hold no secret. What else there is comes from the configuration or the URL.
_OPEN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "traceparent",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "x-cycles-event-id",
        "x-cycles-event-type",
        "x-cycles-trace-id",
        "x-sweeperd-sequence",
    }
)
_SIGNATURES = frozenset({"webhook-signature", "x-cycles-signature"})


def pause(shard: Shard, name: str, reason: str, announced: Collection[str] = ()) -> EndpointState:
    """
    Stop sending to it, in all processes, within seconds. `announced`: the types of events that are made beside
    expiries. Raises redis.RedisError.
    """
    shard.read_clock()
    return EndpointStateStore(shard, Announcements(shard.clock, announced)).pause(name, reason)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of `resume`."""

    #: Whether it was paused or muted.
    was_resting: bool
    #: On how many processes its circuit was open.
    was_open_on: int
    #: How many parked events are due now.
    due: int


def resume(shard: Shard, name: str) -> Resumed:
    """
    Send again, in all processes, within seconds: end a pause and a mute, close the circuit, and end the waits of parked
    events. Raises redis.RedisError.
    """
    shard.read_clock()
    open_on = close_circuit(shard, name)
    due = ConsumerGroups(shard, "operator").make_due(name)
    return Resumed(EndpointStateStore(shard).resume(name), open_on, due)


def close_if_open(shard: Shard, name: str) -> None:
    """Close its circuit on all processes where it is open on one. Raises redis.RedisError."""
    shard.read_clock()
    if CircuitStateStore(shard).read(name).open:
        close_circuit(shard, name)


def close_circuit(shard: Shard, name: str) -> int:
    """Close its circuit on all processes, within seconds. Returns on how many it was open. Raises RedisError."""
    circuits = CircuitStateStore(shard)
    open_on = circuits.read(name).open_on
    circuits.close(name)
    return open_on


def skip(shard: Shard, name: str, event: str) -> str | None:
    """
    Give up on one pending event of an endpoint: it becomes a dead letter. `event`: its event id, or its stream id.
    Returns its stream id; None where no such event is pending. Raises redis.RedisError.
    """
    shard.read_clock()
    outbox = Outbox(shard, "operator")
    if name.encode() not in streams.groups(shard.client, shard.keys.events):
        return None
    for pending, fields in _pending(shard, outbox, name):
        if event in (pending.id.decode(), message(shard.origin, fields).event_id if fields else ""):
            entry = OutboxEntry(pending.id, pending.deliveries, fields)
            return pending.id.decode() if outbox.dead_letter(name, entry, SKIPPED) else None
    return None


def _pending(shard: Shard, outbox: Outbox, name: str) -> Iterator[tuple[Pending, dict[bytes, bytes]]]:
    """The pending events of an endpoint with their fields, which are empty where an event is in the stream no more."""
    previous: bytes | None = None
    while page := outbox.pending(name, previous):
        pipeline = shard.client.pipeline(transaction=False)
        for pending in page:
            pipeline.xrange(shard.keys.events, pending.id, pending.id)
        for pending, rows in zip(page, pipeline.execute(), strict=True):
            yield pending, rows[0][1] if rows else {}
        previous = page[-1].id


# ---- trying one out


@dataclass(frozen=True, slots=True)
class EndpointTest:
    """A test event and what came of it. No secret is in it: what is secret is HIDDEN, signatures are cut short."""

    endpoint: str
    url: str
    event_id: str
    request_headers: dict[str, str]
    request_body: str
    delivered: bool
    #: The status, or why there was none.
    result: str
    status: int | None
    response_headers: dict[str, str]
    response_body: str
    seconds: float


def try_out(shard: Shard, endpoint: EndpointSettings, webhooks: WebhooksSettings) -> EndpointTest:
    """
    Send one signed event of TEST_TYPE, once, as the daemon would. Nothing in Redis changes; its clock is read, because
    that is what the signature's time is. Raises redis.RedisError.
    """
    told = _test_message(endpoint.name, shard.read_clock())
    webhook = WebhookClient(endpoint, webhooks, shard.clock, 1, lambda _result: None, threading.Event())
    request = webhook_request([told], endpoint.format, batches=endpoint.batch_size > 1)
    try:
        exchange = webhook.send_once(request)
    finally:
        webhook.close()
    hide = _Hider(endpoint, exchange)
    outcome = exchange.outcome
    return EndpointTest(
        endpoint.name,
        shown_url(endpoint),
        told.event_id,
        {name: hide.header(name, value) for name, value in exchange.request_headers.items()},
        told.body.decode(),
        outcome.delivered,
        outcome.reason,
        outcome.status,
        {name: hide.text(value) for name, value in exchange.response_headers.items()},
        hide.body(exchange),
        outcome.seconds,
    )


def _test_message(endpoint: str, now_ms: int) -> Message:
    event_id, trace_id = f"evt_test_{secrets.token_hex(12)}", secrets.token_hex(16)
    body = {
        "event_id": event_id,
        "event_type": TEST_TYPE,
        "category": "system",
        "timestamp": rfc3339(now_ms),
        "tenant_id": NO_TENANT,
        "actor": {"type": "system"},
        "source": "sweeperd",
        "data": {
            "component": "sweeperd",
            "message": "An operator tests this endpoint. Nothing has expired.",
            "severity": "info",
            "details": {"endpoint": endpoint, "test": True},
        },
        "trace_id": trace_id,
    }
    return Message(event_id, TEST_TYPE, trace_id, json.dumps(body, separators=(",", ":")).encode())


class _Hider:
    """Hides what is secret in a request, and in an answer that repeats it."""

    def __init__(self, endpoint: EndpointSettings, exchange: Exchange) -> None:
        url = urlsplit(endpoint.url.get_secret_value())
        proxy = urlsplit(endpoint.proxy.get_secret_value() if endpoint.proxy else "")
        secret = {url.password or "", url.query, proxy.password or ""}
        for name, value in exchange.request_headers.items():
            if name.lower() in _SIGNATURES:
                secret.update(value.split())
            elif name.lower() not in _OPEN_HEADERS:
                secret.add(value)
        # Keys themselves are sent nowhere, but who answers with one has it.
        secret.update(key.get_secret_value() for key in endpoint.secrets)
        longest_first = sorted((text for text in secret if len(text) >= SHORTEST_HIDDEN), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def header(self, name: str, value: str) -> str:
        if name.lower() in _SIGNATURES:
            return " ".join(f"{part[:SIGNATURE_SHOWN]}…" for part in value.split())
        return value if name.lower() in _OPEN_HEADERS else HIDDEN

    def text(self, value: str) -> str:
        return value if self._secrets is None else self._secrets.sub(HIDDEN, value)

    def body(self, exchange: Exchange) -> str:
        coding = {name.lower(): value for name, value in exchange.response_headers.items()}.get("content-encoding")
        if coding:
            return f"({self.text(coding)}, not shown)"
        return self.text(decode(exchange.response_body))[:BODY_SHOWN]


def shown_url(endpoint: EndpointSettings) -> str:
    """Its URL without user, password, query and fragment, which may be credentials; a query shows as `?…`."""
    url = urlsplit(endpoint.url.get_secret_value())
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}{'?…' if url.query else ''}"
