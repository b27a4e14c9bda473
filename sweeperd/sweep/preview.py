"""Previews a sweep: decides entries without a write, and adds up what would happen to them and to the counters."""

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from sweeperd.document import Count, Document, Text, Truncated
from sweeperd.errors import KindRefused
from sweeperd.store.shard import Shard
from sweeperd.sweep.explanation import Explanation, explain
from sweeperd.sweep.index import START, read_due
from sweeperd.sweep.kind import Decision, Kind, Outcome, would_be
from sweeperd.sweep.proof import may_be_trusted
from sweeperd.sweep.sample import sample

#: Entries per round trip, and up to how many of each outcome are named.
BATCH, NAMED = 50, 10
#: Up to how many counters are added up, and listed.
ADDED, LISTED = 100_000, 100
#: Up to how many causes of outcomes are counted.
CAUSES = 1000

#: The setting to check if no entry is alive, by the outcome or by the reason for a quarantine.
_SETTINGS = {
    "not_found": "`key`",
    "WRONG_TYPE": "`key`",
    "INVALID_JSON": "`entry`",
    "INVALID_MEMBER": "`member`",
    "INVALID_STATE": "`active`",
    "INVALID_EXPIRY": "`deadline`",
    "MISSING_FIELD": "`give_back`",
    "INVALID_PLAN": "`give_back`",
    "SCRIPT_ERROR": "`script`",
}


class PreviewStage(enum.StrEnum):
    DECIDING = "deciding"


#: Called with the stage, how many entries were decided, and how many there are.
PreviewProgress = Callable[[PreviewStage, int, int], None]


class PreviewCounts(Document):
    """Decisions without writes, by outcome."""

    candidates: Count = Field(description="Index entries decided.")
    would_expire: Count
    skipped: Count = Field(description="Entries that have ended; a sweep would remove them from the index.")
    in_grace: Count = Field(description="Entries whose grace has not ended.")
    not_due: Count = Field(description="Entries whose deadline is later, or that wait or are protected.")
    not_found: Count = Field(description="Entries without a hash; a sweep would remove them from the index.")
    deferred: Count = Field(description="0: without writes, nothing waits for memory.")
    held: Count = Field(description="Entries that stay because no entry of their kind was seen alive yet.")
    quarantined: Count = Field(description="Entries that would be set aside.")
    errors: Count = Field(description="Entries whose script call failed.")


class PreviewedEntry(Document):
    """One of the first entries with an outcome."""

    outcome: str
    id: Text
    detail: str = Field(description="The state, the reason for a quarantine, or the error.")
    why: str = Field(description="The exact cause; empty if there is no more to say.")


class PreviewedCounter(Document):
    """A counter that expiries would change; a sweep may quarantine entries once the sum passes a limit."""

    key: Text
    field: Text = Field(description="The field of the hash; empty if the key is a string.")
    holds: int = Field(description="What the counter holds now.")
    change: int = Field(description="The sum over all entries.")
    would_hold: int
    entries: Count = Field(description="How many entries change it.")


class PreviewDocument(PreviewCounts):
    """What a sweep would do with the entries of one kind on one shard."""

    shard: str
    kind: str
    hint: str = Field(description="What is probably wrong if no entry is alive; else empty.")
    entries: list[PreviewedEntry] = Field(description=f"The first {NAMED} entries of each outcome.")
    counters: list[PreviewedCounter] = Field(description=f"Up to {LISTED} counters that most entries change.")
    truncated: Truncated


@dataclass
class _Sum:
    """The changes of one counter."""

    holds: int
    change: int = 0
    entries: int = 0


