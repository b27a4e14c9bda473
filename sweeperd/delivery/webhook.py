"""
Webhooks to one endpoint: the keys that sign a request, `max_rate`, the signed request itself, and its quick retries.

With an asymmetric key (`whsk_`) the receiver needs the public key only, and cannot sign in sweeperd's name. Such keys
need the cryptography package, an extra: only functions about such keys import the package.
"""

import base64
import functools
import hashlib
import hmac
import http.client
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import redis
import requests
import tenacity
import urllib3
import urllib3.exceptions
from prometheus_client import Counter

from sweeperd import __version__, progress, tracing
from sweeperd.config import EndpointSettings, WebhooksSettings
from sweeperd.config.secrets import PRIVATE, PUBLIC, ed25519_pair, hmac_key
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.http import DeliveryResult, Transport, failed, judge
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.outbox import WebhookRequest
from sweeperd.outbox.masking import Masker
from sweeperd.store import Clock, Shard
from sweeperd.store.scripts import Call, Script
from sweeperd.tracing import Span

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger(__name__)

#: How much of a response is read, bytes. If a response is read to the end, the connection can be used again.
RESPONSE_LIMIT = 64 * 1024
#: In how many pieces a response is read at most: each takes CPU time, and the receiver chooses the size of its chunks.
PIECES = 256
#: How much of a response's body is kept for `endpoints test`, bytes.
KEPT = 4 * 1024
#: After a pause so many seconds' worth of requests may come at once, one request at least.
BURST = 0.25
#: A process takes the tokens of so many seconds at once, or of a round trip if a round trip takes longer.
AHEAD = 0.02
#: The shortest wait for a token, seconds: by then there may be several.
SHORTEST_WAIT = 0.005
#: If tokens are not used for so long, seconds, they lapse.
LAPSE = 1.0
#: `Retry-After` mutes the endpoint by Redis's clock, and a reading of that clock may be late by so much, seconds.
CLOCK_ERROR = 0.1


def private_key(secret: str) -> "Ed25519PrivateKey":
    """The key of a secret `whsk_…`. Raises ValueError, ImportError without the extra."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    return Ed25519PrivateKey.from_private_bytes(ed25519_pair(secret)[0])


def generate() -> tuple[str, str]:
    """
    A new pair as text: the private key `whsk_…`, which includes the public key, and the public key `whpk_…`. Raises
    ImportError without the extra.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    pair = key.private_bytes_raw() + public
    return PRIVATE + base64.b64encode(pair).decode(), PUBLIC + base64.b64encode(public).decode()


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


