"""Shrinks an entry that breaks a property to the smallest one that fails in the same way."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

from sweeperd.kit.judge import Failure, Property
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import Content, Sample

#: The time limit of the search, seconds.
LIMIT = 2.0
#: The line number of the script in an error of Redis.
_LINE = re.compile(r"user_script:\s*(\d+)")


def shrunk(lab: Lab, holds: Property, sample: Sample, failure: Failure) -> Failure:
    """The failure of the smallest entry that was found, with the entry and the failing line of the script."""
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
    """The smaller samples that fail in the same way."""
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
    """The sample without one part of it, or with a smaller number."""
    sample = replace(sample, after=None)  # is unknown for a changed entry
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
    """The key without one field or member, or with a smaller number."""
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
    """The line of the script that the error names, or ""."""
    named = _LINE.search(problem)
    lines = text.splitlines()
    return f"{named[1]}: {lines[int(named[1]) - 1].strip()}" if named and int(named[1]) <= len(lines) else ""