@dataclass
class Preview:
    """What a sweep would do with entries of one kind."""

    kind: Kind
    counts: Counter[Outcome] = field(default_factory=Counter)
    named: dict[Outcome, list[Decision]] = field(default_factory=dict)
    _sums: dict[tuple[bytes, bytes], _Sum] = field(default_factory=dict)
    #: How often each outcome had this detail and cause.
    _causes: Counter[tuple[Outcome, str, str]] = field(default_factory=Counter)

    def add(self, explanation: Explanation) -> None:
        decision = explanation.decision
        self.counts[decision.outcome] += 1
        if len(named := self.named.setdefault(decision.outcome, [])) < NAMED:
            named.append(decision)
        cause = decision.outcome, decision.detail, decision.why
        if cause in self._causes or len(self._causes) < CAUSES:
            self._causes[cause] += 1
        touched = {change[:2] for change in explanation.changes}
        for change in explanation.changes:
            counter = change.key, change.field
            if counter in self._sums or len(self._sums) < ADDED:
                self._sums.setdefault(counter, _Sum(change.holds)).change += change.change
        for counter in touched & self._sums.keys():
            self._sums[counter].entries += 1

    @property
    def shows_life(self) -> bool:
        """Whether an entry is alive, so that the settings of the kind fit."""
        return any(count and outcome.shows_life for outcome, count in self.counts.items())

    @property
    def hint(self) -> str:
        """What is probably wrong if no entry is alive; else empty."""
        if not self._causes or self.shows_life or not self.kind.proof:
            return ""
        (outcome, detail, why), count = self._causes.most_common(1)[0]
        if 2 * count <= self.counts.total() or outcome is Outcome.ERROR:
            return ""
        if outcome is Outcome.HELD:
            outcome, detail = would_be(detail)
        setting = _SETTINGS.get(detail if outcome is Outcome.QUARANTINED else outcome.value)
        if outcome is Outcome.QUARANTINED:
            why = f"{detail} {why}".rstrip()
        elif outcome is Outcome.SKIPPED and not why:
            return f"the state is {detail}: are `ended` and `over` right?"
        elif outcome is Outcome.SKIPPED:
            alive = "`active`" if self.kind.active else "`script`"
            setting = "`ended`" if "ended names it" in why else alive
        if setting is None:
            return ""
        return f"{why}: is {setting} right?" if why else f"is {setting} right?"

    @property
    def says(self) -> str:
        """The counts in one line, such as "0 would expire, 200 not found: is `key` right?"."""
        others = (
            f"{count} {outcome.value.replace('_', ' ')}"
            for outcome, count in sorted(self.counts.items())
            if count and outcome is not Outcome.EXPIRED
        )
        text = ", ".join([f"{self.counts[Outcome.EXPIRED]} would expire", *others])
        return f"{text}: {self.hint}" if self.hint else text

    def document(self, shard: Shard) -> PreviewDocument:
        most = sorted(self._sums.items(), key=lambda item: (-item[1].entries, item[0]))[:LISTED]
        return PreviewDocument.made_of(
            self,
            **counts_of(self.counts),
            shard=shard.name,
            kind=self.kind.name,
            entries=[
                PreviewedEntry.made_of(each, outcome=_name(outcome))
                for outcome, named in sorted(self.named.items())
                for each in named
            ],
            counters=[
                PreviewedCounter.made_of(each, key=key, field=name, would_hold=each.holds + each.change)
                for (key, name), each in most
            ],
            truncated=len(self._sums) > len(most),
        )


def _name(outcome: Outcome) -> str:
    return {Outcome.EXPIRED: "would_expire", Outcome.ERROR: "errors"}.get(outcome, outcome.value)


def counts_of(counts: Counter[Outcome]) -> dict[str, int]:
    return {"candidates": counts.total(), **{_name(outcome): counts[outcome] for outcome in Outcome}}


def preview_due(shard: Shard, kind: Kind, page: int, progress: PreviewProgress = lambda *_: None) -> Preview:
    """What a sweep would do with all due entries, `page` ids at a time. Raises KindRefused, redis.RedisError."""
    kind.check(shard.client)
    until = shard.read_clock()

    def decided(*, proven: bool) -> Preview:
        total = int(shard.client.zcount(kind.index, "-inf", kind.score_of(until)))
        preview = Preview(kind)
        for ids in _due(shard, kind, until, page):
            for explanation in _decided(shard, kind, ids, proven=proven):
                preview.add(explanation)
            progress(PreviewStage.DECIDING, preview.counts.total(), total)
        return preview

    preview = decided(proven=may_be_trusted(shard, kind))
    # If an entry behind the held ones proves the kind, a sweep decides the held ones again.
    return decided(proven=True) if preview.counts[Outcome.HELD] and preview.shows_life else preview


def preview_sample(shard: Shard, kind: Kind, most: int) -> Preview:
    """What a sweep would do with up to `most` entries, due or not. Raises KindRefused, redis.RedisError."""
    kind.check(shard.client)
    preview = Preview(kind)
    for explanation in _decided(shard, kind, sample(shard, kind, most), proven=False):
        decision = explanation.decision
        if decision.outcome is Outcome.HELD:  # says what it would be and why, which a proven kind does not say
            outcome, detail = would_be(decision.detail)
            decision = decision._replace(outcome=outcome, detail=detail)
        preview.add(replace(explanation, decision=decision))
    return preview


def _decided(shard: Shard, kind: Kind, ids: Sequence[bytes], *, proven: bool) -> Iterator[Explanation]:
    for explanation in explain(shard, kind, ids, BATCH, proven=proven):
        if kind.broken:
            raise KindRefused(f"{kind.name}: not swept: {kind.broken}")
        yield explanation


def _due(shard: Shard, kind: Kind, until: int, count: int) -> Iterator[list[bytes]]:
    position = START
    while entries := read_due(shard, kind, until, position, count):
        yield [entry.id for entry in entries]
        position = position.after((entry, True) for entry in entries)
