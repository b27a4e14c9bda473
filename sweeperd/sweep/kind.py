"""Defines what a sweep works on and returns: the kind, the decision about an entry, the report of a tick."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import redis

from sweeperd.config.kinds import SumSettings
from sweeperd.config.templates import Word
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script
from sweeperd.text import decode, decode_list


class Outcome(enum.StrEnum):
    """The result of a decision about one index entry."""

    EXPIRED = "expired"
    SKIPPED = "skipped"
    IN_GRACE = "in_grace"
    NOT_DUE = "not_due"
    NOT_FOUND = "not_found"
    #: The kind is unproven, so an entry that a wrong setting would drop stays.
    HELD = "held"
    #: The entry would expire, but Redis is above `sweep.memory_limit`, so it stays.
    DEFERRED = "deferred"
    QUARANTINED = "quarantined"
    ERROR = "error"

    @property
    def stays(self) -> bool:
        """Whether the entry keeps its place in the index."""
        return self in (Outcome.IN_GRACE, Outcome.HELD, Outcome.DEFERRED, Outcome.ERROR)

    @property
    def shows_life(self) -> bool:
        """Whether the entry is active, so that the settings of its kind fit."""
        return self in (Outcome.EXPIRED, Outcome.IN_GRACE, Outcome.NOT_DUE, Outcome.DEFERRED)


#: The detail of an entry that is not due because `unless` protects the entry.
PROTECTED = "protected"


class Decision(NamedTuple):
    """The script's decision about one entry. A plain tuple, because there are millions after an outage."""

    id: bytes
    outcome: Outcome
    #: The state of a skipped entry, the reason for a quarantine, the text of an error, the outcome that a held entry
    #: would have (`would_be`), or PROTECTED.
    detail: str = ""
    tenant: bytes = b""
    #: From the end of the grace to the expiry, ms.
    lag_ms: int = 0
    #: When the grace ends, ms on the server's clock; 0 if unknown.
    grace_end_ms: int = 0
    #: The scopes without a budget to give the amount back to.
    missing: tuple[str, ...] = ()
    #: The exact fault of a quarantined entry, or why the settings do not explain a skipped or held one.
    why: str = ""
    #: The scopes whose closed budget has less reserved than the amount, and was left alone.
    closed: tuple[str, ...] = ()


def decision_of(entry: bytes, reply: Sequence[Any]) -> Decision:
    """The decision in a reply of a kind's script; the header of expire.lua lists the shapes."""
    outcome = Outcome(reply[0].decode())
    match outcome:
        case Outcome.EXPIRED:
            _, tenant, lag_ms, missing, *closed = reply
            lacking, shut = decode_list(missing), decode_list(closed[0]) if closed else ()
            return Decision(entry, outcome, tenant=tenant, lag_ms=lag_ms, missing=lacking, closed=shut)
        case Outcome.QUARANTINED:
            _, reason, tenant, *why = reply
            return Decision(entry, outcome, decode(reason), tenant=tenant, why=decode(b"".join(why)))
        case Outcome.IN_GRACE:
            return Decision(entry, outcome, grace_end_ms=reply[1])
        case _:
            detail, cause = [*map(decode, reply[1:]), "", ""][:2]
            return Decision(entry, outcome, detail, why=cause)


def would_be(detail: str) -> tuple[Outcome, str]:
    """The outcome and detail that a held entry with this detail has once its kind is proven."""
    outcome = Outcome(detail)
    return outcome, "INVALID_MEMBER" if outcome is Outcome.QUARANTINED else ""


@dataclass(frozen=True)
class GraceScan:
    """A script that marks the entries of a page in grace; it takes the arguments of page.lua, then `args`."""

    script: Script
    args: Sequence[bytes | int]


@dataclass(frozen=True)
class Budgets:
    """The entries hold amounts of budgets, hashes `<stem><scope>:<unit>`."""

    stem: bytes


@dataclass(frozen=True)
class Sums:
    """The entries hold amounts of the counters that `sums` declares, if any."""

    declared: Sequence[SumSettings] = ()
    #: Takes the keys and arguments of the kind's script and returns, in the step that decides the entry, {outcome,
    #: deadline, {counter's key, field, amount, counter's value or nil}, ...}, with a list for each of `declared`. Its
    #: texts are empty if the hash lacks a field of the counter's name.
    script: Script | None = None


@dataclass(frozen=True)
class Labels:
    """How logs and tables name the entries of a kind."""

    entry: str
    #: The names of the log's fields for an id, for several entries, and for what an expiry found missing.
    id: str = "id"
    entries: str = "entries"
    missing: str = "missing"
    #: What an expiry may find missing, for the terminal.
    lacking: str = "key"


@dataclass
class Breakage:
    """The error that shows that the script of a kind is broken; empty while none has."""

    cause: str = ""


