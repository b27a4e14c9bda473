"""Copies real entries of a kind as samples, with the keys that its script reads and writes for them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sweeperd.config.kinds import MAX_FIELDS, KindSettings
from sweeperd.config.templates import ID
from sweeperd.kit.lab import at_moment
from sweeperd.kit.samples import ANY, DEADLINE, After, Content, Sample, books_of, given, unit_text, value_of
from sweeperd.store.scripts import Command, Script, accepted, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import deciding
from sweeperd.sweep.explanation import explain
from sweeperd.sweep.fields import json_fields, member_fields
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.sample import spread

#: Entries per round trip.
BATCH = 20
#: A key with more elements is copied in part: what the script named, and of a list the beginning.
ELEMENTS = 50
#: The longest string that is copied, bytes.
MAX_BYTES = 65_536


@dataclass(frozen=True)
class LiveSamples:
    samples: list[Sample]
    #: The decisions about entries that are left out, because they have ended or are not UTF-8.
    left_out: list[Decision]


def live_samples(shard: Shard, settings: KindSettings, kind: Kind, most: int) -> LiveSamples:
    """
    Up to `most` entries, due or not, spread over the index. The kind's script runs without its writes, at a time when
    every entry is due, to learn which keys to copy. Raises KindRefused if the kind would not be swept, or
    redis.RedisError.
    """
    kind.check(shard.client)
    entries = spread(shard, kind.index, int(shard.client.zcard(kind.index)), most)
    ids = list(dict.fromkeys(entry for entry, _ in entries))
    # One moment for all, because each makes a script that Redis caches.
    latest = max((score for _, score in entries if score < 2**52), default=0)
    moment = max(int(latest), shard.read_clock()) + settings.grace_ms + 1
    text = deciding(kind.script.source, "return {writes, reads}\n", reads=True)
    samples, left_out = list[Sample](), list[Decision]()
    for part in batches(ids, BATCH):
        decisions = [each.decision for each in explain(shard, kind, part, BATCH)]
        calls = [kind.call(entry, "", True) for entry in part]
        now, due = (script.run_many(shard.client, calls) for script in (Script("live", text), at_moment(text, moment)))
        for decision, *replies in zip(decisions, now, due, strict=True):
            ended = decision.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND)
            sample = None if ended else _sample(shard, settings, kind, decision.id, replies)
            if sample is None:
                left_out.append(decision)
            else:
                samples.append(sample)
    return LiveSamples(samples, left_out)


def _sample(shard: Shard, settings: KindSettings, kind: Kind, entry: bytes, replies: Sequence[Any]) -> Sample | None:
    """None if the key is not a hash, or if something is not UTF-8."""
    words = dict[bytes, set[bytes]]()
    for writes, reads in (reply for reply in replies if not isinstance(reply, Exception)):
        for name, *rest in (*writes, *reads):
            if name not in (b"PUBLISH", b"TIME"):
                words.setdefault(rest[0], set()).update(rest[1:])
    own = {kind.entry_key(entry), kind.index, kind.quarantine, shard.keys.events}
    own |= {key for key in (kind.protected, kind.notes, kind.marks) if key is not None}
    try:
        key = kind.entry_key(entry)
        fields = _fields(shard, kind, entry, words.get(key, set()))
        if not fields:
            return None
        named = {key.removeprefix(shard.keys.prefix).decode(): key for key in words.keys() - own}
        copies = {name: _copied(shard, key, words[key]) for name, key in sorted(named.items())}
        id_ = entry.decode()
    except UnicodeDecodeError:
        return None
    if settings.deadline is not None and settings.deadline in fields:
        fields[settings.deadline] = unit_text(settings, DEADLINE)
    keys = {name: copy for name, copy in copies.items() if copy is not None}
    writes = [] if settings.script else given(settings, fields | {ID: id_})
    complete = all(value_of(field, more) for command, more in writes for field in command.fields)
    books = books_of(writes) if complete else ()
    return Sample(id_, fields, keys, books, after=After(keys=dict.fromkeys(copies, ANY)), live=True)


def _fields(shard: Shard, kind: Kind, entry: bytes, words: set[bytes]) -> dict[str, str]:
    """Empty if the entry is gone or of another form. Raises UnicodeDecodeError."""
    if kind.form == "hash":
        held: dict[str, str] = (_copied(shard, kind.entry_key(entry), words, MAX_FIELDS) or {}).get("hash", {})
        return held
    if kind.form == "member":
        found = member_fields(kind.parts, entry)
    else:
        text = (_copied(shard, kind.entry_key(entry), words) or {}).get("string", "")
        found = json_fields(text.encode())
    return {name.decode(): value.decode() for name, value in found.items()}


def _copied(shard: Shard, key: bytes, words: set[bytes], most: int = ELEMENTS) -> Content | None:
    """The content of a key, of a large one a part; None if no plan writes such a key. Raises UnicodeDecodeError."""
    (type_,) = _read(shard, ("TYPE", key))
    named, content = sorted(words), cast(Any, None)
    match type_:
        case b"hash":
            content = _hash(shard, key, named, most)
        case b"string":
            (length,) = _read(shard, ("STRLEN", key))
            content = _read(shard, ("GET", key))[0].decode() if length <= MAX_BYTES else None
        case b"set":
            first, *there = _read(shard, ("SRANDMEMBER", key, most), *(("SISMEMBER", key, word) for word in named))
            content = [member.decode() for member in {*first, *itertools.compress(named, there)}]
        case b"zset":
            flat, *scores = _read(
                shard, ("ZRANGE", key, 0, most - 1, "WITHSCORES"), *(("ZSCORE", key, word) for word in named)
            )
            found = [*zip(flat[::2], flat[1::2], strict=True), *zip(named, scores, strict=True)]
            content = {member.decode(): float(score) for member, score in found if score is not None}
        case b"list":
            content = [item.decode() for item in _read(shard, ("LRANGE", key, 0, most - 1))[0]]
    return {type_.decode(): content} if content else None


def _hash(shard: Shard, key: bytes, named: Sequence[bytes], most: int) -> dict[str, str]:
    (length,) = _read(shard, ("HLEN", key))
    if length <= most:
        (found,) = _read(shard, ("HGETALL", key))
    else:
        (values,) = _read(shard, ("HMGET", key, *named)) if named else ([],)
        found = {name: value for name, value in zip(named, values, strict=True) if value is not None}
    return {name.decode(): value.decode() for name, value in found.items()}


def _read(shard: Shard, *commands: Command) -> list[Any]:
    return accepted(run_commands(shard.client, commands))
