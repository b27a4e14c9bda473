"""Hides what is secret in a request, and in a response that repeats it."""

import base64
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from sweeperd.config import EndpointSettings
from sweeperd.text import decode

HIDDEN = "***"
#: How much of a signature is shown, characters.
SIGNATURE_SHOWN = 12
#: What is shorter is no secret, and to hide it everywhere would hide half of a response.
SHORTEST_HIDDEN = 4

#: Headers of a request that hold no secret. All others come from the configuration or the URL.
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


class Masker:
    """What is secret about one endpoint. Threads may share it."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        url = urlsplit(endpoint.url.get_secret_value())
        proxy = urlsplit(endpoint.proxy.get_secret_value() if endpoint.proxy else "")
        #: A key is sent nowhere, but a receiver that answers with one has it.
        keys = [key.get_secret_value() for key in endpoint.secrets]
        #: As a URL writes them, and as the receiver and the proxy get them.
        passwords = [url.password or "", proxy.password or ""]
        self._fixed = {url.query, _basic_auth(proxy), *passwords, *map(unquote, passwords), *keys}

    def header(self, name: str, value: str) -> str:
        """The value of a header of a request."""
        if name.lower() in _SIGNATURES:
            return " ".join(f"{part[:SIGNATURE_SHOWN]}…" for part in value.split())
        return value if name.lower() in _OPEN_HEADERS else HIDDEN

    def text(self, text: str, sent: Mapping[str, str]) -> str:
        """A text from the response to a request with the headers `sent`."""
        secret = set(self._fixed)
        for name, value in sent.items():
            if name.lower() in _SIGNATURES:
                secret.update(value.split())
            elif name.lower() not in _OPEN_HEADERS:
                secret.add(value)
        for each in sorted(secret, key=len, reverse=True):  # one may be a part of another
            if len(each) >= SHORTEST_HIDDEN:
                text = text.replace(each, HIDDEN)
        return text

    def body(self, body: bytes, sent: Mapping[str, str], answered: Mapping[str, str]) -> str:
        """The body of a response with the headers `answered`."""
        if not body:
            return ""
        coding = {name.lower(): value for name, value in answered.items()}.get("content-encoding")
        return f"({self.text(coding, sent)}, not shown)" if coding else self.text(decode(body), sent)


def _basic_auth(url: SplitResult) -> str:
    if url.password is None:
        return ""
    return base64.b64encode(f"{unquote(url.username or '')}:{unquote(url.password)}".encode()).decode()