class MakeCall(Protocol):
    """(id, trace id, whether the kind is proven, whether an expiry is deferred) to a run of the kind's script."""

    def __call__(self, entry: bytes, trace_id: str, proven: bool = False, defers: bool = False, /) -> Call: ...


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of entry. No script is read, generated or hashed before its first run."""

    name: str
    labels: Labels
    #: The keys: ZSET of deadlines, ZSET of the quarantine, HASH of the last tick.
    index: bytes
    quarantine: bytes
    ticks: bytes
    #: The name of an entry's hash is `stem`, the id, `end`.
    stem: bytes
    end: bytes = b""
    #: What an entry is: a hash, a string with a JSON object (`json`), or the member of the index itself (`member`).
    form: str = "hash"
    #: The parts of a member and the text between them.
    parts: Word = ()
    #: The fields with the deadline and the tenant. Without a field of the deadline, the score of the index counts.
    deadline: str | None
    tenant: str
    #: How many ms a unit of scores and deadlines is.
    unit_ms: int = 1
    #: The values of an active entry's fields; empty if the user's script decides.
    active: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The job whose lease a sweep of this kind holds.
    lease_job: str
    #: The end of the names of the kind's fields in `sweeperd:reconcile`.
    walk_suffix: str = ""
    #: The fields of every log line about the kind.
    log_fields: Mapping[str, object] = field(default_factory=dict)
    counters: Budgets | Sums = Sums()
    #: The field of `sweeperd:proofs`; empty if no setting can be wrong, so that the kind needs no proof.
    proof: bytes = b""
    #: How much later than its deadline an entry that waits or is protected may be in the index, ms.
    max_wait_ms: int = 0
    #: The grace if the entry's hash names none, ms.
    grace_ms: int = 0
    #: ZSET of the entries that `unless` protects, scored by the end of the grace, ms; None without `unless`.
    protected: bytes | None = None
    #: HASH of the deadlines of entries whose score a script has set, for a kind whose deadline is the score.
    notes: bytes | None = None
    #: HASH of the reasons of quarantined entries, and of the times at which entries were dismissed (`dismissed <ms>`),
    #: for a kind whose entries are not hashes.
    marks: bytes | None = None
    #: The known reasons for a quarantine with their meaning, and whether a user's script may give others.
    reasons: Mapping[str, str] = field(default_factory=dict)
    more_reasons: bool = False
    #: Whether the Cycles services sweep these entries too, so that their lease, counters and spike events apply.
    cycles: bool = False
    script: Script
    #: The same script with a `redis` that only records the writes. Returns {reply, writes, changes of counters}.
    explainer: Script
    #: ops/reconcile_entry, for a configured kind in the same step as its script without the writes. Arguments 2 to 5
    #: of reconcile_entry follow those of the kind's script.
    index_check: Script
    call: MakeCall
    #: The decision about an id in the script's reply.
    decision: Callable[[bytes, Any], Decision] = decision_of
    #: Marks the entries of a page that are in grace; None if the kind has no such script.
    grace_scan: GraceScan | None = None
    #: Checks that the kind can be swept on this server. Raises KindRefused or redis.RedisError.
    check: Callable[["redis.Redis"], None] = lambda _: None
    #: Whether an error of the script means that no entry can be decided until the settings are corrected.
    is_broken_by: Callable[[Exception], bool] = lambda _: False
    breakage: Breakage = field(default_factory=Breakage)

    @property
    def broken(self) -> str:
        """Why no script of the kind runs any more, since one that was killed would block Redis again; else empty."""
        return self.breakage.cause

    def breaks(self, error: Exception) -> bool:
        """Whether this error of a script shows that it is broken. From then on the kind is."""
        breaks = self.is_broken_by(error)
        if breaks and not self.broken:
            self.breakage.cause = describe(error)
        return breaks

    def adopt(self, before: "Kind") -> None:
        """Stay broken, if the kind of the settings before is, and has the same script."""
        if before.broken and before.script.source == self.script.source:
            self.breakage.cause = before.broken

    def entry_key(self, entry: bytes) -> bytes:
        """The name of the entry's key; of the index if the entry has no key."""
        return self.index if self.form == "member" else self.stem + entry + self.end

    def score_of(self, ms: float) -> str:
        return str(ms) if self.unit_ms == 1 else repr(ms / self.unit_ms)

    def moment_of(self, score: bytes | float) -> float:
        return float(score) * self.unit_ms

    def reason_command(self, entry: bytes, *fields: str) -> tuple[str | bytes, ...]:
        """Reads why an entry is in quarantine, and from a hash more fields."""
        if self.marks is None:
            return ("HMGET", self.entry_key(entry), "quarantine_reason", *fields)
        return ("HMGET", self.marks, entry)

    def names(self, key: bytes) -> bool:
        """Whether `key` could be the name of an entry's key."""
        longer = self.form != "member" and len(key) > len(self.stem) + len(self.end)
        return longer and key.startswith(self.stem) and key.endswith(self.end)


@dataclass(frozen=True)
class SweepReport:
    """The result of one tick."""

    trace_id: str
    counts: Mapping[Outcome, int]
    #: Whether the tick reached the end of the due entries.
    complete: bool
    duration_seconds: float
    #: How many entries in grace were skipped as part of a cached range, without a decision about each.
    passed: int
    #: How many script calls were in flight at once in the last batches.
    pipeline_depth: int
    #: Why the tick failed although Redis answered; empty if it did not.
    failure: str = ""
    #: The score up to which every entry was decided, ms; 0 if the tick failed or was cut short.
    seen_ms: int = 0
    #: The likely cause if entries of an unproven kind were held.
    held_because: str = ""
    #: How full Redis is, if expiries were deferred.
    deferred_because: str = ""

    @property
    def candidates(self) -> int:
        return sum(self.counts.values())

    @property
    def changed(self) -> bool:
        """Whether the tick decided more than entries in grace, or was cut short."""
        return not self.complete or self.candidates > self.counts.get(Outcome.IN_GRACE, 0)
