"""Judges one run of a kind's script."""

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import redis

from sweeperd.config.kinds import KindSettings, any_match
from sweeperd.config.templates import bare
from sweeperd.kit.lab import SLACK_MS, TRACE, Lab, Snapshot, normal
from sweeperd.kit.samples import DEADLINE, After, Sample, counter_keys, filled
from sweeperd.sweep.kind import PROTECTED, Decision, Outcome
from sweeperd.text import decode, strings, whole

#: The outcomes that leave the entry in the index.
_STAYING = (Outcome.IN_GRACE, Outcome.NOT_DUE, Outcome.HELD)
_MARKS = (b"quarantined_at", b"quarantine_reason", b"quarantine_detail")


@dataclass(frozen=True)
class Failure:
    """An input that breaks a property."""

    sample: str
    problem: str
    #: The smallest entry that fails in the same way, as JSON, and the line of the script that the server names.
    entry: str = ""
    line: str = ""

    @property
    def report(self) -> list[str]:
        more = ((name, text) for name, text in (("entry", self.entry), ("line", self.line)) if text)
        return [f"input: {self.sample}", self.problem, *(f"{name}: {text}" for name, text in more)]


#: Returns None if the property holds.
Property = Callable[[Lab, Sample], Failure | None]


def find_problem(lab: Lab, sample: Sample, result: Decision | redis.RedisError, before: Snapshot) -> str:
    """What the last run did wrong, or "". Only the outcome and the settings permit a difference from `before`."""
    after = lab.snapshot(sample)
    if isinstance(result, redis.RedisError):
        if changed := after.changed_since(before):
            return f"an error, and {names(changed)} changed: {result}"
        sent = ", and a message was sent" if after.messages != before.messages else ""
        return f"an error{sent}: {result}"
    return next(_Judgement(lab, sample, result, before, after).problems(), "")


def names(keys: set[bytes]) -> str:
    return ", ".join(sorted(decode(key) for key in keys))


