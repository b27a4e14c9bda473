"""Counts the quarantined entries by reason."""

from dataclasses import dataclass
from typing import Any

from sweeperd.store.scripts import batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind
from sweeperd.text import decode

#: How many of the newest entries are counted by reason, how many of a reason are named, and how many are read at once.
COUNTED, NEWEST, SLICE = 1000, 3, 250


@dataclass(frozen=True, slots=True)
class ReasonCount:
    kind: str
    #: Empty if the hash is gone, or has no mark any more.
    reason: str
    count: int
    newest: tuple[str, ...]
    #: The meaning of the reason, if known.
    meaning: str = ""


def count_reasons(shard: Shard, kind: Kind) -> list[ReasonCount]:
    entries: Any = shard.client.zrange(kind.quarantine, -COUNTED, -1)
    found: dict[str, list[str]] = {}
    for part in batches(entries, SLICE):
        marks = run_commands(shard.client, map(kind.reason_command, part))
        # A key of another type gets the reason WRONG_TYPE, also without a mark.
        for entry, row in zip(part, marks, strict=True):
            named = "WRONG_TYPE" if isinstance(row, Exception) else decode((row[0] or b"").partition(b" ")[0])
            found.setdefault(named, []).append(decode(entry))
    return [
        ReasonCount(kind.name, reason, len(entries), tuple(reversed(entries[-NEWEST:])), kind.reasons.get(reason, ""))
        for reason, entries in found.items()
    ]
