"""Compares the status of a shard with the limits of a monitor, such as `overdue > 60s`."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sweeperd.config.types import parse_duration
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.status import ShardStatus
from sweeperd.text import span

#: What a value is about, and the number; infinite if it cannot be known.
_Value = tuple[str, float]
_LIMIT = re.compile(r"\s*([a-z-]+)\s*>\s*([0-9]+)\s*([a-z%]*)\s*")
_DURATION, _COUNT, _PERCENT = "a duration such as 60s", "a number", "a percentage such as 90%"


def _overdue_seconds(status: ShardStatus) -> Iterator[_Value]:
    return ((kind.kind, kind.oldest_overdue_seconds) for kind in status.kinds)


def _overdue(status: ShardStatus) -> Iterator[_Value]:
    return ((kind.kind, kind.overdue) for kind in status.kinds)


def _unswept_seconds(status: ShardStatus) -> Iterator[_Value]:
    ages = ((kind.kind, kind.tick_age_seconds) for kind in status.kinds)
    return ((kind, math.inf if age is None else age) for kind, age in ages)


def _quarantined(status: ShardStatus) -> Iterator[_Value]:
    return ((kind.kind, kind.quarantined) for kind in status.kinds)


def _endpoints(status: ShardStatus) -> Iterator[EndpointDocument]:
    return (endpoint for endpoint in status.endpoints if endpoint.state not in ("group", "unknown"))


def _undelivered_seconds(status: ShardStatus) -> Iterator[_Value]:
    ages = ((each.endpoint, each.pending, each.oldest_pending_seconds) for each in _endpoints(status))
    return ((name, math.inf if pending is None else age) for name, pending, age in ages)


def _undelivered(status: ShardStatus) -> Iterator[_Value]:
    pending = ((each.endpoint, each.pending) for each in _endpoints(status))
    return ((name, math.inf if count is None else count) for name, count in pending)


def _dead_letters(status: ShardStatus) -> Iterator[_Value]:
    yield "", status.dead_letters


def _silent(status: ShardStatus) -> Iterator[_Value]:
    """The silent processes."""
    yield "", math.inf if status.processes.known is None else len(status.processes.silent)


def _memory(status: ShardStatus) -> Iterator[_Value]:
    """The used share of maxmemory, percent."""
    percent = status.memory_percent
    yield "", math.inf if status.memory is None else percent or 0


#: The words, and the values that each compares by what its limit is.
_WORDS: dict[str, dict[str, Callable[[ShardStatus], Iterator[_Value]]]] = {
    "overdue": {_DURATION: _overdue_seconds, _COUNT: _overdue},
    "unswept": {_DURATION: _unswept_seconds},
    "quarantined": {_COUNT: _quarantined},
    "undelivered": {_DURATION: _undelivered_seconds, _COUNT: _undelivered},
    "dead-letters": {_COUNT: _dead_letters},
    "silent": {_COUNT: _silent},
    "memory": {_PERCENT: _memory},
}


@dataclass(frozen=True, slots=True)
class Limit:
    """`word` must not be above `most`, seconds, a number or percent. `text`: as it was given."""

    text: str
    word: str
    unit: str
    most: float

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """Raises ValueError, which says what is possible."""
        match = _LIMIT.fullmatch(text)
        if not match or match[1] not in _WORDS:
            raise ValueError(f"must be such as 'overdue > 60s'; the words are {', '.join(_WORDS)}")
        word, number, suffix = match.groups()
        unit = _COUNT if not suffix else _PERCENT if suffix == "%" else _DURATION
        if unit not in _WORDS[word]:
            raise ValueError(f"{word} is compared with {' or '.join(_WORDS[word])}")
        most = parse_duration(number + suffix).total_seconds() if unit is _DURATION else float(number)
        return cls(" ".join(text.split()), word, unit, most)

    def passed(self, status: ShardStatus) -> Iterator[str]:
        """A line for each value above the limit, of a shard that answers. A value that is not known is above."""
        for name, value in _WORDS[self.word][self.unit](status):
            if value > self.most:
                of = f" of {name}" if name else ""
                yield f"shard {status.name}: {self.word}{of} is {self._shown(value)}, limit {self.text}"

    def _shown(self, value: float) -> str:
        if math.isinf(value):
            return "never swept" if self.word == "unswept" else "not known"
        if self.unit is _DURATION:
            return span(value)
        return f"{value:,.0f}{' %' if self.unit is _PERCENT else ''}"
