"""Makes a failure easy to read: the smallest entry that fails in the same way, and the line of Lua that is to blame."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

from sweeperd.kit.failure import Failure, Property
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import Content, Sample

#: How long to look for a smaller entry, seconds.
LIMIT = 2.0
#: Where an error of Redis names a line of the script.
_LINE = re.compile(r"user_script:\s*(\d+)")


def explained(lab: Lab, holds: Property, sample: Sample, failure: Failure) -> Failure:
    """The failure of the smallest entry, with that entry and the line of the script."""
    until = time.monotonic() + LIMIT
    smaller: tuple[Sample, Failure] | None = (sample, failure)
    while smaller is not None:
        sample, failure = smaller
        smaller = next(_smaller(lab, holds, sample, failure, until), None)
    entry = {"id": sample.id, "hash": sample.hash, "keys": sample.keys}
    return replace(failure, entry=json.dumps(entry, ensure_ascii=False), line=_line(lab.text, failure.problem))


def _smaller(
    lab: Lab, holds: Property, sample: Sample, failure: Failure, until: float
) -> Iterator[tuple[Sample, Failure]]:
    """Smaller samples that fail in the same way."""
    for candidate in _candidates(lab, sample):
        if time.monotonic() > until:
            return
        found = holds(lab, candidate)
        if found is not None and _kind(found) == _kind(failure):
            yield candidate, found


def _kind(failure: Failure) -> str:
    """The problem without its numbers."""
    return re.sub(r"\d+", "", failure.problem)


def _candidates(lab: Lab, sample: Sample) -> Iterator[Sample]:
    """The sample with one thing less, or with a smaller number. What it has to leave is not known then."""
    sample = replace(sample, after=None)
    for key in sample.keys:
        yield replace(sample, keys={name: content for name, content in sample.keys.items() if name != key})
    for field in sample.hash:
        if field != lab.settings.deadline:
            yield sample.changed(field, None)
    for key, content in sample.keys.items():
        for less in _less(content):
            yield replace(sample, keys=sample.keys | {key: less})
    for field, value in sample.hash.items():
        if field != lab.settings.deadline:
            yield from (sample.changed(field, number) for number in _smaller_numbers(value))


def _less(content: Content) -> Iterator[Content]:
    """A key with one field or member less, or with a smaller number."""
    ((type_, value),) = content.items()
    if type_ == "string":
        yield from ({type_: number} for number in _smaller_numbers(str(value)))
    elif type_ in ("hash", "zset"):
        for name in value if len(value) > 1 else ():
            yield {type_: {other: held for other, held in value.items() if other != name}}
        for name, held in value.items() if type_ == "hash" else ():
            yield from ({type_: value | {name: number}} for number in _smaller_numbers(str(held)))
    else:
        for place in range(len(value)) if len(value) > 1 else ():
            yield {type_: [*value[:place], *value[place + 1 :]]}


def _smaller_numbers(text: str) -> Iterator[str]:
    if text.isascii() and text.isdigit() and len(text) < 20:
        number = int(text)
        yield from (str(less) for less in dict.fromkeys((0, 1, number // 2, number - 1)) if 0 <= less < number)


def _line(text: str, problem: str) -> str:
    """The line that an error of Redis names, with its number; empty where it names none."""
    named = _LINE.search(problem)
    lines = text.splitlines()
    return f"{named[1]}: {lines[int(named[1]) - 1].strip()}" if named and int(named[1]) <= len(lines) else ""
