"""
The bodies of ordinary events, filled into a template of bytes, at a fraction of the cost of dicts and JSON.

An ordinary event is an expired reservation that differs from other ones in a few plain values. Some of its values
(tenant, scope, unit, trace) are those of many events, so the template is filled in two steps, and the result of the
first one is kept. The second step fills all events of a batch at once, which costs less than one after the other.
"""

import functools
import hashlib
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.delivery import payload
from sweeperd.delivery.payload import EVENT_TYPE, EXPIRY_FIELDS, Message, hash_part
from sweeperd.text import rfc3339

#: So many results of the first step are kept.
KEPT = 256

#: The fields that many events have in common, and those that are an event's own.
_COMMON_TEXTS, _COMMON_INTEGERS = (b"tenant", b"scope", b"unit", b"trace_id"), (b"grace_ms", b"extensions")
_COMMON_LISTS = (b"missing", b"closed")
_COMMON = _COMMON_TEXTS + _COMMON_INTEGERS + _COMMON_LISTS
_TIMES = (b"created_at", b"expires_at", b"expired_at")
_OWN = (b"id", b"amount", *_TIMES)

Values = tuple[bytes, ...]
Choice = Callable[[Values], Values]

_common_values: Callable[[Sequence[bytes]], Values] = operator.itemgetter(*map(EXPIRY_FIELDS.index, _COMMON))
_own_values: Callable[[Sequence[bytes]], Values] = operator.itemgetter(*map(EXPIRY_FIELDS.index, _OWN))

#: Values, a line each, where JSON writes every one of them as it stands: printable ASCII without quote and backslash,
#: numbers without leading zeros, lists that are empty, times from 2001 to 2286.
_TEXT, _INTEGER, _LIST, _TIME = rb"[ !#-\[\]-~]+", rb"(?:0|[1-9][0-9]{0,18})", rb"\[\]", rb"[1-9][0-9]{12}"
_plain_common = re.compile(
    b"\n".join([_TEXT] * len(_COMMON_TEXTS) + [_INTEGER] * len(_COMMON_INTEGERS) + [_LIST] * len(_COMMON_LISTS))
).fullmatch
_plain_own = re.compile(b"\n".join([_TEXT, _INTEGER] + [_TIME] * len(_TIMES))).fullmatch
#: The length of a time, as `hash_part` writes it.
_TIME_LENGTH = len(b"1763712065000").to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class HalfFilled:
    """What events with the same common values share."""

    #: Has `%b` in place of each value that is an event's own.
    body: bytes
    #: What is hashed to the event id before the id of the reservation.
    hashed: bytes
    trace_id: str


@dataclass(frozen=True, slots=True)
class Filled:
    """Ordinary events: their ids and traces in order, and their JSON with a comma between two of them."""

    event_ids: list[str]
    trace_ids: list[str]
    body: bytes


