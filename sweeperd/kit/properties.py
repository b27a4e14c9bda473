"""Defines the properties that every kind must have."""

import contextlib
import functools
import marshal
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from sweeperd.config.templates import FORMS, INT64_MAX, INT64_MIN, Field, bare
from sweeperd.kit import victim
from sweeperd.kit.judge import (
    Failure,
    Property,
    abbreviated,
    compare_after,
    expect,
    find_problem,
    judge,
    load_and_judge,
    names,
)
from sweeperd.kit.lab import BYSTANDER, TRACE, Lab, NoEnd
from sweeperd.kit.samples import DEADLINE, Sample, counter_keys, due, elements, filled, json_text
from sweeperd.sweep.fields import member_fields
from sweeperd.sweep.kind import Decision, Outcome

#: Values to try in each field of a hash.
HOSTILE = (
    *("", "0", "-7", "+5", "007", "1e3", "1.5", " 3", "nan", "x", "*", "{id}", "a b", "]] .. x", "\n", "\x00"),
    *(str(INT64_MAX), str(INT64_MAX + 1), str(INT64_MIN), "9" * 40, "v" * 70_000),
)
#: The most times that an entry may be postponed.
MAX_WAITS = 100
#: Added to the deadline, ms, to make it even and odd.
SHIFTS = (0, 1_234_567)
#: Texts to try in a string that should hold a JSON object, and in a field that should hold an array of objects.
DOCUMENTS = (
    *("", "[]", "null", "{", "[{}]", "7", "\x00", '{"a": 1} {', '{"a": 0x10}', '{"a": 1', "{'a': 1}"),
    '{"a":"\\ud800"}',
    *('{"a":' * 2000, '{"a": "' + "v" * 70_000 + '"}'),
)
ARRAYS = ("[1]", "[null]", '["a"]', "[[]]", '{"a": 1}', "[{}]", "[{}", '[{"qty": -1}]', f"[{', '.join(['{}'] * 300)}]")
#: Commands that scripts read entries and their notes with.
_READS = ("ZSCORE", "HGET", "GETRANGE", "HEXISTS")
#: Values to try in each counter.
COUNTERS = ("", "x", "1.5", "007", "0", "1", str(INT64_MAX), str(INT64_MAX - 1), str(INT64_MIN), "9" * 40)
#: Longer than any proof, ms.
TTL_MS = 86_400_000
#: A stream accepts no entry after this id.
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
#: The limits of one run.
MAX_SECONDS, MAX_COMMANDS = 0.25, 400
#: The copies of a sample in a drain.
ENTRIES = 40
#: The name of the check before the properties.
COMPILES = "the script compiles"


def each_case(cases: Callable[[Lab, Sample], Iterator[Failure | None]]) -> Property:
    """Make a property of a function that yields the result of each case; it ends at the first failure."""

    @functools.wraps(cases)
    def holds(lab: Lab, sample: Sample) -> Failure | None:
        return next(filter(None, cases(lab, sample)), None)

    return holds


def expires(lab: Lab, sample: Sample) -> Failure | None:
    """Each sample reaches its outcome and leaves the state in its `after`."""
    lab.load(sample)
    return _expect_stated(lab, sample, sample.id)


def _expect_stated(lab: Lab, sample: Sample, about: str) -> Failure | None:
    before = lab.snapshot(sample)
    failure = expect(lab, sample, about, Outcome(sample.outcome))
    found = "" if failure else compare_after(lab, sample, before)
    return Failure(about, found) if found else failure