@dataclass(frozen=True)
class _Judgement:
    """A run of the script, with its reply and Redis before and after."""

    lab: Lab
    sample: Sample
    result: Decision
    before: Snapshot
    after: Snapshot

    def problems(self) -> Iterator[str]:
        """The gravest first."""
        yield from self._event()
        yield from self._index()
        yield from self._protection()
        yield from self._quarantine()
        yield from self._notes()
        yield from self._content()
        yield from self._other_keys()
        yield from self._books()

    @property
    def _entry(self) -> bytes:
        return self.lab.id(self.sample)

    @property
    def _key(self) -> bytes:
        return self.lab.entry_key(self._entry)

    @property
    def _expired(self) -> bool:
        return self.result.outcome is Outcome.EXPIRED

    @property
    def _fields(self) -> dict[bytes, bytes]:
        return self.lab.fields(self.before, self._entry)

    def _in_time(self, value: Any) -> bool:
        """Whether the value is the time of the run."""
        number = whole(value) if isinstance(value, bytes) else value
        return number is not None and self.lab.moment[0] <= number <= self.lab.moment[1]

    @cached_property
    def _deadline(self) -> int | None:
        """The deadline before the run, ms."""
        return self.lab.deadline(self.before, self._entry)

    def _members(self, key: bytes) -> tuple[Any, Any, bool]:
        """The entry's score before and after, and whether all other members are unchanged."""
        then, now = (dict(snapshot.of(key, "zset")) for snapshot in (self.before, self.after))
        scores = then.pop(self._entry, None), now.pop(self._entry, None)
        return *scores, then == now

    def _index(self) -> Iterator[str]:
        then, now, same = self._members(self.lab.kind.index)
        outcome = self.result.outcome
        if not same:
            yield f"{outcome}, and another entry of the index changed"
        if outcome not in _STAYING and now is not None:
            yield f"{outcome}, and still in the index"
        if outcome in _STAYING and now is None:
            yield f"{outcome}, and no longer in the index"
        if outcome in (Outcome.IN_GRACE, Outcome.HELD) and now != then:
            yield f"{outcome}, and its index entry moved"
        if outcome is Outcome.NOT_DUE:
            yield from self._put_off(now)

    def _put_off(self, score: float) -> Iterator[str]:
        """The index follows a future deadline; else the entry waits, or the script extended both."""
        since, until = self.lab.moment
        score = round(score * self.lab.kind.unit_ms)
        then, now = self._deadline, self.lab.deadline(self.after, self._entry)
        if (then != now or (then is not None and then > until)) and score != now:
            yield f"not due, and the index says {score:.0f} instead of {now}"
        if score < since:
            yield f"not due, and the index says {score:.0f}, which has passed"
        settings = self.lab.settings
        longest = settings.unless_recheck_ms if self._stays else settings.max_wait_ms
        if then == now and then is not None and then < since and score > until + longest:
            yield f"it waits until {score:.0f}, which is longer than max_wait; or the hash was not extended"

    @property
    def _stays(self) -> bool:
        """Whether the reply says that the entry is protected."""
        return self.result.outcome is Outcome.NOT_DUE and self.result.detail == PROTECTED

    @property
    def _guarded(self) -> bool:
        """Whether `unless` protected the entry before the run, judged by the settings alone."""
        settings, fields = self.lab.settings, {_text(name): _text(value) for name, value in self._fields.items()}
        if settings.unless_key is None:
            return bool(settings.unless_values) and settings.unless_values.items() <= fields.items()
        try:
            return self.lab.named(filled(settings.unless_key, fields, self.sample.id)) in self.before.contents
        except KeyError:
            return False

    def _protection(self) -> Iterator[str]:
        """A protected entry stays, and is recorded from the end of its grace on; no other entry is recorded."""
        key, outcome, settings = self.lab.kind.protected, self.result.outcome, self.lab.settings
        if key is None:
            return
        _, now, same = self._members(key)
        end = (self._deadline or 0) + settings.grace_ms
        last = None if settings.unless_max_ms is None else end + settings.unless_max_ms
        if not same:
            yield f"{outcome}, and another protected entry changed"
        if self._stays:
            _, score, _ = self._members(self.lab.kind.index)
            score = score and score * self.lab.kind.unit_ms
            if not self._guarded:
                yield "the reply says protected, but `unless` does not protect it"
            if now != end:
                yield f"it is protected since {end}, and recorded since {now}"
            if last is not None and (score is None or score > last or self.lab.moment[0] >= last):
                yield f"it is protected beyond {last}, the end of unless_max"
            return
        if now is not None and outcome is not Outcome.IN_GRACE:
            yield f"{outcome}, and still among the protected entries"
        over = last is not None and settings.protected == "expire" and self.lab.moment[1] >= last
        if self._expired and self._guarded and not over:
            yield "expired, although `unless` protects it"

    def _quarantine(self) -> Iterator[str]:
        then, now, same = self._members(self.lab.kind.quarantine)
        outcome = self.result.outcome
        if not same:
            yield f"{outcome}, and another entry of the quarantine changed"
        if outcome is not Outcome.QUARANTINED:
            if now != then:
                yield f"{outcome}, and its entry in the quarantine changed"
        elif now is None:
            yield "quarantined, and not in the quarantine"
        elif not self._in_time(now):
            yield f"quarantined now, and the quarantine says {now:.0f}"

    def _notes(self) -> Iterator[str]:
        """A score that is not the deadline has a note of the deadline; a quarantined entry has its reason."""
        kind, outcome = self.lab.kind, self.result.outcome
        for key, expected in ((kind.notes, self._note()), (kind.marks, self._mark())):
            then, now = (dict(snapshot.of(key or b"", "hash")) for snapshot in (self.before, self.after))
            before, after = then.pop(self._entry, None), now.pop(self._entry, None)
            if then != now:
                yield f"{outcome}, and {decode(key or b'')} of another entry changed"
            same = before == after and outcome in _STAYING
            if key is not None and after != expected and not (expected is None and same):
                yield f"{outcome}, and {decode(key)} has {_shown(after)} instead of {_shown(expected)}"

    def _note(self) -> bytes | None:
        score, now, _ = self._members(self.lab.kind.index)
        noted = self.before.of(self.lab.kind.notes or b"", "hash").get(self._entry, b"").split(b" ")[0]
        text = self.lab.due_text(self.before, self._entry)
        if self.result.outcome is Outcome.QUARANTINED:
            return text + b" " if score is not None else noted + b" " if noted else None
        waits = self.result.outcome is Outcome.NOT_DUE and self._deadline == self.lab.deadline(self.after, self._entry)
        if waits and now != float(text or b"nan"):
            found: bytes = self.after.of(self.lab.kind.notes or b"", "hash").get(self._entry, b" ")
            return text + b" " + found.split(b" ")[1]
        return None

    def _mark(self) -> bytes | None:
        if self.result.outcome is not Outcome.QUARANTINED:
            return None
        return f"{self.result.detail} {self.result.why}".encode("utf-8", "surrogateescape")

    def _content(self) -> Iterator[str]:
        """What the entry holds; a hash says more of it."""
        key, form = self._key, self.lab.kind.form
        if form == "hash":
            yield from self._hash()
        elif form == "json" and self._expired:
            if key in self.after.contents:
                yield "expired, and the string is still there"
        elif form == "json" and self.before.contents.get(key) != self.after.contents.get(key):
            yield f"{self.result.outcome}, and {decode(key)} changed"

    def _hash(self) -> Iterator[str]:
        key, outcome, settings = self._key, self.result.outcome, self.lab.settings
        fields = dict(self.after.of(key, "hash"))
        if self._expired:
            yield from self._ended(fields)
            return
        expected = dict(self._fields)
        if outcome is Outcome.QUARANTINED and expected:
            at, reason, detail = (fields.pop(name, None) for name in _MARKS)
            if not self._in_time(at):
                yield "quarantined without its time in the hash"
            if reason is None or decode(reason) != self.result.detail:
                yield "quarantined without its reason in the hash"
            if detail is None or decode(detail) != self.result.why:
                yield "quarantined without its exact cause in the hash"
            expected = {name: value for name, value in expected.items() if name not in _MARKS}
        elif outcome is Outcome.NOT_DUE:
            deadline = (settings.deadline or "").encode()
            expected = {
                name: fields.get(name, value) if name == deadline else value for name, value in expected.items()
            }
        if expected != fields:
            yield f"{outcome} ({self.result.detail}), and the hash changed"
        if not self._fields and self.before.contents.get(key) != self.after.contents.get(key):
            yield f"{outcome} ({self.result.detail}), and {decode(key)} changed"
        if self.before.ttls.get(key, -1) < 0 <= self.after.ttls.get(key, -1):
            yield f"{outcome} ({self.result.detail}), and the hash has a TTL"

    def _ended(self, fields: dict[bytes, bytes]) -> Iterator[str]:
        retention = self.lab.retention
        if not retention:
            if self._key in self.after.contents:
                yield "expired without retention, and the hash is still there"
            return
        marks = {name.encode(): value.encode() for name, value in self.lab.settings.ended.items()}
        expired_at = fields.pop(b"expired_at", None)
        if not (marks.items() <= fields.items() and expired_at is not None):
            yield "expired, and the hash does not say so"
        if not self._in_time(expired_at):
            yield "expired, and the hash has another time"
        if fields != {name: value for name, value in (self._fields | marks).items() if name != b"expired_at"}:
            yield "expired, and other fields of the hash changed"
        if not retention - SLACK_MS <= self.after.ttls[self._key] <= retention:
            yield "expired, and the hash has no TTL or one that differs from its retention"

    def _event(self) -> Iterator[str]:
        then, now = (snapshot.of(self.lab.keys.events, "stream") for snapshot in (self.before, self.after))
        count = len(now) - len(then)
        if now[: len(then)] != then:
            yield f"{self.result.outcome}, and an earlier event is gone"
        if count != int(self._expired):
            yield f"{count} events for one {'expiry' if self._expired else self.result.outcome}"
        if self._expired:
            yield from self._fields_of_event(dict(now[-1][1]))

    def _fields_of_event(self, event: dict[bytes, bytes]) -> Iterator[str]:
        settings, fields = self.lab.settings, self._fields
        tenant = fields.get(settings.tenant.encode(), b"") if settings.tenant else b""
        deadline = self._deadline or 0
        expected = {
            b"type": f"{settings.name}.expired".encode(),
            b"kind": settings.name.encode(),
            b"id": self._entry,
            b"tenant": tenant,
            b"expires_at": str(deadline).encode(),
            b"trace_id": TRACE.encode(),
        }
        data = {name.removeprefix(b"data."): event.pop(name) for name in list(event) if name.startswith(b"data.")}
        expired_at, missing = event.pop(b"expired_at", b""), event.pop(b"missing", b"")
        if not self._in_time(expired_at):
            yield f"an event with another time: expired_at is {decode(expired_at)}"
        for name in sorted(expected.keys() | event.keys()):
            if (found := event.get(name)) != (due := expected.get(name)):
                yield f"an event with {decode(name)} = {_shown(found)} instead of {_shown(due)}"
        if self.result.tenant != tenant:
            yield f"a reply with the tenant {_shown(self.result.tenant)} instead of {_shown(tenant)}"
        end = deadline + settings.grace_ms
        if self.lab.kind.protected and self._entry in self.before.of(self.lab.kind.protected, "zset"):
            asked = round(self.before.of(self.lab.kind.index, "zset")[self._entry] * self.lab.kind.unit_ms)
            end = min(max(end, asked), self.lab.moment[1])
        if not self._in_time(self.result.lag_ms + end):
            yield f"a reply with a lag of {self.result.lag_ms} ms"
        yield from self._missing(missing)
        if settings.script is None and data != _told(settings, fields):
            yield f"an event whose fields differ from those of the hash: {_shown(data)}"

    def _missing(self, text: bytes) -> Iterator[str]:
        try:
            missing = strings(text)
        except ValueError:
            yield f"an event with missing = {_shown(text)}, which is not a list of keys"
            return
        if tuple(map(decode, missing)) != self.result.missing:
            yield "an event and a reply that disagree about the missing keys"
        prefix, settings = self.lab.keys.prefix, self.lab.settings
        if there := {name for name in missing if prefix + name in self.before.contents}:
            yield f"{names(there)} exists, and is reported as missing"
        if settings.script is None:
            fields = {_text(name): _text(value) for name, value in self._fields.items()}
            keys = set(map(self.lab.named, counter_keys(settings, fields, self.sample.id)))
            gone = {key.removeprefix(prefix) for key in keys if key not in self.before.contents}
            if gone != set(missing):
                yield f"the event does not report exactly the missing keys: {names(gone ^ set(missing))}"

    def _other_keys(self) -> Iterator[str]:
        own = _own_keys(self.lab, self.sample)
        others = self.after.changed_since(self.before) - own
        sent = self.after.messages[len(self.before.messages) :]
        if not self._expired:
            if others:
                yield f"{self.result.outcome} ({self.result.detail} {self.result.why}), and {names(others)} changed"
            if sent:
                yield f"{self.result.outcome}, and a message was sent"
            return
        prefix, settings = self.lab.keys.prefix, self.lab.settings
        foreign = {
            key
            for key in others
            if not key.startswith(prefix) or not any_match(settings.write_patterns, _text(key.removeprefix(prefix)))
        }
        if foreign:
            yield f"{names(foreign)} changed, and matches no pattern of writes"
        if any(not any_match(settings.channels, _text(channel)) for channel, _ in sent):
            yield "a message to a channel that matches no pattern of channels"

    def _books(self) -> Iterator[str]:
        then, now = self.before.books, self.after.books
        if self.lab.books and then[-1] != now[-1]:
            yield f"the books changed from {then[-1]!r} to {now[-1]!r}"
        for group, was, is_ in zip(self.sample.books, then, now, strict=False):
            if was != is_:
                yield f"the sum of {' + '.join(group)} changed"


