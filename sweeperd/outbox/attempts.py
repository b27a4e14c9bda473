"""
Hides what is secret in a request, and in a text of a receiver or a proxy that repeats what is secret.

A receiver may repeat a secret as the receiver's framework writes text: with JSON, percent or HTML escapes of some or
all characters, in either base64 alphabet, or alone although the request had the secret inside `user:password`. So a
text is not compared with each form that a secret could have: the text's escapes are decoded, and each secret, plain and
as base64 at each of the three places that a byte can have there, is looked for in the result.
"""

import base64
import functools
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit
from urllib.request import getproxies

from sweeperd.config import EndpointSettings
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, StreamRow
from sweeperd.text import decode, whole

HIDDEN = "***"
#: How much of a signature is shown, characters.
SIGNATURE_SHOWN = 12
#: A value that is shorter (bytes) is hidden only beside its name: to hide it everywhere would hide half of a response.
SHORTEST_HIDDEN = 4
#: How often the escapes of a text are decoded: JSON inside of JSON is hidden, one more level is not.
DEPTH = 2

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
#: Both base64 alphabets become one, `+` becomes the space that it may stand for, and X_KEY becomes X-KEY.
_FOLD = bytes.maketrans(b"+/_ ", b"----")
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_LETTER_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
#: The beginning of an escape at the end of a text that was cut.
_HALF_ESCAPE = re.compile(r"(\\+(u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|&[#0-9A-Za-z]{0,8})\Z")


class Masker:
    """
    What is secret about one endpoint, and about the proxy that the environment named when it was made. Threads may
    share it.
    """

    def __init__(self, endpoint: EndpointSettings) -> None:
        url = urlsplit(endpoint.url.get_secret_value())
        named = [*_query(url), *((name, value.get_secret_value()) for name, value in endpoint.headers.items())]
        secrets = {url.query, *_credentials(url)}
        for proxy in (endpoint.proxy.get_secret_value(),) if endpoint.proxy else getproxies().values():
            secrets |= _proxy_credentials(proxy)
        for _, value in named:
            secrets.update(_parts(value))
        #: A key is sent nowhere, but a receiver that answers with one has it.
        for key in endpoint.secrets:
            text = key.get_secret_value()
            secrets.update((text, re.sub("^wh(sec|sk)_", "", text)))
        self._forms_of = functools.lru_cache(maxsize=64)(lambda value: tuple(_forms(_parts(value))))
        self._known = {value for _, value in named}
        self._fixed = tuple(_forms(secrets))
        self._short = [_beside(name, value) for name, value in named if 0 < len(value) < SHORTEST_HIDDEN]

    def header(self, name: str, value: str) -> str:
        """The value of a header of a request."""
        if name.lower() in _SIGNATURES:
            return " ".join(f"{part[:SIGNATURE_SHOWN]}…" for part in value.split())
        return value if name.lower() in _OPEN_HEADERS else HIDDEN

    def text(self, text: str, sent: Mapping[str, str], *, cut: bool = False) -> str:
        """
        A text from the response to a request with the headers `sent`. `cut`: more followed, so the text may end with
        the beginning of a secret.
        """
        if cut:
            text = _HALF_ESCAPE.sub("", text)
        source = text.encode("utf-8", "backslashreplace")
        if len(source) < SHORTEST_HIDDEN and not self._short:
            return text
        forms = [*self._fixed]
        for name, value in sent.items():
            if name.lower() in _SIGNATURES:
                forms += _signature_forms(value)
            elif name.lower() not in _OPEN_HEADERS and value not in self._known:
                forms += self._forms_of(value)
        spans: list[tuple[int, int]] = []
        for view in _views(source):
            plain = view.text.translate(_FOLD)
            for form in forms:
                if cut or form.text in plain:
                    spans += map(view.source, form.found(plain, cut=cut))
            for pattern in self._short:
                spans += (view.source(match.span(1)) for match in pattern.finditer(plain))
        return _without(source, spans) if spans else text

    def body(self, body: bytes, sent: Mapping[str, str], answered: Mapping[str, str], *, cut: bool = False) -> str:
        """The body of a response with the headers `answered`. `cut`: it is only the beginning of the body."""
        if not body:
            return ""
        coding = {name.lower(): value for name, value in answered.items()}.get("content-encoding")
        return f"({self.text(coding, sent)}, not shown)" if coding else self.text(decode(body), sent, cut=cut)