@each_case
def never_early(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """An entry expires 1 ms after the end of its grace, and never before, whatever arguments a caller adds."""
    early = [outcome for outcome in Outcome if outcome is not Outcome.EXPIRED]
    for deadline in (DEADLINE + shift for shift in SHIFTS):
        case, end = due(sample, lab.settings, deadline), deadline + lab.settings.grace_ms

        def at(
            moment: int, *outcomes: Outcome, bogus: tuple[str, ...] = (), case: Sample = case, end: int = end
        ) -> Failure | None:
            lab.load(case)
            about = f"{case.id} {moment - end:+d} ms from the end of its grace, which is {end}"
            return expect(lab, case, about, *outcomes, at=moment, bogus=bogus)

        for moment in (end - 1, end, deadline - 1, deadline, 0):
            yield at(moment, *early)
            yield at(moment, *early, bogus=("9999999999999", "x"))
        yield at(end + 1, *([Outcome.EXPIRED] if sample.outcome == "expired" else Outcome))


def again(lab: Lab, sample: Sample) -> Failure | None:
    """A second run, or a retry after a lost reply, changes nothing."""
    return load_and_judge(lab, sample, sample.id)


def put_off(lab: Lab, sample: Sample) -> Failure | None:
    """A later deadline moves the index entry and changes nothing else."""
    lab.load(due(sample, lab.settings, DEADLINE + SHIFTS[1]))
    return expect(lab, sample, f"{sample.id} with a future deadline", *Outcome, at=DEADLINE + 1)


def orphan(lab: Lab, sample: Sample) -> Failure | None:
    """An index entry without its key is removed, a member without a score is no entry, and nothing else changes."""
    lab.load(sample)
    lab.remove(sample)
    return expect(lab, sample, f"{sample.id} without its key", Outcome.NOT_FOUND)


@each_case
def unproven(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """Until an entry of the kind was seen alive, one without its key, or that does not fit, is held."""
    if lab.kind.form == "member":
        if unfit := _unfit(lab, sample):
            lab.load(unfit)
            yield expect(lab, unfit, "a member that does not fit, unproven", Outcome.HELD, proven=False)
            yield expect(lab, unfit, "a member that does not fit", Outcome.QUARANTINED)
        return
    lab.load(sample)
    lab.remove(sample)
    yield expect(lab, sample, f"{sample.id} without its key, unproven", Outcome.HELD, proven=False)
    for field in lab.settings.active:
        case = sample.changed(field, "another")
        lab.load(case)
        yield expect(lab, case, f"{case.id} with {field} = 'another', unproven", Outcome.HELD, proven=False)


def _unfit(lab: Lab, sample: Sample) -> Sample | None:
    """A member that does not fit `member`; None if every one fits."""
    unfit = replace(sample, id="\0", hash={}, after=None)
    return None if member_fields(lab.kind.parts, lab.id(unfit)) else unfit


@each_case
def alive(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """An entry with another value in a field of `active` has ended, and is skipped."""
    for field in lab.settings.active:
        lab.load(sample.changed(field, "another"))
        yield expect(lab, sample, f"{sample.id} with {field} = 'another'", Outcome.SKIPPED)


@each_case
def amounts(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """An entry whose amount is not a plain number, or exceeds its counter, is quarantined."""
    if sample.outcome != "expired":
        return

    def refused(case: Sample, about: str) -> Failure | None:
        lab.load(case)
        return expect(lab, case, about, Outcome.QUARANTINED)

    commands = lab.settings.given_back
    for field in {command.amount.field for command in commands if command.amount and command.amount.field}:
        for value in HOSTILE:
            if value == "" and field.default is not None:
                continue
            if lab.settings.is_of_element(field) and not elements(lab.settings, sample.hash):
                continue
            if not (value.isascii() and value.isdigit() and str(int(value)) == value and int(value) <= INT64_MAX):
                yield refused(_with(lab, sample, field, value), f"{sample.id}, {field.name}: {abbreviated(value)}")
    for command in commands:
        if lab.settings.repeats(command):
            continue
        if command.minimum is not None and command.amount and command.amount.field and command.amount.negative:
            counter = " ".join(filled(word, sample.hash, sample.id) for word in (command.key, *command.words))
            lab.load(sample)
            with contextlib.suppress(ValueError, redis.ResponseError):  # no number to exceed
                much = str(int(lab.counter(counter) or 0) - int(command.minimum) + 1)
                yield refused(
                    sample.changed(bare(command.amount.field.name), much), f"{sample.id} with an amount of {much}"
                )


def _with(lab: Lab, sample: Sample, field: Field, value: str) -> Sample:
    """The sample with this value, of an element's field in the last element."""
    if not lab.settings.is_of_element(field):
        return sample.changed(bare(field.name), value)
    stem = f"{lab.settings.each}."
    rows = elements(lab.settings, sample.hash)
    rows[-1] |= {field.name: value}
    texts = [json_text({name.removeprefix(stem): held for name, held in row.items()}) for row in rows]
    return sample.changed(stem[:-1], f"[{', '.join(texts)}]")


def waits(lab: Lab, sample: Sample) -> Failure | None:
    """An entry that waits or is extended ends, if each run comes at the time that the previous run set."""
    if sample.endless:
        return None
    lab.load(sample)
    seconds, _ = lab.client.time()
    moment = seconds * 1000
    for _ in range(MAX_WAITS):
        before = lab.snapshot(sample)
        result = lab.run(lab.id(sample), at=moment)
        if found := find_problem(lab, sample, result, before):
            return Failure(sample.id, found)
        if not isinstance(result, Decision) or result.outcome is not Outcome.NOT_DUE:
            return None
        moment = _score_ms(lab, sample) + lab.settings.grace_ms + 1
    return Failure(sample.id, f"it was postponed {MAX_WAITS} times without an end")


@each_case
def protected(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """An entry stays while `unless` protects it, for up to `unless_max`, and ends afterwards."""
    settings = lab.settings
    if settings.unless is None or sample.outcome != "expired":
        return
    key = "" if settings.unless_key is None else filled(settings.unless_key, sample.hash, sample.id)
    guard = {key: {"string": "1"}} if key else {}
    kept = replace(sample, hash=sample.hash | settings.unless_values, keys=sample.keys | guard)
    again = kept if lab.kind.form == "member" else sample
    end, about = DEADLINE + settings.grace_ms, f"{sample.id}, protected by `unless`,"

    def at(moment: int, *outcomes: Outcome) -> Failure | None:
        return expect(lab, kept, f"{about} {moment - end:+d} ms from the end of its grace", *outcomes, at=moment)

    if (most := settings.unless_max_ms) is not None:
        lab.load(kept)
        yield at(end + most - 1, Outcome.NOT_DUE)
        yield at(end + most, Outcome.EXPIRED if settings.protected == "expire" else Outcome.QUARANTINED)
    lab.load(kept)
    yield at(end + 1, Outcome.NOT_DUE)
    if lab.kind.form == "member" and not guard:
        return  # the values that protect it are the member
    free, note = _score_ms(lab, again), lab.client.hget(lab.kind.notes, lab.id(again)) if lab.kind.notes else None
    score = lab.client.zscore(lab.kind.index, lab.id(again))
    lab.client.delete("none", *map(lab.named, guard))
    lab.put(again, lab.id(again))
    lab.client.zadd(lab.kind.index, {lab.id(again): score})
    yield expect(lab, again, f"{sample.id}, no longer protected", Outcome.EXPIRED, at=free)
    if note is not None and settings.deadline is None:
        lab.load(kept)
        yield at(end + 1, Outcome.NOT_DUE)
        renewed = end + settings.unless_recheck_ms * 2
        lab.client.zadd(lab.kind.index, {lab.id(kept): lab.score(renewed)})
        yield expect(lab, kept, f"{sample.id}, renewed while it is protected", Outcome.NOT_DUE, at=renewed)


def _score_ms(lab: Lab, sample: Sample) -> int:
    score: float = lab.client.zscore(lab.kind.index, lab.id(sample))
    return round(score * lab.kind.unit_ms)


@each_case
def wrong_type(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """An entry whose key is of another type, or not JSON where JSON is wanted, is quarantined."""
    if lab.kind.form == "member":
        return
    key = lab.entry_key(lab.id(sample))
    for text in DOCUMENTS if lab.kind.form == "json" else ("text",):
        lab.load(sample)
        lab.client.set(key, text)
        yield expect(lab, sample, f"{sample.id} with the string {abbreviated(text)}", Outcome.QUARANTINED)
    lab.load(sample)
    lab.client.delete(key)
    lab.client.rpush(key, "text")
    yield expect(lab, sample, f"{sample.id} with a list instead of its key", Outcome.QUARANTINED)


def ended(lab: Lab, sample: Sample) -> Failure | None:
    """An entry that carries all of `ended` is skipped."""
    if not lab.settings.ended:
        return None
    over = replace(sample, hash=sample.hash | lab.settings.ended)
    lab.load(over)
    return expect(lab, over, f"{sample.id} that has ended", Outcome.SKIPPED)


@each_case
def fields(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """Whatever a field holds, nothing is moved in part and the books balance."""
    for field in sample.hash:
        for value in (None, *HOSTILE, *(ARRAYS if field == lab.settings.each else ())):
            case = sample.changed(field, value)
            yield load_and_judge(lab, case, f"{sample.id} with {field} = {abbreviated(value)}")


def seconds(lab: Lab, sample: Sample) -> Failure | None:
    """An entry whose deadline is in seconds is quarantined instead of expiring at once."""
    if lab.kind.unit_ms > 1:  # one in ms is far in the future
        early = [outcome for outcome in Outcome if outcome is not Outcome.EXPIRED]
        lab.load(due(sample, lab.settings, DEADLINE * 1000))
        return expect(lab, sample, f"{sample.id} with a deadline in ms", *early)
    lab.load(due(sample, lab.settings, DEADLINE // 1000))
    left_alone = (Outcome.QUARANTINED, Outcome.SKIPPED)
    return expect(lab, sample, f"{sample.id} with a deadline in seconds", *left_alone)


def reused(lab: Lab, sample: Sample) -> Failure | None:
    """An id that is reused before the ended hash is gone expires again, with a new event."""
    if sample.outcome != "expired":
        return None
    lab.load(sample)
    lab.run(lab.id(sample))
    lab.put(replace(sample, due=DEADLINE), lab.id(sample))
    lab.write(sample.keys)
    return judge(lab, sample, f"{sample.id} used again")


@each_case
def counters(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """Everything or nothing is moved when a written key is missing, of another type or not a number."""
    counted = counter_keys(lab.settings, sample.hash, sample.id) if sample.outcome == "expired" else []
    for key, content in sample.keys.items():
        rest = {name: other for name, other in sample.keys.items() if name != key}
        yield load_and_judge(lab, replace(sample, keys=rest), f"{sample.id} without {key}")
        if key in counted:  # its writes are omitted, and `missing` names it
            lab.load(replace(sample, keys=rest))
            yield expect(lab, sample, f"{sample.id} without {key}", Outcome.EXPIRED)
        for other in ({"string": "text"}, {"list": ["a"]}, {"hash": {"a": "b"}}):
            if other.keys() != content.keys():
                case = replace(sample, keys=rest | {key: other})
                yield load_and_judge(lab, case, f"{sample.id} with {key} = {other}")
        for field in content.get("hash", {}):
            without = {name: value for name, value in content["hash"].items() if name != field}
            changed = [without] if without else []
            for hash_ in [*changed, *(content["hash"] | {field: value} for value in COUNTERS)]:
                case = replace(sample, keys=rest | {key: {"hash": hash_}})
                yield load_and_judge(lab, case, f"{sample.id} with {key} {field} = {abbreviated(hash_.get(field))}")


def ttls(lab: Lab, sample: Sample) -> Failure | None:
    """A key that stays keeps its TTL; of the commands only SET removes a TTL."""
    lab.load(sample)
    for key in sample.keys:
        lab.client.pexpire(lab.named(key), TTL_MS)
    lab.run(lab.id(sample))
    after = lab.snapshot(sample)
    declared = lab.settings.script is None and all(command.name != "SET" for command in lab.settings.given_back)
    kept = [key for key, content in sample.keys.items() if declared or "string" not in content]
    lost = {lab.named(key) for key in kept if after.ttls.get(lab.named(key), TTL_MS) < 0}
    return Failure(f"{sample.id} with a TTL on each of its keys", f"{names(lost)} lost its TTL") if lost else None


@each_case
def rights(lab: Lab, sample: Sample) -> Iterator[Failure | None]:
    """Nothing moves while the user lacks a right to a command or a key."""
    lab.load(sample)
    before = lab.snapshot(sample)
    lab.run(lab.id(sample))
    touched = lab.snapshot(sample).contents.keys() | before.contents.keys()
    commands = [f"-{name.lower()}" for name in (*FORMS, "XADD", "HMGET", "TYPE", "GET", "EXISTS", *_READS)]
    rules = [f"~* &* +@all {command}" for command in commands]
    rules += [f"&* +@all {' '.join(f'~{_glob(name)}' for name in touched - {key})}" for key in touched]
    if int(str(lab.client.info("server")["redis_version"]).partition(".")[0]) >= 7:
        rules += [f"{rule} %R~{_glob(key)}" for rule, key in zip(rules[len(commands) :], touched, strict=True)]
    yield from (_limited(lab, sample, rule) for rule in rules)


def _limited(lab: Lab, sample: Sample, rule: str) -> Failure | None:
    lab.load(sample)
    lab.client.execute_command("ACL", "SETUSER", "prove", "reset", "on", ">prove", *rule.split())
    options = lab.client.connection_pool.connection_kwargs | {"username": "prove", "password": "prove"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**options)) as limited:
        try:
            lab.kind.check(limited)
        except Exception:
            return None  # the kind would not be swept at all
        return judge(lab, sample, f"{sample.id} by a user with {rule}", errors=True, client=limited)


def full(lab: Lab, sample: Sample) -> Failure | None:
    """An entry expires even when Redis is at maxmemory."""
    lab.load(sample)
    lab.client.config_set("maxmemory-policy", "noeviction")
    lab.client.config_set("maxmemory", 1)
    try:
        return _expect_stated(lab, sample, f"{sample.id} at maxmemory")
    finally:
        lab.client.config_set("maxmemory", 0)


def full_stream(lab: Lab, sample: Sample) -> Failure | None:
    """Nothing changes while the stream accepts no event; afterwards the entry expires."""
    lab.load(sample)
    lab.client.xadd(lab.keys.events, {"type": "prove"}, id=LAST_ID)
    failure = judge(lab, sample, f"{sample.id} while the stream is full", errors=True)
    if failure is None and sample.outcome == "expired":
        lab.client.delete(lab.keys.events)
        failure = expect(lab, sample, f"{sample.id} after the stream was full", Outcome.EXPIRED)
    return failure


def prefixed(lab: Lab, sample: Sample) -> Failure | None:
    """A prefix is added to each key and makes no other difference."""
    prefix, moment = "prove{1}:", DEADLINE + lab.settings.grace_ms + 1
    snapshots = []
    for each in (lab, lab.with_prefix(prefix)):
        each.load(sample)
        each.run(sample.id.encode(), at=moment)
        snapshots.append(each.snapshot(sample))
    plain, other = ({name: _comparable(held) for name, held in snapshot.contents.items()} for snapshot in snapshots)
    expected = {name if name == BYSTANDER else prefix.encode() + name: held for name, held in plain.items()}
    differing = {name for name in expected.keys() | other.keys() if expected.get(name) != other.get(name)}
    about = f"{sample.id} with the prefix {prefix}"
    return Failure(about, f"{names(differing)} differs from a run without it") if differing else None


def _comparable(held: tuple[str, Any]) -> tuple[str, Any]:
    """The content without stream ids, which differ between runs."""
    type_, content = held
    return type_, [fields for _, fields in content] if type_ == "stream" else content


def bounded(lab: Lab, sample: Sample) -> Failure | None:
    """A run stays within limits of time and commands."""
    lab.load(sample)
    lab.client.config_resetstat()
    lab.run(lab.id(sample))
    stats: dict[str, Any] = lab.client.info("commandstats")
    took = sum(stat["usec"] for name, stat in stats.items() if name == "cmdstat_eval") / 1e6
    calls = sum(stat["calls"] for stat in stats.values())
    if took > MAX_SECONDS or calls > MAX_COMMANDS:
        return Failure(sample.id, f"{took:.3f} s and {calls} commands for one entry")
    return None


def _glob(key: bytes) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", key.decode("utf-8", "surrogateescape"))


def rivals(lab: Lab, sample: Sample) -> Failure | None:
    """Two replicas that sweep the same entries write one event for each."""
    if sample.outcome != "expired":
        return None

    def compete() -> None:
        with contextlib.suppress(NoEnd):  # the other sweeper reports it
            _sweep(lab, sample)

    def both() -> None:
        rival = threading.Thread(target=compete, name="prove", daemon=True)
        rival.start()
        _sweep(lab, sample)
        rival.join()

    return _drained(lab, sample, both)


def killed(lab: Lab, sample: Sample) -> Failure | None:
    """A process that is killed in the middle of a drain leaves nothing half done, and the next one finishes."""
    return _drained(lab, sample, lambda: _die(lab, sample)) if sample.outcome == "expired" else None


def at_once(lab: Lab, sample: Sample) -> Failure | None:
    """Entries that are swept within the same millisecond have an event each."""
    lab.load(sample, more=1)
    for entry in lab.entries(sample, 1):
        lab.write(sample.keys)
        result = lab.run(entry, at=DEADLINE + lab.settings.grace_ms + 1)
        if isinstance(result, Exception):
            return Failure(f"2 copies of {sample.id} in one millisecond", f"an error: {result}")
    return None


def _sweep(lab: Lab, sample: Sample) -> None:
    for entry in lab.entries(sample, ENTRIES):
        lab.run(entry)


def _die(lab: Lab, sample: Sample) -> None:
    """Sweep in another process (victim.py) and kill it with `kill -9` while requests are in flight."""
    sha = lab.client.script_load(lab.text)
    calls = [lab.kind.call(entry, TRACE, True) for entry in lab.entries(sample, ENTRIES)]
    connection = lab.client.connection_pool.get_connection()
    requests = [
        b"".join(connection.pack_command("EVALSHA", sha, len(call.keys), *call.keys, *call.args)) for call in calls
    ]
    lab.client.connection_pool.release(connection)
    port = str(lab.client.connection_pool.connection_kwargs["port"])
    line = [sys.executable, "-I", "-S", str(Path(victim.__file__)), port]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        try:
            marshal.dump(requests, process.stdin)
            process.stdin.flush()
            in_the_middle = process.stdout.readline()
        finally:
            process.kill()
    if not in_the_middle:
        raise RuntimeError("the process ended before it was killed")


def _drained(lab: Lab, sample: Sample, work: Callable[[], None]) -> Failure | None:
    """Load copies of the sample, do `work` on them, sweep the rest, and judge the result."""
    about = f"{ENTRIES} copies of {sample.id}"
    lab.load(sample, more=ENTRIES)
    before = lab.snapshot(sample)
    work()
    _sweep(lab, sample)
    after = lab.snapshot(sample)
    entries = set(lab.entries(sample, ENTRIES))
    ids = [fields[b"id"] for _, fields in after.of(lab.keys.events, "stream") if b"id" in fields]
    set_aside, indexed = (len(entries & after.of(key, "zset").keys()) for key in (lab.kind.quarantine, lab.kind.index))
    if len(set(ids)) != len(ids):
        return Failure(about, "two events for one expiry")
    if len(ids) + set_aside + indexed < len(entries):
        return Failure(about, "an expiry without its event")
    return Failure(about, "the books changed") if after.books != before.books else None


#: In the order of the report.
PROPERTIES: tuple[tuple[str, Property], ...] = (
    ("expires when it is due", expires),
    ("bounded time and commands", bounded),
    ("never early", never_early),
    ("a later deadline moves the index", put_off),
    ("a waiting entry ends", waits),
    ("a protected entry stays", protected),
    ("a second run changes nothing", again),
    ("two rivals write one event", rivals),
    ("each expiry has its event", at_once),
    ("a killed sweeper loses nothing", killed),
    ("an orphan leaves the index", orphan),
    ("an unproven kind holds unknown entries", unproven),
    ("another type is quarantined", wrong_type),
    ("an ended entry is skipped", ended),
    ("another state is skipped", alive),
    ("invalid amounts are refused", amounts),
    ("hostile fields move nothing in part", fields),
    ("a deadline in seconds is refused", seconds),
    ("a reused id expires again", reused),
    ("hostile counters move nothing in part", counters),
    ("a key keeps its TTL", ttls),
    ("missing rights move nothing", rights),
    ("a full redis", full),
    ("a full stream", full_stream),
    ("the prefix is added to each key", prefixed),
)
