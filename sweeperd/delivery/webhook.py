"""
Signs webhooks to one endpoint, sends them, and retries them quickly.

With an asymmetric key (`whsk_`) the receiver needs the public key only, and cannot sign in sweeperd's name. Such keys
need the cryptography package, an extra: only functions about such keys import the package.
"""

import base64
import functools
import hashlib
import hmac
import http.client
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import requests
import tenacity
import urllib3
import urllib3.exceptions

from sweeperd import __version__, progress, tracing
from sweeperd.config import EndpointSettings, WebhooksSettings
from sweeperd.config.secrets import ed25519_pair, hmac_key
from sweeperd.delivery.http import DeliveryResult, Result, Transport, failed, judge
from sweeperd.outbox import WebhookRequest
from sweeperd.outbox.masking import Masker
from sweeperd.store import Clock
from sweeperd.tracing import Span
from sweeperd.webhook_keys import PRIVATE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The strategies of tenacity decide about a retry; nothing of it sleeps.
_NO_RETRYING = tenacity.Retrying()
#: How much of a response is read, bytes. If a response is read to the end, the connection can be used again.
RESPONSE_LIMIT = 64 * 1024
#: In how many pieces a response is read at most: each takes CPU time, and the receiver chooses the size of its chunks.
PIECES = 256
#: How much of a response's body is kept for `endpoints test`, bytes.
KEPT = 4 * 1024
#: `Retry-After` mutes the endpoint by Redis's clock, and a reading of that clock may be late by so much, seconds.
CLOCK_ERROR = 0.1