class RateLimit:
    """
    `max_rate` on one shard: how many requests a second the endpoint gets from all processes together. The bucket is in
    Redis, so all processes take tokens from the same bucket, by Redis's clock. Threads may share a limit.

    `per_second`: the shard's part of `max_rate`, because shards share no Redis. `waits` counts the requests that had to
    wait.
    """

    def __init__(
        self, shard: Shard, endpoint: str, per_second: float, waits: Counter, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self.per_second = per_second
        #: How many requests a full bucket lets through at once.
        self.burst = max(1, math.floor(per_second * BURST))
        self._shard = shard
        self._endpoint = endpoint
        self._waits = waits
        self._recovery_pause = timing.recovery_pause
        self._clock = timing.clock
        self._script = Script("delivery/take_tokens")
        self._outage = Outage(log, "max_rate", {"shard": shard.name, "endpoint": endpoint})
        self._lock = threading.Lock()
        self._tokens = 0
        #: Monotonic: when the tokens lapse, and when to ask for more.
        self._lapse_at = self._ask_at = 0.0
        self._round_trip = 0.0

    def take(self, stop: threading.Event) -> bool:
        """Wait for a token, the right to send one request. False: the stop came first."""
        waited = False
        while not stop.is_set():
            progress.allow(self._shard.patience)  # another sender may be asking Redis
            with self._lock:
                wait = self._try()
            if not wait:
                return True
            if not waited:
                self._waits.inc()
                waited = True
            progress.pause(stop, wait)
        return False

    def _try(self) -> float:
        """Take a token; if there is none, return how long to wait before the next try, seconds."""
        now = self._clock()
        if now >= self._lapse_at:
            self._tokens = 0
        if not self._tokens:
            if now < self._ask_at:
                return self._ask_at - now
            wait = self._ask()
            if not self._tokens:
                self._ask_at = self._clock() + wait
                return wait
        self._tokens -= 1
        return 0.0

    def _ask(self) -> float:
        """Ask Redis for tokens. Returns how long to wait if there are none, seconds. If Redis fails, send nothing."""
        wanted = max(1, min(self.burst, math.ceil(self.per_second * max(AHEAD, self._round_trip))))
        call = Call([self._shard.keys.pace], [self._endpoint, repr(1e6 / self.per_second), self.burst, wanted])
        began = self._clock()
        try:
            with self._shard.reaching():
                taken, micros = self._script.run(self._shard.client, call)
        except (RedisUnavailable, redis.RedisError) as error:
            self._outage.begin(error)
            return self._recovery_pause
        self._outage.end()
        self._round_trip = self._clock() - began
        self._tokens, self._lapse_at = int(taken), self._clock() + LAPSE
        return max(SHORTEST_WAIT, int(micros) / 1e6)


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


class WebhookClient:
    """
    The connections and the keys of one endpoint. Threads may share a client.

    `observe` is called with the result of each single request. `stop` ends the waits between retries. `limit`:
    `max_rate`, shared by all clients of the endpoint.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        settings: WebhooksSettings,
        clock: Clock,
        connections: int,
        observe: Callable[[DeliveryResult], None],
        stop: threading.Event,
        limit: RateLimit | None = None,
    ) -> None:
        self._limit = limit
        self._name = endpoint.name
        self._signer = Signer([secret.get_secret_value() for secret in endpoint.secrets])
        connect_timeout, timeout = settings.connect_timeout.total_seconds(), settings.timeout.total_seconds()
        self._attempts = settings.attempts
        self._longest_wait = settings.backoff_max.total_seconds()
        initial = settings.backoff_initial.total_seconds()
        self._backoff = tenacity.wait_random_exponential(multiplier=initial, max=self._longest_wait)
        self._clock = clock
        self._observe = observe
        self._stop = stop
        headers = {name: value.get_secret_value() for name, value in endpoint.headers.items()} | {
            "User-Agent": f"sweeperd/{__version__}"
        }
        self._masker = Masker(endpoint)
        #: Of one exchange, seconds.
        self._time_limit = connect_timeout + timeout
        self._transport = Transport(endpoint, headers, connections, connect_timeout, timeout)

    def deliver(
        self, request: WebhookRequest, attempts: int | None = None, may_send: Callable[[], bool] | None = None
    ) -> DeliveryResult:
        """
        Send this request, and retry quickly while a retry may help, and while `may_send` (by default `await_turn`) lets
        a retry through: `attempts` requests at most. Returns the last result. No retry follows if `Retry-After` is
        longer than the longest back-off, or if a batch of several events is refused: only a smaller batch can help.
        """
        with tracing.delivery(self._name, request.trace_ids) as span:
            result = self._send(request, span).outcome
            # Most requests need no retry, and tenacity costs a tenth of a request.
            if self._retryable(result) and not (request.events > 1 and result.content_refused):
                result = self._retry(request, result, attempts or self._attempts, may_send or self.await_turn, span)
            if not result.delivered:
                span.fail(result.reason)
        return result

    def _retry(
        self, request: WebhookRequest, result: DeliveryResult, attempts: int, may_send: Callable[[], bool], span: Span
    ) -> DeliveryResult:
        """`result` is the result of the first attempt."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_when_event_set(self._stop),
            wait=self._wait,
            retry=tenacity.retry_if_result(self._retryable),
            retry_error_callback=_last_result,
            sleep=self._sleep,
        )
        earlier: list[DeliveryResult] = []
        for attempt in retrying:
            number = attempt.retry_state.attempt_number
            if number > 1 and not may_send():
                break  # during the wait the stop came, or the endpoint began to rest
            with attempt:
                if number > 1:
                    earlier.append(result)
                    result = self._send(request, span).outcome
            attempt.retry_state.set_result(result)
        return replace(result, earlier=tuple(earlier))

    def await_turn(self) -> bool:
        """Wait until the endpoint may get a request. False: a stop came first."""
        return not self._stop.is_set() if self._limit is None else self._limit.take(self._stop)

    def close(self) -> None:
        self._transport.close()

    def send_once(self, request: WebhookRequest) -> Exchange:
        """Send this request, without retries."""
        with tracing.delivery(self._name, request.trace_ids) as span:
            return self._send(request, span)

    def _send(self, webhook: WebhookRequest, span: Span) -> Exchange:
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

    def _sleep(self, seconds: float) -> None:
        progress.pause(self._stop, seconds)

    def _wait(self, retry_state: tenacity.RetryCallState) -> float:
        """Seconds: exponential back-off with full jitter, or the receiver's `Retry-After` if longer."""
        asked = _last_result(retry_state).retry_after
        return max(self._backoff(retry_state), asked + CLOCK_ERROR if asked else 0.0)

    def _retryable(self, result: DeliveryResult) -> bool:
        if result.delivered or result.gone:
            return False
        return result.retry_after is None or result.retry_after <= self._longest_wait


def _last_result(retry_state: tenacity.RetryCallState) -> DeliveryResult:
    if retry_state.outcome is None:
        raise RuntimeError("there was no attempt")
    result: DeliveryResult = retry_state.outcome.result()
    return result


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
