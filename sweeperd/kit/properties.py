"""The properties that every kind must have, each as a function that returns the first input that breaks it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import redis

from sweeperd.config.kind_commands import FORMS, INT64_MAX, INT64_MIN
from sweeperd.config.kinds import any_match
from sweeperd.kit.drains import killed, rivals
from sweeperd.kit.failure import Failure, Property
from sweeperd.kit.lab import BYSTANDER, Lab, World
from sweeperd.kit.samples import COUNTER, DEADLINE, Sample
from sweeperd.sweep.kind import Decision, Outcome

#: Values that a field of a hash may come to hold.
HOSTILE = (
    *("", "0", "-7", "+5", "007", "1e3", "1.5", " 3", "nan", "x", "*", "{id}", "a b", "]] .. x", "\n", "\x00"),
    *(str(INT64_MAX), str(INT64_MAX + 1), str(INT64_MIN), "9" * 40, "v" * 70_000),
)
#: Values that a counter may come to hold.
COUNTERS = ("", "x", "1.5", "007", "0", "1", str(INT64_MAX), str(INT64_MAX - 1), str(INT64_MIN), "9" * 40)
#: The most that one run may take, seconds and commands.
MAX_SECONDS, MAX_COMMANDS = 0.25, 400
#: How often an entry may be put off.
MAX_WAITS = 100


def _try(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    """Load the sample, run, and judge. `errors`: an error is right as long as nothing has changed."""
    lab.load(sample)
    return _judge(lab, sample, about, errors=errors, **run)


def _judge(lab: Lab, sample: Sample, about: str, *, errors: bool = False, **run: Any) -> Failure | None:
    before = lab.world(sample)
    result = lab.run(sample.id.encode(), **run)
    problem = lab.problem(sample, result, before)
    if errors and problem.startswith("an error:"):
        return None
    if not problem and isinstance(result, Decision) and result.outcome is Outcome.EXPIRED:
        problem = _again(lab, sample)
    return Failure(about, problem) if problem else None


def _again(lab: Lab, sample: Sample) -> str:
    """What a second run of an expired entry changes, with its index entry back in place."""
    before = lab.world(sample)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    result = lab.run(sample.id.encode())
    changed = lab.world(sample).changed_since(before)
    if isinstance(result, Decision) and result.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND) and not changed:
        return ""
    names = ", ".join(sorted(key.decode(errors="backslashreplace") for key in changed))
    return f"a second run changed {names}: {result if isinstance(result, Exception) else result.outcome}"


def _first(failures: Iterable[Failure | None]) -> Failure | None:
    return next(filter(None, failures), None)


def expires(lab: Lab, sample: Sample) -> Failure | None:
    """Each sample comes to the outcome that it should."""
    lab.load(sample)
    before = lab.world(sample)
    result = lab.run(sample.id.encode())
    problem = lab.problem(sample, result, before)
    if not problem and isinstance(result, Decision) and result.outcome != sample.outcome:
        problem = f"{result.outcome} in place of {sample.outcome}: {result.detail} {result.why}".rstrip()
    for counter, value in () if problem else sample.after:
        if lab.counter(counter) != value:
            problem = f"{counter} is {lab.counter(counter)} in place of {value}"
    return Failure(sample.id, problem) if problem else None


def never_early(lab: Lab, sample: Sample) -> Failure | None:
    """An entry does not expire at the end of its grace or before, with any arguments of a caller."""

    def at(moment: int, bogus: tuple[str, ...] = ()) -> Failure | None:
        lab.load(sample)
        result = lab.run(sample.id.encode(), at=moment, bogus=bogus)
        early = isinstance(result, Decision) and result.outcome is Outcome.EXPIRED
        return (
            Failure(f"{sample.id} {moment - end:+d} ms from the end of its grace", "expired early") if early else None
        )

    end = DEADLINE + lab.settings.grace_ms
    moments = (end - 1, end, DEADLINE - 1, DEADLINE, 0)
    bogus = ("9999999999999", "x")
    return _first(check for moment in moments for check in (at(moment), at(moment, bogus))) or _late(
        lab, sample, end + 1
    )


def _late(lab: Lab, sample: Sample, moment: int) -> Failure | None:
    """One millisecond after the grace it is treated as it is later."""
    lab.load(sample)
    result = lab.run(sample.id.encode(), at=moment)
    if sample.outcome == "expired" and isinstance(result, Decision) and result.outcome is not Outcome.EXPIRED:
        return Failure(f"{sample.id} +1 ms from the end of its grace", f"{result.outcome} in place of expired")
    return None


def again(lab: Lab, sample: Sample) -> Failure | None:
    """A second run, or a retry after a lost reply, changes nothing."""
    return _try(lab, sample, sample.id)


def orphan(lab: Lab, sample: Sample) -> Failure | None:
    """An index entry without a hash goes, and nothing else happens."""
    lab.load(sample)
    lab.client.delete(lab.hash_key(sample.id.encode()))
    before = lab.world(sample)
    result = lab.run(sample.id.encode())
    changed = lab.world(sample).changed_since(before)
    if isinstance(result, Decision) and result.outcome is Outcome.NOT_FOUND and changed == {lab.kind.index}:
        return None
    return Failure(f"{sample.id} without its hash", f"{result if isinstance(result, Exception) else result.outcome}")


def alive(lab: Lab, sample: Sample) -> Failure | None:
    """An entry with another value in a field of `active` has ended, and is not touched."""

    def case(field: str) -> Failure | None:
        lab.load(sample.changed(field, "another"))
        result = lab.run(sample.id.encode())
        if isinstance(result, Decision) and result.outcome is Outcome.SKIPPED:
            return None
        problem = f"{result if isinstance(result, Exception) else result.outcome} in place of skipped"
        return Failure(f"{sample.id} with {field} = 'another'", problem)

    return _first(case(field) for field in lab.settings.active)


def amounts(lab: Lab, sample: Sample) -> Failure | None:
    """An amount that is no plain number, or takes more than is there, is set aside."""

    def refused(case: Sample, about: str) -> Failure | None:
        lab.load(case)
        result = lab.run(case.id.encode())
        if isinstance(result, Decision) and result.outcome is Outcome.QUARANTINED:
            return None
        problem = f"{result if isinstance(result, Exception) else result.outcome} in place of a quarantine"
        return Failure(about, problem)

    def cases() -> Iterator[Failure | None]:
        commands = lab.settings.commands if lab.settings.script is None else []
        fields = {command.amount.field for command in commands if command.amount and command.amount.field}
        for field in fields:
            for value in HOSTILE:
                if not (value.isascii() and value.isdigit() and str(int(value)) == value and int(value) <= INT64_MAX):
                    yield refused(sample.changed(field, value), f"{sample.id} with {field} = {_short(value)}")
        for command in commands:
            if command.minimum is not None and command.amount and command.amount.field and command.amount.negative:
                much = str(int(COUNTER) - int(command.minimum) + 1)
                yield refused(sample.changed(command.amount.field, much), f"{sample.id} with an amount of {much}")

    return _first(cases())


def waits(lab: Lab, sample: Sample) -> Failure | None:
    """An entry that waits or is extended comes to an end, where each time is the one that it was put off to."""
    if sample.endless:
        return None
    lab.load(sample)
    seconds, _ = lab.client.time()
    moment = seconds * 1000
    for _ in range(MAX_WAITS):
        result = lab.run(sample.id.encode(), at=moment)
        if not isinstance(result, Decision) or result.outcome is not Outcome.NOT_DUE:
            return None
        moment = int(lab.client.zscore(lab.kind.index, sample.id)) + lab.settings.grace_ms + 1
    return Failure(sample.id, f"it was put off {MAX_WAITS} times, and has no end")


def wrong_type(lab: Lab, sample: Sample) -> Failure | None:
    """A key of another type in place of the hash is set aside."""
    lab.load(sample)
    lab.client.delete(lab.hash_key(sample.id.encode()))
    lab.client.set(lab.hash_key(sample.id.encode()), "text")
    return _judge(lab, sample, f"{sample.id} with a string in place of its hash")


def ended(lab: Lab, sample: Sample) -> Failure | None:
    """An entry that carries all of `ended` is not touched."""
    if not lab.settings.ended:
        return None
    over = replace(sample, hash=sample.hash | lab.settings.ended)
    lab.load(over)
    result = lab.run(over.id.encode())
    if isinstance(result, Decision) and result.outcome is Outcome.SKIPPED:
        return None
    return Failure(f"{sample.id} that has ended", f"{result if isinstance(result, Exception) else result.outcome}")


def fields(lab: Lab, sample: Sample) -> Failure | None:
    """Whatever a field holds, nothing is moved in part and the books hold."""
    changes = [(field, value) for field in sample.hash for value in (None, *HOSTILE)]
    return _first(
        _try(lab, sample.changed(field, value), f"{sample.id} with {field} = {_short(value)}")
        for field, value in changes
    )


def seconds(lab: Lab, sample: Sample) -> Failure | None:
    """A deadline in seconds is set aside, and does not expire at once."""
    lab.load(sample.changed(lab.settings.deadline, str(DEADLINE // 1000)))
    result = lab.run(sample.id.encode())
    if isinstance(result, Decision) and result.outcome is Outcome.EXPIRED:
        return Failure(f"{sample.id} with a deadline in seconds", "expired at once")
    return None


def reused(lab: Lab, sample: Sample) -> Failure | None:
    """An id that is used again under the TTL of the ended hash expires again, with an event of its own."""
    if sample.outcome != "expired":
        return None
    lab.load(sample)
    lab.run(sample.id.encode())
    lab.client.hset(lab.hash_key(sample.id.encode()), mapping=sample.hash)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    for name, content in sample.keys.items():
        lab.client.delete(name)
        if "hash" in content:
            lab.client.hset(name, mapping=content["hash"])
        elif "string" in content:
            lab.client.set(name, content["string"])
    return _judge(lab, sample, f"{sample.id} used again")


def counters(lab: Lab, sample: Sample) -> Failure | None:
    """A key that the plan writes may be of another type, hold no number or be absent: all is moved, or nothing."""

    def cases() -> Iterator[Failure | None]:
        for key, content in sample.keys.items():
            rest = {name: other for name, other in sample.keys.items() if name != key}
            yield _try(lab, replace(sample, keys=rest), f"{sample.id} without {key}")
            for other in ({"string": "text"}, {"list": ["a"]}, {"hash": {"a": "b"}}):
                if other.keys() != content.keys():
                    yield _try(lab, replace(sample, keys=rest | {key: other}), f"{sample.id} with {key} = {other}")
            for field in content.get("hash", {}):
                without = {name: value for name, value in content["hash"].items() if name != field}
                changed = [without] if without else []
                for hash_ in [*changed, *(content["hash"] | {field: value} for value in COUNTERS)]:
                    case = replace(sample, keys=rest | {key: {"hash": hash_}})
                    yield _try(lab, case, f"{sample.id} with {key} {field} = {_short(hash_.get(field))}")

    return _first(cases())


def rights(lab: Lab, sample: Sample) -> Failure | None:
    """A user that lacks a right to a command or a key moves nothing."""
    lab.load(sample)
    before = lab.world(sample)
    lab.run(sample.id.encode())
    touched = lab.world(sample).dumps.keys() | before.dumps.keys()
    commands = [f"-{name.lower()}" for name in (*FORMS, "XADD", "HMGET", "TYPE", "GET", "EXISTS")]
    rules = [f"~* &* +@all {command}" for command in commands]
    rules += [f"&* +@all {' '.join(f'~{_glob(name)}' for name in touched - {key})}" for key in touched]
    if _major(lab) >= 7:
        rules += [f"{rule} %R~{_glob(key)}" for rule, key in zip(rules[len(commands) :], touched, strict=True)]
    return _first(_limited(lab, sample, rule) for rule in rules)


def _limited(lab: Lab, sample: Sample, rule: str) -> Failure | None:
    lab.load(sample)
    lab.client.execute_command("ACL", "SETUSER", "prove", "reset", "on", ">prove", *rule.split())
    options = lab.client.connection_pool.connection_kwargs | {"username": "prove", "password": "prove"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**options)) as limited:
        try:
            lab.kind.check(limited)
        except Exception:
            return None  # it would not be swept at all
        return _judge(lab, sample, f"{sample.id} by a user with {rule}", errors=True, client=limited)


def full(lab: Lab, sample: Sample) -> Failure | None:
    """A Redis at maxmemory takes the expiry too."""
    lab.load(sample)
    before = lab.world(sample)
    lab.client.config_set("maxmemory-policy", "noeviction")
    lab.client.config_set("maxmemory", 1)
    try:
        result = lab.run(sample.id.encode())
    finally:
        lab.client.config_set("maxmemory", 0)
    problem = lab.problem(sample, result, before)
    if not problem and isinstance(result, Decision) and result.outcome != sample.outcome:
        problem = f"{result.outcome} in place of {sample.outcome}: {result.why}"
    return Failure(f"{sample.id} at maxmemory", problem) if problem else None


def declared_keys(lab: Lab, sample: Sample) -> Failure | None:
    """Only keys of the declared patterns are written."""
    lab.load(sample)
    before: World = lab.world(sample)
    lab.run(sample.id.encode())
    own = {lab.hash_key(sample.id.encode()), lab.kind.index, lab.kind.quarantine, lab.keys.events}
    foreign = {
        key.decode(errors="backslashreplace")
        for key in lab.world(sample).changed_since(before) - own
        if key == BYSTANDER or not any_match(lab.settings.write_patterns, key.decode("utf-8", "surrogateescape"))
    }
    return Failure(sample.id, f"{', '.join(sorted(foreign))} matches no pattern of writes") if foreign else None


def bounded(lab: Lab, sample: Sample) -> Failure | None:
    """One run takes little time and few commands."""
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


def _short(value: str | None) -> str:
    return "nothing" if value is None else repr(value if len(value) <= 40 else value[:37] + "...")


#: All properties, in the order of the report.
PROPERTIES: tuple[tuple[str, Property], ...] = (
    ("expires when it is due", expires),
    ("bounded time and commands", bounded),
    ("never early", never_early),
    ("what waits comes to an end", waits),
    ("a second run changes nothing", again),
    ("two rivals make one event", rivals),
    ("a killed sweeper loses nothing", killed),
    ("an orphan leaves the index", orphan),
    ("another type is set aside", wrong_type),
    ("what has ended is left alone", ended),
    ("another state has ended", alive),
    ("amounts that are none are refused", amounts),
    ("hostile fields move nothing in part", fields),
    ("a deadline in seconds is refused", seconds),
    ("an id that is used again", reused),
    ("hostile counters move nothing in part", counters),
    ("missing rights move nothing", rights),
    ("a full redis", full),
    ("declared keys only", declared_keys),
)
