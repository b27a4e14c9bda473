"""Finds the entries of a kind that its index lacks, and adds them."""

import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from sweeperd.document import Count, Document, ShardsDocument, Text
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.subjects import HELD, Subject
from sweeperd.text import decode

#: Ids that are kept for each outcome.
NAMED = 10
#: What an entry is -> what that means.
MEANINGS = {
    "to_index": "living, and not in the index",
    "indexed": "in the index already",
    "ended": "no longer living",
    "quarantined": "in quarantine",
    "dismissed": "dismissed from the quarantine",
    "no_deadline": "living, but without a TTL: nothing says when they end",
    "wrong_deadline": "living, but their deadline is not a time in the unit of the kind",
    "malformed": "not of the form that the settings name: a sweep would quarantine them",
    "unknown": "in a state that the settings do not name",
}


class IndexedShardDocument(Document):
    """The entries of a kind on one shard."""

    shard: str
    kind: str
    counts: dict[str, Count] = Field(
        description="Outcome to number: to_index, indexed, ended, quarantined, dismissed, no_deadline, wrong_deadline, "
        "malformed, unknown."
    )
    ids: dict[str, list[Text]] = Field(description="The first ten ids of each outcome.")
    overdue: Count = Field(description="How many of `to_index` expire with the next sweep.")
    added: Count = Field(description="How many index entries this command has added.")


class IndexDocument(ShardsDocument, title="sweeperd index --kind NAME --json"):
    dry_run: bool
    shards: list[IndexedShardDocument]


@dataclass
class Survey:
    counts: Counter[str] = field(default_factory=Counter)
    ids: dict[str, list[bytes]] = field(default_factory=dict)
    overdue: int = 0
    #: Why an entry of an unknown state would be held.
    held_because: str = ""

    def add(self, outcome: str, entry: bytes) -> None:
        self.counts[outcome] += 1
        named = self.ids.setdefault(outcome, [])
        if len(named) < NAMED:
            named.append(entry)


def survey(subject: Subject, match: str) -> Survey:
    """
    Reads all keys whose id matches the glob pattern, and changes nothing. A key that SCAN returns twice counts twice.
    Raises Interrupted, KindRefused, redis.RedisError.
    """
    found, now = Survey(), subject.shard.read_clock()
    with subject.shard.reaching(), subject:
        for page in _pages(subject, match):
            for entry, reply in subject.rows(page, otherwise="?"):
                outcome, deadline = _outcome(subject, reply)
                if outcome == "unknown":
                    found.held_because = found.held_because or decode(reply[1])
                if outcome in MEANINGS:
                    found.overdue += deadline is not None and deadline + subject.kind.grace_ms < now
                    found.add(outcome, entry)
    return found


def add_missing(subject: Subject, match: str) -> Iterator[int]:
    """
    Adds the missing index entries, and yields how many of each page. One script judges and writes an entry, so what an
    interrupted run has added is skipped. Raises what `survey` raises.
    """
    with subject.shard.reaching(), subject:
        for page in _pages(subject, match):
            rows = subject.rows(page, otherwise="+")
            if added := sum(_outcome(subject, reply)[0] == "to_index" for _, reply in rows):
                yield added


def _pages(subject: Subject, match: str) -> Iterator[list[bytes]]:
    for _, page in subject.hashes():
        ids = [entry for entry in page if fnmatch.fnmatchcase(decode(entry), match)]
        if ids:
            yield ids


def _outcome(subject: Subject, reply: Sequence[Any]) -> tuple[str, float | None]:
    """One of MEANINGS or `gone`, from a reply of reconcile_entry.lua; and the deadline in ms of what is to index."""
    told = decode(reply[0])
    if len(reply) == 1:
        return told, None
    if reply[0] == HELD:
        return "unknown", None
    if told != Fault.LOST:
        return ("gone" if told == Fault.ORPHAN else "indexed"), None
    if reply[3:]:
        return "to_index", None  # when the TTL ends
    if not reply[1]:
        return "no_deadline", None
    return "to_index", float(reply[1]) * subject.kind.unit_ms