def private_key(secret: str) -> "Ed25519PrivateKey":
    """The key of a secret `whsk_…`. Raises ValueError, ImportError without the extra."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    return Ed25519PrivateKey.from_private_bytes(ed25519_pair(secret)[0])


def jwk(secret: str) -> dict[str, str]:
    """The public key of a secret `whsk_…` as a JSON Web Key (RFC 8037), named by its thumbprint (RFC 7638)."""
    members = {"crv": "Ed25519", "kty": "OKP", "x": _url_safe(private_key(secret).public_key().public_bytes_raw())}
    thumbprint = hashlib.sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest()
    return members | {"kid": _url_safe(thumbprint), "alg": "EdDSA", "use": "sig"}


def jwks(secrets: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """The set of the public keys of these secrets `whsk_…`, each once."""
    keys = {key["kid"]: key for key in map(jwk, secrets)}
    return {"keys": list(keys.values())}


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Signer:
    """Signs the requests to one endpoint with each configured secret, so a receiver may rotate secrets."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._schemes = [_scheme(secret) for secret in secrets]
        shared = [secret for secret in secrets if not secret.startswith(PRIVATE)]
        # Cycles does not decode a secret: the receivers of Cycles use the text, `whsec_` included.
        self._cycles_key = shared[0].encode() if shared else None

    def headers(self, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers with the signatures; none without a secret. `timestamp`: seconds since the epoch."""
        headers = {}
        if self._schemes:
            signed = f"{webhook_id}.{timestamp}.".encode() + body
            headers["webhook-signature"] = " ".join(
                f"{version},{base64.b64encode(sign(signed)).decode()}" for version, sign in self._schemes
            )
        if self._cycles_key is not None:
            headers["X-Cycles-Signature"] = "sha256=" + hmac.digest(self._cycles_key, body, hashlib.sha256).hex()
        return headers


def _scheme(secret: str) -> tuple[str, Callable[[bytes], bytes]]:
    """The version of the signature, and the function that signs."""
    if secret.startswith(PRIVATE):
        return "v1a", private_key(secret).sign
    key = hmac_key(secret)
    return "v1", lambda signed: hmac.digest(key, signed, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response. Headers and body may hold secrets: mask them before printing."""

    outcome: DeliveryResult
    request_headers: dict[str, str]
    #: Empty without a response.
    response_headers: Mapping[str, str]
    #: The first KEPT bytes of the response's body, as sent.
    response_body: bytes

    def __repr__(self) -> str:
        return f"Exchange({self.outcome})"


class HandOver:
    """
    The hand-over of one request: the first attempt, and quick retries while a retry may help. No retry follows if
    `Retry-After` is longer than the longest back-off, or if a batch of several events is refused: only a smaller batch
    can help. Only one thread at a time may use it. `end` has to follow.
    """

    def __init__(self, client: "WebhookClient", request: WebhookRequest, attempts: int | None) -> None:
        self.request = request
        #: The result of the last attempt, those before it included.
        self.result = DeliveryResult(Result.FAILED, "it was not sent")
        self._client = client
        self._attempts = attempts
        self._earlier: list[DeliveryResult] = []
        self._number = 0
        self._span = client.span(request)

    def attempt(self) -> float | None:
        """Send the request once. Returns how long to wait before the next attempt, seconds; None: none follows."""
        if self._number:
            self._earlier.append(replace(self.result, earlier=()))
        self._number += 1
        result = self._client.send(self.request, self._span).outcome
        self.result = replace(result, earlier=tuple(self._earlier)) if self._earlier else result
        if result.delivered or (self.request.events > 1 and result.content_refused):
            return None
        return self._client.pause_after(self._number, result, self._attempts)

    def end(self) -> None:
        """No attempt follows."""
        if not self.result.delivered:
            self._span.fail(self.result.reason)
        self._span.end()


class WebhookClient:
    """
    The connections and the keys of one endpoint. Threads may share a client.

    `observe` is called with the result of each single request.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        settings: WebhooksSettings,
        clock: Clock,
        connections: int,
        observe: Callable[[DeliveryResult], None],
    ) -> None:
        settings = settings.of(endpoint)
        self._name = endpoint.name
        self._signer = Signer([secret.get_secret_value() for secret in endpoint.secrets])
        connect_timeout, timeout = settings.connect_timeout.total_seconds(), settings.timeout.total_seconds()
        self._attempts = settings.attempts
        self._longest_wait = settings.backoff_max.total_seconds()
        initial = settings.backoff_initial.total_seconds()
        self._backoff = tenacity.wait_random_exponential(multiplier=initial, max=self._longest_wait)
        self._clock = clock
        self._observe = observe
        headers = {name: value.get_secret_value() for name, value in endpoint.headers.items()} | {
            "User-Agent": f"sweeperd/{__version__}"
        }
        self._masker = Masker(endpoint)
        #: Of one exchange, seconds.
        self._time_limit = connect_timeout + timeout
        self._transport = Transport(endpoint, headers, connections, connect_timeout, timeout)

    def hand_over(self, request: WebhookRequest, attempts: int | None = None) -> HandOver:
        """A hand-over of this request, with `attempts` requests at most; by default as many as the settings say."""
        return HandOver(self, request, attempts)

    def tidy(self) -> None:
        """Close the idle connections that no request will use again."""
        self._transport.tidy()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def span(self, request: WebhookRequest) -> Span:
        """The span of a hand-over. The caller ends it."""
        return tracing.delivery(self._name, request.trace_ids)

    def pause_after(self, number: int, result: DeliveryResult, attempts: int | None) -> float | None:
        """
        Seconds before the attempt after this one: exponential back-off with full jitter, or the receiver's
        `Retry-After` if longer. None: there is none.
        """
        if result.gone or (result.retry_after is not None and result.retry_after > self._longest_wait):
            return None
        state = tenacity.RetryCallState(_NO_RETRYING, None, (), {})
        state.attempt_number = number
        if tenacity.stop_after_attempt(attempts or self._attempts)(state):
            return None
        asked = result.retry_after
        return max(self._backoff(state), asked + CLOCK_ERROR if asked else 0.0)

    def send_once(self, request: WebhookRequest) -> Exchange:
        """Send this request, without retries. A header that came several times is told once, with all values."""
        span = self.span(request)
        try:
            exchange = self.send(request, span)
        finally:
            span.end()
        headers = urllib3.HTTPHeaderDict(exchange.response_headers.items())
        return replace(exchange, response_headers=dict(headers.itermerged()))

    def send(self, webhook: WebhookRequest, span: Span) -> Exchange:
        """Send this request once, in the span of its hand-over."""
        # The receiver compares the timestamp with its own clock; sweeperd trusts only Redis's clock.
        timestamp = self._clock.now_ms() // 1000
        headers, body = self._headers(webhook, timestamp, span.traceparent), b""
        answered: Mapping[str, str] = {}
        started = time.monotonic()
        progress.allow(self._time_limit)
        try:
            request = self._transport.request(headers, webhook.body)
            headers = dict(request.headers)
            response = self._transport.send(request)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            mask = functools.partial(self._masker.text, sent=headers)
            result = failed(error, time.monotonic() - started, self._clock.now_ms(), mask)
        else:
            answered, body = response.headers, _read_some(response)
            seconds = time.monotonic() - started
            mask_answer = functools.partial(self._masker.answer, body, headers, answered)
            result = judge(response.status, response.headers, self._clock.now_ms(), seconds, mask_answer)
        progress.step()
        self._observe(result)
        span.event("attempt", {"result": result.reason, "seconds": result.seconds})
        return Exchange(result, headers, answered, body)

    def _headers(self, webhook: WebhookRequest, timestamp: int, traceparent: str) -> dict[str, str]:
        """The headers of this attempt. `timestamp`: seconds since the epoch. `traceparent`: empty without tracing."""
        headers = webhook.headers | {"webhook-id": webhook.webhook_id, "webhook-timestamp": str(timestamp)}
        if webhook.trace_id:
            headers["traceparent"] = traceparent or f"00-{webhook.trace_id}-{random.getrandbits(64) or 1:016x}-01"
        return headers | self._signer.headers(webhook.webhook_id, timestamp, webhook.body)


def _read_some(response: Any) -> bytes:
    """
    Read the response's body up to RESPONSE_LIMIT, and give the connection back. Returns the first KEPT bytes. If an
    error, such as a time-out, ends the body, the result stays the same.
    """
    if response.closed:  # there is no body
        response.release_conn()
        return b""
    left, kept = RESPONSE_LIMIT, b""
    try:
        for _ in range(PIECES):
            if not left or not (chunk := response.read1(left)):
                break
            left -= len(chunk)
            kept += chunk[: KEPT - len(kept)]
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError):
        pass
    finally:
        response.close()
        response.release_conn()
    return kept
