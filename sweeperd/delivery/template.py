"""
The body of an ordinary event, filled into a template of bytes, at a fraction of the cost of a dict and JSON.

An ordinary event is an expired reservation that differs from other ones in a few plain values. Some of its values
(tenant, scope, unit, trace) are those of many events, so the template is filled in two steps, and the result of the
first one is kept.
"""

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.delivery import payload
from sweeperd.delivery.payload import Fields, hash_part
from sweeperd.text import rfc3339

#: So many results of the first step are kept.
KEPT = 256

#: The fields that many events have in common, and those that are an event's own.
_COMMON_TEXTS, _COMMON_INTEGERS = (b"tenant", b"scope", b"unit", b"trace_id"), (b"grace_ms", b"extensions")
_COMMON = _COMMON_TEXTS + _COMMON_INTEGERS
_TIMES = (b"created_at", b"expires_at", b"expired_at")
_OWN = (b"id", b"amount", *_TIMES)

Values = tuple[bytes, ...]
Choice = Callable[[Values], Values]

common_values: Callable[[Fields], Values] = operator.itemgetter(*_COMMON)
own_values: Callable[[Fields], Values] = operator.itemgetter(*_OWN)

#: Values, a line each, where JSON writes every one of them as it stands: printable ASCII without quote and backslash,
#: numbers without leading zeros, times from 2001 to 2286.
_TEXT, _INTEGER, _TIME = rb"[ !#-\[\]-~]+", rb"(?:0|[1-9][0-9]{0,18})", rb"[1-9][0-9]{12}"
_plain_common = re.compile(b"\n".join([_TEXT] * len(_COMMON_TEXTS) + [_INTEGER] * len(_COMMON_INTEGERS))).fullmatch
_plain_own = re.compile(b"\n".join([_TEXT, _INTEGER] + [_TIME] * len(_TIMES))).fullmatch

#: Fields that no expired reservation has: of another kind, or of an event that is no expiry.
_OF_OTHERS = frozenset({b"kind", b"type", b"data"})


def is_ordinary(fields: Fields) -> bool:
    """Whether these can be the fields of an ordinary event; their values are not looked at."""
    return (
        fields.keys().isdisjoint(_OF_OTHERS)
        and fields.get(b"missing", b"[]") == b"[]"
        and fields.get(b"closed", b"[]") == b"[]"
    )


@dataclass(frozen=True, slots=True)
class HalfFilled:
    """What events with the same common values share."""

    #: Has `%b` in place of each value that is an event's own.
    body: bytes
    #: What is hashed to the event id before the id of the reservation.
    hashed: bytes
    trace_id: str


class Template:
    """The bodies in one format of the ordinary events of one shard. `origin` identifies the shard."""

    def __init__(self, shard: str, origin: bytes, form: Format) -> None:
        self._shard = shard.encode()
        self._origin_part = hash_part(origin)
        self._body, self._common_places, self._own_places = _template(form)
        #: The first step; None where a value is odd.
        self.half_filled = functools.lru_cache(KEPT)(self._half_filled)

    def _half_filled(self, values: Values) -> HalfFilled | None:
        if not _plain_common(b"\n".join(values)):
            return None
        tenant, _, _, trace_id, *_ = values
        row = tuple(value.replace(b"%", b"%%") for value in (*values, self._shard))
        body = self._body % self._common_places(row)
        return HalfFilled(body, self._origin_part + hash_part(tenant), trace_id.decode())

    def fill(self, half: HalfFilled, values: Values, event_id: bytes, sequence: bytes) -> bytes:
        """The second step, with plain values."""
        name, amount, created_at, expires_at, expired_at = values
        row = (
            name,
            amount,
            _second(created_at[:-3]) + created_at[-3:],
            _second(expires_at[:-3]) + expires_at[-3:],
            _second(expired_at[:-3]) + expired_at[-3:],
            b"%d" % (int(expires_at) - int(created_at)),
            event_id,
            sequence,
        )
        return half.body % self._own_places(row)


def are_plain(own: Values) -> bool:
    """Whether these own values of an event are written in JSON as they stand."""
    return _plain_own(b"\n".join(own)) is not None


def _template(form: Format) -> tuple[bytes, Choice, Choice]:
    """
    A body with `%b` in place of each common value, `%%b` in place of each own one, and two functions that take the
    values from a row in the order of these places. It is made from an event whose values are found again in its JSON.
    """
    marked = {name: b"<%b>" % name for name in (*_COMMON_TEXTS, b"id")}
    marked |= {name: b"%d" % (10**18 + number) for number, name in enumerate((*_COMMON_INTEGERS, b"amount"))}
    marked |= {name: b"%d" % (10**12 + 1001 * number**2) for number, name in enumerate(_TIMES)}
    times = [_second(marked[name][:-3]) + marked[name][-3:] for name in _TIMES]
    ttl_ms = b"%d" % (int(marked[b"expires_at"]) - int(marked[b"created_at"]))
    common = (*common_values(marked), b"<shard>")
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