# ---- what is secret


def _query(url: SplitResult) -> Iterator[tuple[str, str]]:
    """Names and values. A parameter without a value is one itself."""
    for part in {*url.query.split("&"), *re.split("[&;]", url.query)}:
        name, equals, value = part.partition("=")
        yield (name, value) if equals else ("", name)


def _credentials(url: SplitResult) -> set[str]:
    if url.username is None and url.password is None:
        return set()
    user, password = url.username or "", url.password or ""
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return {user, password, f"{user}:{password}", base64.b64encode(pair).decode()}


def _proxy_credentials(proxy: str) -> set[str]:
    """The proxy of the environment may be without a scheme, or be nothing that can be used."""
    try:
        return _credentials(urlsplit(proxy if "://" in proxy else f"http://{proxy}"))
    except ValueError:
        return set()


def _parts(value: str) -> set[str]:
    """
    The value of a parameter or of a header, and what a receiver may repeat of it alone: a token without `Bearer`, user
    and password of `Basic`, a cookie without its name.
    """
    words, pieces = re.split("[ \t]+", value), re.split("[ \t;,]+", value)
    scheme = len(words) > 1 and words[0].isalpha()
    parts = {value, *words[scheme:], *pieces[scheme:]}
    parts |= {part.partition("=")[2].strip('"') for part in parts if "=" in part.rstrip("=")}
    if scheme and words[0].lower() == "basic":
        try:
            pair = base64.b64decode(words[1])
        except ValueError:
            return parts
        for charset in ("latin-1", "utf-8"):
            text = pair.decode(charset, "replace")
            user, _, password = text.partition(":")
            parts |= {text, user, password}
    return parts


def _beside(name: str, value: str) -> re.Pattern[bytes]:
    """Finds a short value beside its name: `name=value`, `"Name": "value"`."""
    beside, itself = (re.escape(part.encode().translate(_FOLD)) for part in (name, value))
    if not beside:
        return re.compile(rb"\?(%b)(?![0-9A-Za-z])" % itself)
    return re.compile(rb"(?i:%b)[^0-9A-Za-z]{1,6}?(%b)(?![0-9A-Za-z])" % (beside, itself))


# ---- what a secret looks like


class _Form(NamedTuple):
    """A secret as it may stand in a text, folded; in base64 with the characters beside it that hold bits of it."""

    text: bytes
    before: bool = False
    after: bool = False
    base64: bool = False

    def found(self, text: bytes, *, cut: bool) -> Iterator[tuple[int, int]]:
        """Where it stands in a folded text; with `cut` also the beginning of it at the end of the text."""
        start = text.find(self.text)
        while start >= 0:
            end = start + len(self.text)
            yield self._with_edges(text, start, end) if self.base64 else (start, end)
            start = text.find(self.text, start + 1)
        if cut:
            begin = self.text[:SHORTEST_HIDDEN]
            start = text.find(begin, max(0, len(text) - len(self.text) + 1))
            while start >= 0:
                if self.text.startswith(text[start:]):
                    yield start, len(text)
                start = text.find(begin, start + 1)

    def _with_edges(self, text: bytes, start: int, end: int) -> tuple[int, int]:
        if self.before and start and text[start - 1] in _BASE64:
            start -= 1
        if self.after and end < len(text) and text[end] in _BASE64:
            end += 1
        while end < len(text) and text[end : end + 1] == b"=":
            end += 1
        return start, end


