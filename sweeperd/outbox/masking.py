"""Masks the secrets of an endpoint in logs and in recorded attempts."""

import base64
import functools
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, quote, quote_plus, unquote_to_bytes, urlsplit

from sweeperd.config import EndpointSettings
from sweeperd.text import decode

#: How much of a response body to keep, characters.
ANSWER = 256
HIDDEN = "***"
#: How much of a signature to show, characters.
SIGNATURE_SHOWN = 12
#: A shorter value, in bytes, is masked only next to its name. Otherwise it would mask half of a response.
SHORTEST_HIDDEN = 4

#: Request headers without secrets. All others come from the configuration or the URL.
_OPEN_HEADERS = {
    *("accept", "accept-encoding", "connection", "content-length", "content-type", "traceparent", "user-agent"),
    *("webhook-id", "webhook-timestamp", "x-sweeperd-sequence"),
    *("x-cycles-event-id", "x-cycles-event-type", "x-cycles-trace-id"),
}
_SIGNATURES = {"webhook-signature", "x-cycles-signature"}
#: The characters that only Go escapes in JSON.
_GO = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


class Masker:
    """Masks the secrets of one endpoint and of the proxy that the environment names at startup. Thread-safe."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        from urllib.request import getproxies  # noqa: PLC0415 - saves the memory of commands that never need it

        url = urlsplit(endpoint.url.get_secret_value())
        named = [*_query(url), *((name, value.get_secret_value()) for name, value in endpoint.headers.items())]
        secrets = {url.query, *_credentials(url)}
        for proxy in (endpoint.proxy.get_secret_value(),) if endpoint.proxy else getproxies().values():
            secrets |= _proxy_credentials(proxy)
        for _, value in named:
            secrets |= _parts(value)
        # A key is never sent, but a receiver knows it and may echo it.
        for key in endpoint.secrets:
            text = key.get_secret_value()
            secrets |= {text, re.sub("^wh(sec|sk)_", "", text)}
        self._known = {value for _, value in named}
        self._secrets = frozenset(secrets)
        self._short = [_beside(name, value) for name, value in named if 0 < len(value) < SHORTEST_HIDDEN]

    def header(self, name: str, value: str) -> str:
        """The masked value of a request header."""
        if name.lower() in _SIGNATURES:
            return " ".join(f"{part[:SIGNATURE_SHOWN]}…" for part in value.split())
        return value if name.lower() in _OPEN_HEADERS else HIDDEN

    def text(self, text: str, sent: Mapping[str, str], *, cut: bool = False) -> str:
        """Mask a text of the response to a request with the headers `sent`. `cut`: the text may end within a secret."""
        if len(text.encode()) < SHORTEST_HIDDEN and not self._short:
            return text
        forms = [*_forms(self._secrets)]
        for name, value in sent.items():
            if name.lower() in _SIGNATURES:
                text = _without_signatures(text, value)
            elif name.lower() not in _OPEN_HEADERS and value not in self._known:
                forms += _forms(frozenset(_parts(value)))
        spans = [match.span(1) for pattern in self._short for match in pattern.finditer(text)]
        for form in forms:
            if form in text:
                spans += [match.span(1) for match in re.finditer(f"(?=({re.escape(form)}))", text)]  # overlapping too
            if cut and (kept := _begun(form, text)):
                spans.append((len(text) - kept, len(text)))
        return _without(text, spans) if spans else text

    def answer(self, body: bytes, sent: Mapping[str, str], answered: Mapping[str, str]) -> str:
        """The first ANSWER characters of a response body, masked."""
        longest = ANSWER * 4  # the most bytes of that many characters
        return self.body(body[:longest], sent, answered, cut=len(body) > longest)[:ANSWER]

    def body(self, body: bytes, sent: Mapping[str, str], answered: Mapping[str, str], *, cut: bool = False) -> str:
        """Mask the body of a response with the headers `answered`. `cut`: the body was truncated."""
        if not body:
            return ""
        coding = {name.lower(): value for name, value in answered.items()}.get("content-encoding")
        if coding:
            return f"({self.text(coding[:ANSWER], sent, cut=len(coding) > ANSWER)}, not shown)"
        return self.text(decode(body), sent, cut=cut)


def _query(url: SplitResult) -> Iterator[tuple[str, str]]:
    """Names and values of the parameters. A parameter without a value counts as a value without a name."""
    for part in {*url.query.split("&"), *re.split("[&;]", url.query)}:
        name, equals, value = part.partition("=")
        yield (name, value) if equals else ("", name)


def _credentials(url: SplitResult) -> set[str]:
    if url.username is None and url.password is None:
        return set()
    user, password = url.username or "", url.password or ""
    return {user, password, f"{user}:{password}"}


def _proxy_credentials(proxy: str) -> set[str]:
    """The environment's proxy may lack a scheme, or not be a URL."""
    try:
        return _credentials(urlsplit(proxy if "://" in proxy else f"http://{proxy}"))
    except ValueError:
        return set()