def _told(settings: KindSettings, fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    told = {}
    for field in settings.event_fields:
        name = bare(field.name).encode()
        if field.default is not None and not fields.get(name):
            told[name] = field.default.encode()
        elif name in fields:
            told[name] = fields[name]
    return told


def _own_keys(lab: Lab, sample: Sample) -> set[bytes]:
    """The keys that the script may always write."""
    kind = lab.kind
    more = {key for key in (kind.protected, kind.notes, kind.marks) if key is not None}
    return {lab.entry_key(lab.id(sample)), kind.index, kind.quarantine, lab.keys.events} | more


def compare_after(lab: Lab, sample: Sample, before: Snapshot) -> str:
    """The first difference from the sample's `after`, or ""."""
    return next(_differing(lab, sample, before), "")


def _differing(lab: Lab, sample: Sample, before: Snapshot) -> Iterator[str]:
    now, said = lab.snapshot(sample), sample.after
    own = _own_keys(lab, sample)
    others = now.changed_since(before) - own
    if said is None:
        silent = not others and now.messages == before.messages
        if sample.outcome == "expired" and silent and lab.settings.script is not None and lab.settings.write_patterns:
            yield "it expired and gave nothing back; if that is intended, add an `after` that says so"
        return
    fields = lab.fields(now, lab.id(sample))
    if said.hash is None and fields:
        yield "the hash still exists"
    for name, value in (said.hash or {}).items():
        if not _fits(lab, None if value is None else value.encode(), found := fields.get(name.encode())):
            yield f"{name} is {_shown(found)} instead of {_shown(value)}"
    stated = {key: content for key, content in said.keys.items() if not isinstance(content, str)}
    for key, content in stated.items():
        expected = None if content is None else normal(*next(iter(content.items())))
        if not _fits(lab, expected, there := now.contents.get(lab.named(key))):
            yield f"{key} is {_shown(there)} instead of {_shown(expected)}"
    if unnamed := others - {lab.named(key) for key in said.keys}:
        yield f"{names(unnamed)} changed, and `after` does not name it"
    yield from _sent_otherwise(lab, said, before, now)


def _sent_otherwise(lab: Lab, said: After, before: Snapshot, now: Snapshot) -> Iterator[str]:
    """What the event and the messages are instead of what `after` says."""
    if said.event is not None:
        events = now.of(lab.keys.events, "stream")[len(before.of(lab.keys.events, "stream")) :]
        data = [{k[5:]: v for k, v in event.items() if k.startswith(b"data.")} for _, event in events]
        if not _fits(lab, [{name.encode(): value.encode() for name, value in said.event.items()}], data):
            yield f"the event has {_shown(data[0] if data else None)} instead of {_shown(said.event)}"
    if said.messages is not None:
        sent = now.messages[len(before.messages) :]
        if not _fits(lab, tuple((channel.encode(), text.encode()) for channel, text in said.messages), sent):
            yield f"the messages are {_shown(sent)} instead of {_shown(said.messages)}"


def _fits(lab: Lab, said: Any, found: Any) -> bool:
    """Whether a value is what `after` says."""
    match said:
        case b"*":  # ANY and NOW, as bytes
            return found is not None
        case b"{now}":
            number = whole(found) if isinstance(found, bytes) else found
            return number is not None and lab.moment[0] <= number <= lab.moment[1]
        case dict():
            same = isinstance(found, dict) and said.keys() == found.keys()
            return same and all(_fits(lab, value, found[name]) for name, value in said.items())
        case list() | tuple():
            same = isinstance(found, type(said)) and len(said) == len(found)
            return same and all(map(functools.partial(_fits, lab), said, found))
        case frozenset() if isinstance(found, frozenset):
            others, stated = list(found - said), sorted(said - found, reverse=True)  # `{now}` before `*`
            for each in stated:
                fitting = next((other for other in others if _fits(lab, each, other)), None)
                if fitting is None:
                    return False
                others.remove(fitting)
            return not others
    return bool(said == found)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(_readable(value), ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _readable(value: Any) -> Any:
    match value:
        case bytes():
            return decode(value)
        case dict():
            return {_readable(name): _readable(held) for name, held in value.items()}
        case frozenset():
            return sorted(map(_readable, value))
        case tuple() | list():
            return list(map(_readable, value))
    return value


def load_and_judge(lab: Lab, sample: Sample, about: str) -> Failure | None:
    lab.load(sample)
    return judge(lab, sample, about)


def judge(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Run the loaded sample and judge, twice if it expires. With `errors`, an error that changes nothing is fine."""
    before = lab.snapshot(sample)
    result = lab.run(lab.id(sample), **run)
    found = find_problem(lab, sample, result, before)
    if errors and found.startswith("an error: "):
        return None
    if not found and isinstance(result, Decision) and result.outcome is Outcome.EXPIRED:
        found = _again(lab, sample)
    return Failure(about, found) if found else None


def expect(lab: Lab, sample: Sample, about: str, *outcomes: Outcome, **run: Any) -> Failure | None:
    """Run the loaded sample and judge: one of these outcomes, and no change beyond what it permits."""
    before = lab.snapshot(sample)
    result = lab.run(lab.id(sample), **run)
    found = find_problem(lab, sample, result, before)
    if not found and isinstance(result, Decision) and result.outcome not in outcomes:
        wanted = " or ".join(outcomes) if len(outcomes) < 3 else "any other outcome"
        found = f"{result.outcome} instead of {wanted}: {result.detail} {result.why}".rstrip(": ")
    return Failure(about, found) if found else None


def _again(lab: Lab, sample: Sample) -> str:
    """What a second run of an expired entry changes after its index entry is restored, or ""."""
    before = lab.snapshot(sample)
    if lab.kind.form != "member":  # a member that is there again is a new entry
        lab.client.zadd(lab.kind.index, {lab.id(sample): lab.score(DEADLINE)})
    result = lab.run(lab.id(sample))
    after = lab.snapshot(sample)
    changed = after.changed_since(before)
    ended = isinstance(result, Decision) and result.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND)
    if ended and not changed and after.messages == before.messages:
        return ""
    return f"a second run changed {names(changed)}: {result if isinstance(result, Exception) else result.outcome}"


def abbreviated(value: str | None) -> str:
    return "nothing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")