class Template:
    """The bodies in one format of the ordinary events of one shard. `origin` identifies the shard."""

    def __init__(self, shard: str, origin: bytes, form: Format) -> None:
        self._shard = shard.encode()
        self._origin_part = hash_part(origin)
        self._body, self._common_places, self._own_places = _template(form)
        #: The first step; None where a value is odd.
        self._half = functools.lru_cache(KEPT)(self._half_filled)

    def fill(self, events: Sequence[Sequence[bytes] | None], sequences: Sequence[str]) -> Filled | None:
        """
        Events, each by its values in the order of EXPIRY_FIELDS, None where it has other fields; and the place of each
        in the stream. Returns None where one of them is not ordinary.
        """
        expiries = [values for values in events if values]
        own = [_own_values(values) for values in expiries]
        if len(own) < len(events) or not all(map(_plain_own, map(b"\n".join, own))):
            return None
        halves = [half for values in expiries if (half := self._half(_common_values(values)))]
        return self._filled(halves, own, sequences) if len(halves) == len(own) else None

    def message(self, values: Sequence[bytes], sequence: str) -> Message | None:
        """
        One event, by its values in the order of EXPIRY_FIELDS, and its place in the stream. Returns None where it is
        not ordinary. `fill` would take twice as long for a single one.
        """
        name, amount, created, expires, expired = own = _own_values(values)
        half = self._half(_common_values(values)) if _plain_own(b"\n".join(own)) else None
        if half is None:
            return None
        event_id, ttl_ms = _event_id(half.hashed, name, expired), b"%d" % (int(expires) - int(created))
        times = _text(created), _text(expires), _text(expired)
        row = (name, amount, *times, ttl_ms, event_id.encode(), sequence.encode())
        return Message(event_id, EVENT_TYPE, half.trace_id, half.body % self._own_places(row), sequence)

    def _filled(self, halves: Sequence[HalfFilled], own: Sequence[Values], sequences: Sequence[str]) -> Filled:
        """The second step, with plain values."""
        names, amounts, created, expires, expired = zip(*own, strict=True)
        event_ids = [
            _event_id(half.hashed, name, expired_at)
            for half, name, expired_at in zip(halves, names, expired, strict=True)
        ]
        rows = zip(
            names,
            amounts,
            map(_text, created),
            map(_text, expires),
            map(_text, expired),
            map(b"%d".__mod__, map(operator.sub, map(int, expires), map(int, created))),
            map(str.encode, event_ids),
            map(str.encode, sequences),
            strict=True,
        )
        values = tuple(itertools.chain.from_iterable(map(self._own_places, rows)))
        body = b",".join([half.body for half in halves]) % values
        return Filled(event_ids, [half.trace_id for half in halves], body)

    def _half_filled(self, values: Values) -> HalfFilled | None:
        if not _plain_common(b"\n".join(values)):
            return None
        tenant, _, _, trace_id, *_ = values
        row = tuple(value.replace(b"%", b"%%") for value in (*values[: -len(_COMMON_LISTS)], self._shard))
        body = self._body % self._common_places(row)
        return HalfFilled(body, self._origin_part + hash_part(tenant), trace_id.decode())


def _event_id(hashed: bytes, name: bytes, expired_at: bytes) -> str:
    parts = b"%b%b%b%b%b" % (hashed, len(name).to_bytes(4, "big"), name, _TIME_LENGTH, expired_at)
    return "evt_" + hashlib.sha256(parts).hexdigest()[:32]


def _text(time: bytes) -> bytes:
    """A time in RFC 3339, without the `Z` that ends it in the template."""
    return _second(time[:-3]) + time[-3:]


def _template(form: Format) -> tuple[bytes, Choice, Choice]:
    """
    A body with `%b` in place of each common value, `%%b` in place of each own one, and two functions that take the
    values from a row in the order of these places. It is made from an event whose values are found again in its JSON.
    """
    marked = {name: b"<%b>" % name for name in (*_COMMON_TEXTS, b"id")}
    marked |= {name: b"%d" % number for number, name in enumerate((*_COMMON_INTEGERS, b"amount"), 10**18)}
    # Moments of which no two pairs lie equally far apart: a span of time is found in the JSON as well.
    marked |= zip(_TIMES, (b"1000000000000", b"1000000001001", b"1000000004004"), strict=True)
    ttl_ms = b"%d" % (int(marked[b"expires_at"]) - int(marked[b"created_at"]))
    common = (*(marked[name] for name in _COMMON_TEXTS + _COMMON_INTEGERS), b"<shard>")
    times = [_text(marked[name]) for name in _TIMES]
    own = (marked[b"id"], marked[b"amount"], *times, ttl_ms, b"<event_id>", b"<sequence>")
    body = payload.as_json(form, "<shard>", "<event_id>", "<sequence>", marked)
    marks = re.compile(b"|".join(map(re.escape, common + own)))
    found = marks.findall(body)
    return (
        marks.sub(lambda mark: b"%b" if mark[0] in common else b"%%b", body),
        operator.itemgetter(*[common.index(mark) for mark in found if mark in common]),
        operator.itemgetter(*[own.index(mark) for mark in found if mark in own]),
    )


@functools.lru_cache(maxsize=1024)
def _second(seconds: bytes) -> bytes:
    """A time in RFC 3339, up to the dot before its milliseconds. The template has the `Z` that ends it."""
    return rfc3339(int(seconds) * 1000)[:20].encode()