def _parts(value: str) -> set[str]:
    """A value of a parameter or header, and its parts that may be echoed alone: a token, a password, a cookie."""
    words, pieces = re.split("[ \t]+", value), re.split("[ \t;,]+", value)
    scheme = len(words) > 1 and words[0].isalpha()
    parts = {value, *words[scheme:], *pieces[scheme:]}
    parts |= {part.partition("=")[2].strip('"') for part in parts if "=" in part.rstrip("=")}
    if scheme and words[0].lower() == "basic":
        try:
            pair = base64.b64decode(words[1])
        except ValueError:
            return parts
        for text in (pair.decode("latin-1"), pair.decode("utf-8", "replace")):
            parts |= {text, *text.split(":", 1)}
    return parts


def _beside(name: str, value: str) -> re.Pattern[str]:
    """Matches a short value next to its name: `name=value`, `"Name": "value"`, `NAME%3Dvalue`."""
    if not name:
        return re.compile(rf"\?({re.escape(value)})(?![0-9A-Za-z])")
    beside = "[-_ +]".join(map(re.escape, re.split("[-_ +]", name)))
    return re.compile(rf"(?i:{beside})(?:%[0-9A-Fa-f]{{2}}|[^0-9A-Za-z]){{1,6}}?({re.escape(value)})(?![0-9A-Za-z])")


@functools.lru_cache(maxsize=256)
def _forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """The forms of these secrets in a text. Too short ones have none. Every form costs time in every text."""
    quoted = {text for each in secrets for text in (each, each.replace("+", " "))}
    texts = {*secrets, *(decode(unquote_to_bytes(text)) for text in quoted)}  # as in a URL, and decoded
    long = {text for text in texts if len(text.encode()) >= SHORTEST_HIDDEN}
    forms = {form for text in long | {text.rstrip("=") for text in long} for form in _escaped(text)}
    for raw in {raw for text in long for raw in (text.encode(), text.encode("latin-1", "replace"))}:
        for encoded in (base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()):
            for form in (encoded, encoded.rstrip("=")):
                forms |= {form, form.replace("/", "\\/"), quote(form, safe="")}
    return tuple(form for form in forms if len(form.encode()) >= SHORTEST_HIDDEN)


def _escaped(text: str) -> Iterator[str]:
    """The escaped forms that frameworks write."""
    import html  # noqa: PLC0415 - its table of entities takes memory

    yield from (text, html.escape(text))
    if not text.isascii():
        yield decode(text.encode("latin-1", "replace"))  # the form of a header
    for safe in ("", "/"):
        for quoted in (quote(text, safe=safe), quote_plus(text, safe=safe)):
            yield from (quoted, re.sub("%..", lambda escape: escape[0].lower(), quoted))
    for plain in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        yield from (plain, plain.replace("/", "\\/"), plain.translate(_GO))


def _begun(form: str, text: str) -> int:
    """How many characters of the form's beginning end the text; 0 if fewer than SHORTEST_HIDDEN."""
    end = text[-len(form) :]
    at = end.find(form[:SHORTEST_HIDDEN])
    while at >= 0 and not form.startswith(end[at:]):
        at = end.find(form[:SHORTEST_HIDDEN], at + 1)
    return len(end) - at if at >= 0 else 0


def _without_signatures(text: str, signatures: str) -> str:
    """Mask these signatures, in common forms only, because a signature is valid for a single request."""
    for signature in signatures.split():
        for part in (signature, re.split("[,=]", signature, maxsplit=1)[-1]):
            text = text.replace(part, HIDDEN).replace(part.replace("/", "\\/"), HIDDEN)
    return text


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Mask these spans of the text. Adjacent spans are masked together."""
    shown, position = list[str](), 0
    for start, end in sorted(spans):
        if start > position or not shown:
            shown += [text[position:start], HIDDEN]
        position = max(position, end)
    return "".join(shown) + text[position:]
