"""The values of a sweep: a kind of entries, a decision about one entry, and the report of a tick."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import redis

from sweeperd.config.kinds import SumSettings
from sweeperd.store.scripts import Call, Script
from sweeperd.text import decode, decode_list


class Outcome(enum.StrEnum):
    """The result of a decision about one index entry."""

    EXPIRED = "expired"
    SKIPPED = "skipped"
    IN_GRACE = "in_grace"
    NOT_DUE = "not_due"
    NOT_FOUND = "not_found"
    #: The kind is unproven: a wrong setting would drop this entry too, so it stays.
    HELD = "held"
    QUARANTINED = "quarantined"
    ERROR = "error"

    @property
    def stays(self) -> bool:
        """Whether the entry keeps its place in the index."""
        return self in (Outcome.IN_GRACE, Outcome.HELD, Outcome.ERROR)

    @property
    def shows_life(self) -> bool:
        """Whether the entry has a hash and is active, so that the settings of its kind fit."""
        return self in (Outcome.EXPIRED, Outcome.IN_GRACE, Outcome.NOT_DUE)


#: The detail of an entry that is not due because `unless` protects the entry.
PROTECTED = "protected"


class Decision(NamedTuple):
    """The script's decision about one entry. A plain tuple: there are millions of decisions after an outage."""

    id: bytes
    outcome: Outcome
    #: The state of a skipped entry, the reason of a quarantine, the text of an error; PROTECTED. Of a held entry the
    #: outcome that it would have: `not_found` or `skipped`.
    detail: str = ""
    tenant: bytes = b""
    #: From the end of the grace to the expiry, ms.
    lag_ms: int = 0
    #: When the grace of an entry in grace ends, ms on the server's clock; 0 if unknown.
    grace_end_ms: int = 0
    #: The scopes whose budget does not exist, so that the amount could not be given back.
    missing: tuple[str, ...] = ()
    #: The exact fault, if a quarantine of a configured kind names the fault. Of a skipped or held entry: why the
    #: settings do not know its state.
    why: str = ""
    #: The scopes whose budget was closed and has less reserved than the amount: left alone.
    closed: tuple[str, ...] = ()


def decision_of(entry: bytes, reply: Sequence[Any]) -> Decision:
    """The decision in a reply of expire.lua, whose header lists the shapes, or of the script of a configured kind."""
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


@dataclass(frozen=True)
class GraceScan:
    """
    A script that reads a page of the index as page.lua does, and marks the entries that are in grace. Its arguments are
    the four of page.lua, then `args`. Its reply is described in grace_scan.lua.
    """

    script: Script
    args: Sequence[bytes | int]


@dataclass(frozen=True)
class Budgets:
    """The entries hold amounts of budgets, each a hash `<stem><scope>:<unit>`."""

    stem: bytes


@dataclass(frozen=True)
class Sums:
    """The entries hold amounts of the counters that the settings declare; often of none."""

    declared: Sequence[SumSettings] = ()
    #: (keys and arguments of the kind's script) to what one entry holds, in the step that decides whether it is active:
    #: {outcome, deadline, {counter's key, field, amount, value of the counter or nil}, ...}, a list for each of
    #: `declared`; the texts are empty if the hash lacks a field of the counter's name.
    script: Script | None = None


@dataclass(frozen=True)
class Labels:
    """How logs and tables name the entries of a kind."""

    entry: str
    #: The log's fields: the id of an entry, the list of several entries, what an expiry found missing.
    id: str = "id"
    entries: str = "entries"
    missing: str = "missing"
    #: What an expiry may find missing, for people.
    lacking: str = "key"


