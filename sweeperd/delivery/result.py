"""The result of a request to an endpoint: the status, `Retry-After`, or the reason why there was no response."""

import email.utils
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import requests
import urllib3
import urllib3.exceptions

from sweeperd.delivery.tls import tls_reason

#: The statuses from 400 to 499 that are about the endpoint: rights, a wrong route, rights at a proxy, a time-out, gone,
#: too many requests.
_OF_THE_ENDPOINT = frozenset({401, 403, 404, 405, 407, 408, 410, 429})


#: How http.client begins its words about a proxy that refuses to connect; its status follows.
_NO_TUNNEL = "Tunnel connection failed:"


class Result(StrEnum):
    """How a request is counted."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one request, or of the last one of several attempts."""

    result: Result
    #: The status, or why there was no response. Never a URL, because a URL may hold a password.
    reason: str
    status: int | None = None
    #: The wait that `Retry-After` asks for, seconds.
    retry_after: float | None = None
    #: From the start of the request to the end of the response.
    seconds: float = 0.0
    #: When it ended, ms on Redis's clock.
    at_ms: int = field(default=0, compare=False)
    #: The response's body, as far as it is kept; what is secret is hidden.
    answer: str = field(default="", compare=False, repr=False)
    #: The results of the attempts before the last one.
    earlier: tuple["DeliveryResult", ...] = field(default=(), compare=False, repr=False)

    @property
    def delivered(self) -> bool:
        """The receiver has accepted the request."""
        return self.result is Result.DELIVERED

    @property
    def gone(self) -> bool:
        """The receiver is gone for good and wants no more requests."""
        return self.status == 410

    @property
    def content_refused(self) -> bool:
        """The receiver refuses what is in the request. Of a batch, a smaller one may be accepted."""
        return self.status in (400, 413, 422)

    @property
    def refused(self) -> bool:
        """The response is about the events, not about the endpoint. A 4xx that says neither counts for the events."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _OF_THE_ENDPOINT


def judge(status: int, headers: Mapping[str, str], now_ms: int, seconds: float, answer: str = "") -> DeliveryResult:
    """The result of a response. `now_ms`: Redis's clock, for a `Retry-After` date in a response that has no `Date`."""
    if 200 <= status < 300:
        return DeliveryResult(Result.DELIVERED, f"HTTP {status}", status, None, seconds, now_ms, answer)
    result = Result.REJECTED if 300 <= status < 500 else Result.FAILED
    return DeliveryResult(result, f"HTTP {status}", status, _retry_after(headers, now_ms), seconds, now_ms, answer)


def failed(error: BaseException, seconds: float, now_ms: int, mask: Callable[[str], str]) -> DeliveryResult:
    """The result of a request without a response. `mask` hides what is secret in the words of a proxy."""
    return DeliveryResult(Result.FAILED, _reason(error, mask), seconds=seconds, at_ms=now_ms)


def _retry_after(headers: Mapping[str, str], now_ms: int) -> float | None:
    """`Retry-After` in seconds: a number, or a date minus the response's own `Date` (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    until = _http_date(text)
    if until is None:
        return None
    sent = _http_date(headers.get("Date", ""))
    return max(0.0, until - (now_ms / 1000 if sent is None else sent))


def _http_date(text: str) -> float | None:
    """Seconds since the epoch; None where the text is no date."""
    parsed = email.utils.parsedate_tz(text)
    try:
        return None if parsed is None else email.utils.mktime_tz(parsed)
    except (ValueError, OverflowError):
        return None


def _reason(error: BaseException, mask: Callable[[str], str]) -> str:
    """Why there was no response, in words that hold neither URL nor credentials."""
    if isinstance(error, requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
        return "the URL cannot be used"
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy: {_innermost_reason(error, mask)}"
    return _innermost_reason(error, mask)


def _innermost_reason(error: BaseException, mask: Callable[[str], str]) -> str:
    for inner in _chain(error):
        match inner:
            case ssl.SSLError():
                return tls_reason(inner)
            case socket.gaierror() | urllib3.exceptions.NameResolutionError():
                return "the host's name cannot be resolved"
            case urllib3.exceptions.NewConnectionError():
                continue  # urllib3 counts it as a time-out; the error inside it has the reason
            case urllib3.exceptions.ConnectTimeoutError() | requests.ConnectTimeout():
                return "no connection in time"
            case urllib3.exceptions.ReadTimeoutError() | requests.ReadTimeout() | TimeoutError():
                return "no answer in time"
            case OSError(strerror=str(words)) if words:
                return words
            case OSError(args=(str(words),)) if words.startswith(_NO_TUNNEL):
                return f"it answers{mask(words.removeprefix(_NO_TUNNEL))[:80]}"
    return "the connection broke" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors inside it: requests and urllib3 keep them as reason, as first argument, or as cause."""
    current: BaseException | None = error
    while current is not None:
        yield current
        inner = getattr(current, "reason", None) or (current.args[0] if current.args else None)
        current = inner if isinstance(inner, BaseException) else current.__cause__ or current.__context__
