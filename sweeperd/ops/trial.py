"""Sends signed test events to an endpoint."""

import json
import secrets
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, WithJsonSchema

from sweeperd.config import NO_TENANT, EndpointSettings, WebhooksSettings
from sweeperd.document import CommandDocument, Count, Document, Seconds
from sweeperd.outbox.event import Message, encode_as
from sweeperd.outbox.masking import Masker
from sweeperd.outbox.request import webhook_request
from sweeperd.store.shard import Shard

#: The type of a test event in the Cycles protocol, which no receiver mistakes for an expiry.
TEST_TYPE = "system.webhook_test"
#: How many characters of the response's body are shown.
BODY_SHOWN = 1024


def try_out(shard: Shard, endpoint: EndpointSettings, webhooks: WebhooksSettings, count: int = 1) -> "TrialDocument":
    """
    Sends `count` signed test events as the daemon would, in batches if the endpoint takes batches, until a request
    fails. Redis is only read, for the clock.
    """
    from sweeperd.delivery.webhook import KEPT, WebhookClient  # noqa: PLC0415  only a test sends: requests is large

    webhook = WebhookClient(endpoint, webhooks, shard.clock, 1, lambda _result: None)
    requests = accepted = 0
    try:
        while accepted < count:
            messages = _test_messages(shard, endpoint, count - accepted)
            request = webhook_request(messages, endpoint.format, batches=endpoint.batch_size > 1)
            exchange, requests = webhook.send_once(request), requests + 1
            if not exchange.outcome.delivered:
                break
            accepted += len(messages)
    finally:
        webhook.close()
    masker, outcome, sent = Masker(endpoint), exchange.outcome, exchange.request_headers
    body = exchange.response_body
    answered = dict(exchange.response_headers)  # joins the lines of a header
    return TrialDocument(
        endpoint=endpoint.name,
        delivered=outcome.delivered,
        result=outcome.reason,
        seconds=outcome.seconds,
        requests=requests,
        accepted=accepted,
        event_id=request.event_id,
        request=RequestDocument(
            method="POST",
            url=shown_url(endpoint),
            headers={name: masker.header(name, value) for name, value in sent.items()},
            body=request.body.decode(),
        ),
        response=ResponseDocument(
            status=outcome.status,
            headers={masker.text(name, sent): masker.text(value, sent) for name, value in answered.items()},
            body=masker.body(body, sent, answered, cut=len(body) == KEPT)[:BODY_SHOWN],
        ),
    )


def _test_messages(shard: Shard, endpoint: EndpointSettings, count: int) -> list[Message]:
    now_ms = shard.read_clock()
    first = _test_message(shard.name, endpoint, now_ms)
    fitting = min(count, endpoint.batch_size, max(1, endpoint.batch_bytes // (len(first.body) + 2)))
    return [first, *(_test_message(shard.name, endpoint, now_ms) for _ in range(fitting - 1))]


def _test_message(shard: str, endpoint: EndpointSettings, now_ms: int) -> Message:
    event_id, trace_id = f"evt_test_{secrets.token_hex(12)}", secrets.token_hex(16)
    data = {
        "component": "sweeperd",
        "message": "An operator tests this endpoint. Nothing has expired.",
        "severity": "info",
        "details": {"endpoint": endpoint.name, "test": True},
    }
    fields = {"type": TEST_TYPE, "tenant": NO_TENANT, "at": str(now_ms), "data": json.dumps(data), "trace_id": trace_id}
    encoded = {name.encode(): value.encode() for name, value in fields.items()}
    return encode_as(endpoint.format, shard, event_id, "", encoded)


def shown_url(endpoint: EndpointSettings) -> str:
    """The URL without user, password, query and fragment, which may be credentials; a query shows as `?…`."""
    url = urlsplit(endpoint.url.get_secret_value())
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}{'?…' if url.query else ''}"


class RequestDocument(Document):
    method: Literal["POST"]
    url: str
    headers: dict[str, str]
    body: str


class ResponseDocument(Document):
    status: int | None = Field(description="null without an answer.")
    headers: dict[str, str]
    body: str


class TrialDocument(CommandDocument, title="sweeperd endpoints test --json"):
    """The result of test events, with the last request. Secrets are masked, signatures truncated."""

    endpoint: str
    delivered: bool
    result: str = Field(description="The status, or why there was no answer.")
    seconds: Seconds
    requests: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})]
    accepted: Count = Field(description="How many events were accepted.")
    event_id: str = Field(description="Of the first event of the request.")
    request: RequestDocument
    response: ResponseDocument