class MakeCall(Protocol):
    """(id, trace id, whether the kind is proven) to a run of the kind's script."""

    def __call__(self, entry: bytes, trace_id: str, proven: bool = False, /) -> Call: ...


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One sort of entry that is swept. No script is read, generated or hashed before its first run."""

    name: str
    labels: Labels
    #: The keys: ZSET of deadlines, ZSET of the quarantine, HASH of the last tick.
    index: bytes
    quarantine: bytes
    ticks: bytes
    #: The name of an entry's hash is `stem`, the id, `end`.
    stem: bytes
    end: bytes = b""
    #: The fields of the hash with the deadline and the tenant.
    deadline: str
    tenant: str
    #: Field -> the value that an active entry has there; empty if a script of the user decides.
    active: Mapping[str, str] = field(default_factory=dict)
    #: Field -> the values by which an entry is known to have ended.
    ends: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The job whose lease a sweep of this kind holds.
    lease_job: str
    #: The end of the names of the kind's fields in `sweeperd:reconcile`.
    walk_suffix: str = ""
    #: The fields of every log line about the kind.
    log_fields: Mapping[str, object] = field(default_factory=dict)
    counters: Budgets | Sums = Sums()
    #: The field of `sweeperd:proofs`; empty if the settings cannot be wrong, so that the kind needs no proof.
    proof: bytes = b""
    #: How much later than its deadline the index may have an entry, because the entry waits or is protected; ms.
    max_wait_ms: int = 0
    #: The grace, ms, if the entry's hash names none.
    grace_ms: int = 0
    #: ZSET of the entries that `unless` protects: id -> end of the grace, ms; None if the kind has no `unless`.
    protected: bytes | None = None
    #: The reasons of a quarantine that are known beforehand, each with its meaning.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: Whether a script of the user may give other reasons too.
    more_reasons: bool = False
    #: Whether the services of Cycles sweep these entries too, so that their lease, counters and event of spikes apply.
    cycles: bool = False
    script: Script
    #: The same script with a `redis` that records the writes and sends none: {reply, writes}.
    explainer: Script
    #: ops/reconcile_entry; of a configured kind in the same step as the kind's script, with no write sent. The
    #: arguments 2 to 5 of reconcile_entry come after the arguments of the kind's script.
    index_check: Script
    call: MakeCall
    #: (id, the script's reply) to the decision.
    decision: Callable[[bytes, Any], Decision] = decision_of
    #: Marks the entries of a page that are in grace; None if the kind has no such script.
    grace_scan: GraceScan | None = None
    #: Checks that the kind can be swept on this server. Raises KindRefused or redis.RedisError.
    check: Callable[["redis.Redis"], None] = lambda _: None
    #: Whether an error of the script means that no entry can be decided until the kind's settings are mended.
    is_broken_by: Callable[[Exception], bool] = lambda _: False

    def hash_key(self, entry: bytes) -> bytes:
        """The name of the entry's hash."""
        return self.stem + entry + self.end

    def names(self, key: bytes) -> bool:
        """Whether `key` could be the name of an entry's hash."""
        longer = len(key) > len(self.stem) + len(self.end)
        return longer and key.startswith(self.stem) and key.endswith(self.end)


@dataclass(frozen=True)
class SweepReport:
    """One tick in numbers."""

    trace_id: str
    counts: Mapping[Outcome, int]
    #: False if the tick stopped before the end of the due entries.
    complete: bool
    duration_seconds: float
    #: How many of the entries in grace were passed by a remembered range, so that there is no decision about each.
    passed: int
    #: How many script calls were on their way to Redis at once, in the last batches of the tick.
    pipeline_depth: int
    #: Why the tick counts as failed although Redis answered; empty if the tick was well.
    failure: str = ""
    #: The error after which the kind must not be swept any more; empty if there was none.
    broken: str = ""
    #: The score up to which each entry was decided, ms; 0 if the tick was cut short or not well.
    seen_ms: int = 0
    #: The likely cause, if entries of an unproven kind were held.
    held_because: str = ""

    @property
    def candidates(self) -> int:
        """How many entries were decided."""
        return sum(self.counts.values())

    @property
    def changed(self) -> bool:
        """Whether the tick did more than look: an entry was not merely in grace, or the tick was cut short."""
        return not self.complete or self.candidates > self.counts.get(Outcome.IN_GRACE, 0)


@dataclass(frozen=True)
class Backlog:
    """The entries that are due and still resident, those in quarantine, and those that `unless` protects."""

    due: int
    oldest_due_seconds: float
    quarantined: int
    #: `oldest_protected_seconds`: since the end of the grace.
    protected: int = 0
    oldest_protected_seconds: float = 0.0
    #: More than 100 years ahead; see far_ahead.
    far_ahead: int = 0
    #: False if no entry of the kind was seen alive yet; the entries that the last tick over the index held, and why.
    proven: bool = True
    held: int = 0
    held_because: str = ""