def _forms(secrets: Iterable[str]) -> set[_Form]:
    """All forms of these secrets; secrets that are too short have none."""
    plain = {each for secret in secrets for raw in _unquoted(secret) for each in _encodings(raw)}
    found = set()
    for raw in plain:
        if len(raw) < SHORTEST_HIDDEN:
            continue
        # What is base64 itself may be repeated without its padding.
        bare = raw.rstrip(b"=")
        found.add(_Form((bare if len(bare) >= SHORTEST_HIDDEN else raw).translate(_FOLD), base64=bare != raw))
        for offset in range(3):
            # Of a longer text in base64 only the characters that hold nothing but bits of the secret are known.
            encoded = base64.b64encode(bytes(offset) + raw)
            first, (last, rest) = -(-8 * offset // 6), divmod(8 * (offset + len(raw)), 6)
            found.add(_Form(encoded[first:last].translate(_FOLD), offset > 0, rest > 0, base64=True))
    return found


def _signature_forms(value: str) -> Iterator[_Form]:
    """
    Signatures with and without their versions. They are new in each request, and good for nothing but this request, so
    their base64 is not computed.
    """
    for signature in value.split():
        yield _Form(signature.encode().translate(_FOLD))
        yield _Form(re.split("[,=]", signature, maxsplit=1)[-1].encode().translate(_FOLD))


def _unquoted(secret: str) -> set[bytes]:
    """As it is written, and as the receiver of a URL gets it."""
    return {secret.encode(), unquote_to_bytes(secret), unquote_to_bytes(secret.replace("+", " "))}


def _encodings(raw: bytes) -> set[bytes]:
    """In UTF-8, in Latin-1 as in a header, and as UTF-8 that was taken for Latin-1."""
    if raw.isascii():
        return {raw}
    return {raw, raw.decode("latin-1").encode(), raw.decode("utf-8", "replace").encode("latin-1", "replace")}


# ---- what a text says


class _View(NamedTuple):
    """A text, perhaps decoded, and where each of its bytes, and its end, was in the source; None: at the same place."""

    text: bytes
    origin: list[int] | None

    def source(self, span: tuple[int, int]) -> tuple[int, int]:
        """Where this part was in the source."""
        if self.origin is None:
            return span
        start, end = span
        while end < len(self.text) and self.origin[end] == self.origin[end - 1]:
            end += 1  # an escape stands for several bytes
        return self.origin[start], self.origin[end]

    def decoded(self, escape: re.Pattern[bytes], meaning: Callable[[re.Match[bytes]], bytes]) -> "_View":
        origin = self.origin or list(range(len(self.text) + 1))
        pieces, places, position = [], list[int](), 0
        for match in escape.finditer(self.text):
            start, end = match.span()
            meant = meaning(match)
            pieces += [self.text[position:start], meant]
            places += origin[position:start]
            places += [origin[start]] * len(meant)
            position = end
        pieces.append(self.text[position:])
        return _View(b"".join(pieces), places + origin[position:])


def _json(match: re.Match[bytes]) -> bytes:
    high, low, unit, byte, other = match.groups()
    if high:
        return bytes.fromhex((high + low).decode()).decode("utf-16-be").encode()
    if unit:
        return chr(int(unit, 16)).encode("utf-8", "surrogatepass")
    return bytes([int(byte, 16)]) if byte else _LETTER_ESCAPES.get(other, other)


_DECODERS: list[tuple[bytes, re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]]] = [
    (
        b"\\",
        re.compile(
            rb"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))",
            re.DOTALL,
        ),
        _json,
    ),
    (b"%", re.compile(rb"%([0-9a-fA-F]{2})"), lambda match: bytes([int(match[1], 16)])),
    (
        b"&",
        re.compile(rb"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});"),
        lambda match: html.unescape(match[0].decode()).encode("utf-8", "replace"),
    ),
]


