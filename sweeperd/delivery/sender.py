"""One event, one endpoint: the signed request, its quick retries, the verdict."""

import base64
import email.utils
import hashlib
import hmac
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import requests
import tenacity
import urllib3
import urllib3.exceptions
from tenacity.wait import wait_base

from sweeperd import __version__
from sweeperd.config import EndpointSettings, WebhooksSettings
from sweeperd.delivery.transport import Transport
from sweeperd.store.clock import Clock

#: How much of a response is read, bytes. Reading it to its end keeps the connection; nothing in it is looked at.
RESPONSE_LIMIT = 64 * 1024
#: How much of that is kept for an operator who tries an endpoint out, bytes.
KEPT = 4 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One event, ready to be sent: `body` is what is signed."""

    event_id: str
    event_type: str
    trace_id: str
    tenant: bytes
    body: bytes

    def __repr__(self) -> str:
        # The body is signed, and signed bodies are in no log.
        return f"Message({self.event_id})"


class Result(StrEnum):
    """What came of a request, as it is counted."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of a request, or of the last one of a hand-over."""

    result: Result
    #: The status, or why there was none. Never a URL, which may hold a password.
    reason: str
    status: int | None = None
    #: What `Retry-After` asked for, seconds.
    retry_after: float | None = None
    seconds: float = 0.0

    @property
    def delivered(self) -> bool:
        """The receiver has it."""
        return self.result is Result.DELIVERED

    @property
    def gone(self) -> bool:
        """The receiver says that it is no more, and wants nothing more."""
        return self.status == 410


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back. Headers and body may hold secrets: show them to nobody as they are."""

    verdict: DeliveryResult
    request_headers: dict[str, str]
    #: Nothing where there was no answer.
    response_headers: dict[str, str]
    #: The beginning of the response's body, as it came over the wire: KEPT bytes at most.
    response_body: bytes

    def __repr__(self) -> str:
        return f"Exchange({self.verdict})"


class WebhookClient:
    """
    One endpoint: its connections and its secrets.

    `observe` gets the verdict of each single request. `stop` ends the waits between retries. Threads may share it.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        settings: WebhooksSettings,
        clock: Clock,
        connections: int,
        observe: Callable[[DeliveryResult], None],
        stop: threading.Event,
    ) -> None:
        self._keys = [secret.get_secret_value() for secret in endpoint.secrets]
        connect_timeout, timeout = settings.connect_timeout.total_seconds(), settings.timeout.total_seconds()
        #: The longest that connecting, waiting for the answer and reading it may take together, seconds.
        self._patience = connect_timeout + timeout
        self._attempts = settings.attempts
        self._longest_wait = settings.backoff_max.total_seconds()
        self._wait = _Wait(settings.backoff_initial.total_seconds(), self._longest_wait)
        self._clock = clock
        self._observe = observe
        self._stop = stop
        headers = {name: value.get_secret_value() for name, value in endpoint.headers.items()} | {
            "Content-Type": "application/json",
            "User-Agent": f"sweeperd/{__version__}",
        }
        self._transport = Transport(endpoint.url.get_secret_value(), headers, connections, connect_timeout, timeout)

    def deliver(self, message: Message, attempts: int | None = None) -> DeliveryResult:
        """
        Send, and send again a few times where it fails and may yet succeed. Returns the verdict of the last request; a
        `Retry-After` that is longer than the longest back-off ends the hand-over.
        """
        verdict = self.send_once(message).verdict
        if not self._worth_a_retry(verdict):
            return verdict  # as it goes nearly always; to set a retry up costs a tenth of the request
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts or self._attempts) | tenacity.stop_when_event_set(self._stop),
            wait=self._wait,
            retry=tenacity.retry_if_result(self._worth_a_retry),
            retry_error_callback=_last_verdict,
            sleep=tenacity.sleep_using_event(self._stop),
        )
        for attempt in retrying:
            number = attempt.retry_state.attempt_number
            if number > 1 and self._stop.is_set():
                break  # the stop came while it waited
            with attempt:
                if number > 1:
                    verdict = self.send_once(message).verdict
            attempt.retry_state.set_result(verdict)
        return verdict

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def headers(self, message: Message, timestamp: int) -> dict[str, str]:
        """The headers that tell of this event. `timestamp` is the time of the attempt, seconds since the epoch."""
        headers = {
            "webhook-id": message.event_id,
            "webhook-timestamp": str(timestamp),
            "X-Cycles-Event-Id": message.event_id,
            "X-Cycles-Event-Type": message.event_type,
        }
        if message.trace_id:
            headers["X-Cycles-Trace-Id"] = message.trace_id
            headers["traceparent"] = f"00-{message.trace_id}-{random.getrandbits(64) or 1:016x}-01"
        if self._keys:
            signed = f"{message.event_id}.{timestamp}.".encode() + message.body
            headers["webhook-signature"] = " ".join(
                "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in self._keys
            )
            headers["X-Cycles-Signature"] = "sha256=" + hmac.digest(self._keys[0], message.body, hashlib.sha256).hex()
        return headers

    def _worth_a_retry(self, verdict: DeliveryResult) -> bool:
        if verdict.delivered or verdict.gone:
            return False
        return verdict.retry_after is None or verdict.retry_after <= self._longest_wait

    def send_once(self, message: Message) -> Exchange:
        """Send once, and return what was sent and what came back."""
        # The receiver checks the timestamp against its own clock; Redis's is the only one that this system vouches for.
        sent, answered, body = self.headers(message, self._clock.now_ms() // 1000), {}, b""
        started = time.monotonic()
        try:
            request = self._transport.request(sent, message.body)
            sent = dict(request.headers)
            response = self._transport.send(request)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            verdict = DeliveryResult(Result.FAILED, _why(error), seconds=time.monotonic() - started)
        else:
            answered = dict(response.headers)
            body = _read_some(response, deadline=started + self._patience)
            verdict = self._judge(response, time.monotonic() - started)
        self._observe(verdict)
        return Exchange(verdict, sent, answered, body)

    def _judge(self, response: urllib3.BaseHTTPResponse, seconds: float) -> DeliveryResult:
        status = response.status
        if 200 <= status < 300:
            return DeliveryResult(Result.DELIVERED, f"HTTP {status}", status, seconds=seconds)
        result = Result.REJECTED if 300 <= status < 500 else Result.FAILED
        return DeliveryResult(result, f"HTTP {status}", status, self._retry_after(response), seconds)

    def _retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """`Retry-After` in seconds: a number, or a date that is measured by the response's own (RFC 9110, 10.2.3)."""
        asked = response.headers.get("Retry-After", "").strip()
        if asked.isascii() and asked.isdigit():
            return float(asked[:9])
        until = _http_date(asked)
        if until is None:
            return None
        sent = _http_date(response.headers.get("Date", ""))
        return max(0.0, until - (self._clock.now_ms() / 1000 if sent is None else sent))


def _http_date(text: str) -> float | None:
    """Seconds since the epoch."""
    parsed = email.utils.parsedate_tz(text)
    try:
        return None if parsed is None else email.utils.mktime_tz(parsed)
    except (ValueError, OverflowError):
        return None


class _Wait(wait_base):
    """Exponential back-off with full jitter, or longer where the receiver asked for longer."""

    def __init__(self, initial: float, longest: float) -> None:
        self._backoff = tenacity.wait_random_exponential(multiplier=initial, max=longest)

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        return max(self._backoff(retry_state), _last_verdict(retry_state).retry_after or 0.0)


def _last_verdict(retry_state: tenacity.RetryCallState) -> DeliveryResult:
    if retry_state.outcome is None:
        raise RuntimeError("there was no attempt")
    verdict: DeliveryResult = retry_state.outcome.result()
    return verdict


def _read_some(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """
    Read a response up to the limit or the deadline, and let go of it. The verdict does not depend on how it ends.
    Returns its beginning.
    """
    left, kept = RESPONSE_LIMIT, b""
    try:
        while left > 0 and time.monotonic() < deadline:
            chunk = response.read1(left, decode_content=False)
            if not chunk:
                break
            left -= len(chunk)
            kept += chunk[: KEPT - len(kept)]
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        pass
    finally:
        response.close()
        response.release_conn()
    return kept


def _why(error: BaseException) -> str:
    """Why there was no answer, in words that hold neither URL nor credentials."""
    if isinstance(error, requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
        return "the URL cannot be used"
    for inner in _chain(error):
        match inner:
            case ssl.SSLError():
                return f"TLS: {getattr(inner, 'verify_message', None) or inner.reason or type(inner).__name__}"
            case socket.gaierror() | urllib3.exceptions.NameResolutionError():
                return "the host's name cannot be resolved"
            case urllib3.exceptions.NewConnectionError():
                continue  # what it wraps says why; urllib3 takes it for a kind of time-out
            case urllib3.exceptions.ConnectTimeoutError() | requests.ConnectTimeout():
                return "no connection in time"
            case urllib3.exceptions.ReadTimeoutError() | requests.ReadTimeout() | TimeoutError():
                return "no answer in time"
            case OSError(strerror=str(words)) if words:
                return words
    return "the connection broke" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it wraps: requests and urllib3 carry it as reason, as first argument, or as cause."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
