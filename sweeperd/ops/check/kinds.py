"""Checks whether the settings of a kind fit a sample of its entries."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import redis

from sweeperd.config.kinds import KindSettings
from sweeperd.ops.check.findings import CheckedShard, CheckResult, NotAllowed, failure, ok, warning
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.subjects import Subject, subject_of
from sweeperd.store.errors import is_refused, is_wrong_type
from sweeperd.store.scripts import accepted, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.backlog import read_far_ahead
from sweeperd.sweep.configured import configured
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.preview import PreviewDocument, preview_sample
from sweeperd.sweep.proof import is_proven
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.sweep.sample import MOST, sample
from sweeperd.text import counted, decode, span


def swept(kind: KindSettings, subject: CheckedShard) -> CheckResult:
    """Whether the script compiles, the rights suffice, the settings fit a sample, and the entries can expire."""
    shard = subject.shard
    made = configured(kind, subject.settings, shard.keys)
    made.check(shard.client)
    type_ = cast(bytes, shard.client.type(made.index)).decode()
    if type_ not in ("zset", "none"):
        return failure(f"{kind.index} is a {type_}", "the index of a kind is a sorted set: name it in kinds.index")
    with _allowing("HMGET, PTTL and TYPE on the entries"):
        problem = misfit(kind, made, shard) or endangered(subject_of(shard, subject.settings, kind.name))
    if problem is not None:
        # If the kind is proven, the sample holds only leftovers.
        return warning(*problem[1:]) if is_proven(shard, made) else problem
    return ok(f"{kind.index}: {counted(shard.client.zcard(made.index), 'entry', 'entries')}")


def sampled(subject: CheckedShard, kind: Kind, most: int, keep: Callable[[PreviewDocument], None]) -> CheckResult:
    """What a sweep would do with a sample of the kind, which `keep` gets too."""
    with _allowing("HMGET on the entries"):
        preview = preview_sample(subject.shard, kind, most)
    keep(preview.document(subject.shard))
    says = f"{preview.counts.total()} sampled: {preview.says}"
    if preview.counts[Outcome.ERROR]:
        (first, *_) = preview.named[Outcome.ERROR]
        return failure(f"{says}: {first.detail}", "fix what the error names")
    if preview.hint:
        return warning(says, f"correct the settings of {kind.name} before a sweep runs")
    return ok(says)


def deadlines(subject: CheckedShard) -> CheckResult:
    """Whether reservations can reach their deadline, and whether a sample of their hashes exists until then."""
    if not subject.settings.reservations.enabled:
        return ok("reservations are not swept")
    try:
        with _allowing("HMGET, PTTL and TYPE on the reservations"):
            problem = endangered(subject_of(subject.shard, subject.settings, RESERVATIONS))
    except redis.ResponseError as error:
        if not is_wrong_type(error):  # `key_types` reports that
            raise
        problem = None
    return problem or ok("none is too far ahead, and no sampled hash has a TTL that is too short")


@contextlib.contextmanager
def _allowing(commands: str) -> Iterator[None]:
    """Turns a refusal of these commands into NotAllowed."""
    try:
        yield
    except redis.RedisError as error:
        if is_refused(error):
            raise NotAllowed(commands) from error
        raise


#: A longer member of an index is data and not an id, bytes.
LONGEST_ID = 512


def misfit(settings: KindSettings, kind: Kind, shard: Shard) -> CheckResult | None:
    """A failure if the script finds no entry of a sample alive, probably because a setting is wrong."""
    preview = preview_sample(shard, kind, MOST)
    if not preview.hint or _have_ended(settings, kind, shard, preview.named.get(Outcome.SKIPPED, ())):
        return None
    of = f"none of {preview.counts.total()} sampled entries of {settings.index} is alive"
    missing = [each.id for each in preview.named.get(Outcome.NOT_FOUND, ())]
    about = _about(settings, kind, missing) if missing else ""
    return failure(f"{of}: {about}{preview.says}", "correct the settings before a sweep runs")


def _have_ended(settings: KindSettings, kind: Kind, shard: Shard, skipped: Sequence[Decision]) -> bool:
    """
    Whether these entries have really ended: they expired here, or `over` names their state. What `ended` names without
    an expiry may be alive: a sweep would remove it from the index and give nothing back.
    """
    if not skipped or kind.form != "hash":
        return False
    rows = run_commands(shard.client, (("HMGET", kind.entry_key(each.id), "expired_at") for each in skipped))
    expired = [bool(expired_at) for (expired_at,) in accepted(rows)]
    over = [not each.why and each.detail not in settings.ended.values() for each in skipped]
    return all(either or other for either, other in zip(expired, over, strict=True))


def endangered(subject: Subject) -> CheckResult | None:
    """A warning if entries never expire, or may end without an event. Raises KindRefused if the script is broken."""
    found = [each for each in (_wrong_unit(subject.shard, subject.kind), _short_ttl(subject)) if each]
    if not found:
        return None
    return warning("; ".join(says for _, says, _ in found), "; ".join(advice for _, _, advice in found))


def _wrong_unit(shard: Shard, kind: Kind) -> CheckResult | None:
    """A warning if deadlines are so far ahead that their unit is probably wrong."""
    far = read_far_ahead(shard, kind)
    if not far.count:
        return None
    unit = f", probably in {far.unit}" if far.unit else ""
    return warning(
        f"{far.count} entries of {decode(kind.index)} are more than 100 years ahead{unit}: they never expire",
        f"write deadlines in {'milliseconds' if kind.unit_ms == 1 else 'seconds'} since 1970, to index and entry alike",
    )


def _short_ttl(subject: Subject) -> CheckResult | None:
    """A warning if keys of a sample may be removed before their entries expire."""
    kind, client, entries = subject.kind, subject.shard.client, sample(subject.shard, subject.kind)
    if kind.notes:
        ttls = accepted(run_commands(client, (("PTTL", kind.entry_key(entry)) for entry in entries)))
        limited = sum(ttl >= 0 for ttl in ttls)
        if not limited:
            return None
        return warning(
            f"{limited} of {len(entries)} sampled keys have a TTL, which renews an entry when it is due: if no sweep "
            "runs until it ends, what they hold is lost without an event",
            "set TTLs that are longer than sweeperd may be down, or renew the index with ZADD instead",
        )
    found = [each for each in subject.check(entries) if each.fault is Fault.SHORT_TTL]
    if not found:
        return None
    first = min(found, key=lambda each: each.ttl_ms or 0)
    return warning(
        f"{len(found)} of {len(entries)} sampled hashes have a TTL that ends before deadline, grace and a day: if the "
        f"sweep is late, what they hold is lost without an event; {decode(first.subject)} has "
        f"{span((first.ttl_ms or 0) / 1000)} left",
        "do not set a TTL while an entry is active; `sweeperd reconcile --repair` extends the TTLs",
    )


def _about(settings: KindSettings, kind: Kind, members: Sequence[bytes]) -> str:
    """What the members of the index without an entry seem to be."""
    if all(map(_is_data, members)):
        return "the members are data, not ids, so no `key` can name their entries; "
    if all(member.startswith(kind.stem) for member in members):
        return f"the members are whole keys, such as {decode(members[0])}; an index holds only the part for {{id}}; "
    return f"there is no {settings.key}; "


def _is_data(member: bytes) -> bool:
    """Whether a member is a JSON object or array, or too long for an id."""
    try:
        return len(member) > LONGEST_ID or isinstance(json.loads(member), dict | list)
    except ValueError:
        return False