def _views(source: bytes) -> Iterator[_View]:
    """The source, and what its escapes say, each kind decoded up to DEPTH times, in any order."""
    seen, views = {source}, [_View(source, None)]
    yield views[0]
    for _ in range(DEPTH):
        decoded = []
        for view in views:
            for mark, escape, meaning in _DECODERS:
                if mark in view.text and (next_view := view.decoded(escape, meaning)).text not in seen:
                    seen.add(next_view.text)
                    decoded.append(next_view)
                    yield next_view
        views = decoded


def _without(source: bytes, spans: list[tuple[int, int]]) -> str:
    """The source with these parts hidden; parts that meet are hidden as one."""
    shown, position = list[str](), 0
    for start, end in sorted(spans):
        if start > position or not shown:
            shown += [source[position:start].decode("utf-8", "backslashreplace"), HIDDEN]
        position = max(position, end)
    return "".join(shown) + source[position:].decode("utf-8", "backslashreplace")


# ---- one attempt: what the log keeps of one request to an endpoint


#: How much of the response's body is kept, characters.
ANSWER = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request with one event, or with a batch of them. No secret is in it."""

    #: When it ended, ms on Redis's clock.
    at_ms: int
    #: The id of the event, and of what has expired; of a batch: those of its first event.
    event_id: str
    reservation: bytes
    #: The first and the last event in the stream, and how many the request had.
    first: bytes
    last: bytes
    events: int
    #: Which hand-over of the first event it was, and which attempt within that, both from 1.
    hand_over: int
    attempt: int
    #: `delivered`, `rejected` or `failed`.
    result: str
    #: The status, or why there was no response.
    reason: str
    milliseconds: int
    #: The beginning of the response's body; what is secret is hidden.
    answer: str
    #: The process that sent it.
    replica: str

    def fields(self) -> dict[str, str | bytes | int]:
        """As the entry of a stream."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> "Attempt":
        """The opposite of `fields`. A field that is missing, or is no number where one is needed, counts as empty."""
        text = {name: decode(fields.get(name.encode(), b"")) for name in cls.__slots__}
        number = {name: whole(fields.get(name.encode(), b"")) or 0 for name in cls.__slots__}
        return cls(
            number["at_ms"],
            text["event_id"],
            fields.get(b"reservation", b""),
            fields.get(b"first", b""),
            fields.get(b"last", b""),
            number["events"],
            number["hand_over"],
            number["attempt"],
            text["result"],
            text["reason"],
            number["milliseconds"],
            text["answer"],
            text["replica"],
        )

    def includes(self, entry: bytes) -> bool:
        """Whether this entry of the stream is in the range of the request."""
        try:
            return StreamId.parse(self.first) <= StreamId.parse(entry) <= StreamId.parse(self.last)
        except ValueError:
            return False


# ---- the last attempts to deliver, as the daemons have recorded them


#: How many attempts of each endpoint are searched for those with one event.
SEARCH = 10_000


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt, and where it went."""

    shard: str
    endpoint: str
    attempt: Attempt


def read_attempts(shard: Shard, endpoint: str, limit: int) -> list[RecordedAttempt]:
    """The last attempts of one endpoint, the newest first. Raises redis.RedisError."""
    rows: Any = shard.client.xrevrange(shard.keys.attempts(endpoint), count=limit)
    return [RecordedAttempt(shard.name, endpoint, Attempt.parse(fields)) for _, fields in cast(list[StreamRow], rows)]


def attempts_with(shard: Shard, endpoints: Iterable[str], entry: bytes) -> list[RecordedAttempt]:
    """
    The recorded attempts with this entry of the event stream, the newest first. Of a batch the first and the last entry
    are known, so a batch that begins before this entry and ends after it is among them. Raises redis.RedisError.
    """
    found = [each for name in endpoints for each in read_attempts(shard, name, SEARCH) if each.attempt.includes(entry)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True)
