"""Compares the status of a shard with the limits of a monitor, such as `overdue > 60s`."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sweeperd.config.types import parse_duration
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.status import ShardStatus
from sweeperd.text import span

#: What each value is about, and the number; None if it is not known.
_Values = Iterable[tuple[str, float | None]]
_LIMIT = re.compile(r"\s*([a-z-]+)\s*>\s*([0-9]+)\s*([a-z%]*)\s*")
_DURATION, _COUNT, _PERCENT = "a duration such as 60s", "a number", "a percentage such as 90%"


def _endpoints(status: ShardStatus) -> Iterator[EndpointDocument]:
    return (endpoint for endpoint in status.endpoints if endpoint.state not in ("group", "unknown"))


#: The words, and the values that each compares by what its limit is.
_WORDS: dict[str, dict[str, Callable[[ShardStatus], _Values]]] = {
    "overdue": {
        _DURATION: lambda status: ((kind.kind, kind.oldest_overdue_seconds) for kind in status.kinds),
        _COUNT: lambda status: ((kind.kind, kind.overdue) for kind in status.kinds),
    },
    "unswept": {_DURATION: lambda status: ((kind.kind, kind.tick_age_seconds) for kind in status.kinds)},
    "quarantined": {_COUNT: lambda status: ((kind.kind, kind.quarantined) for kind in status.kinds)},
    "undelivered": {
        _DURATION: lambda status: (
            (each.endpoint, None if each.pending is None else each.oldest_pending_seconds)
            for each in _endpoints(status)
        ),
        _COUNT: lambda status: ((each.endpoint, each.pending) for each in _endpoints(status)),
    },
    "dead-letters": {_COUNT: lambda status: [("", status.dead_letters)]},
    "silent": {_COUNT: lambda status: [("", None if status.processes.known is None else len(status.processes.silent))]},
    "memory": {_PERCENT: lambda status: [("", None if status.memory is None else status.memory_percent or 0)]},
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
            if value is None or value > self.most:
                of = f" of {name}" if name else ""
                yield f"shard {status.name}: {self.word}{of} is {self._shown(value)}, limit {self.text}"

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "never swept" if self.word == "unswept" else "not known"
        if self.unit is _DURATION:
            return span(value)
        return f"{value:,.0f}{' %' if self.unit is _PERCENT else ''}"
