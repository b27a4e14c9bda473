"""Properties of a kind that are about the entry: its deadline, its index entry and its hash."""

from collections.abc import Iterator
from dataclasses import replace

from sweeperd.config.kind_commands import INT64_MAX, INT64_MIN
from sweeperd.kit.failure import Failure
from sweeperd.kit.judge import attempt, first, judge, short
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import COUNTER, DEADLINE, Sample
from sweeperd.sweep.kind import Decision, Outcome

#: Values that a field of a hash may come to hold.
HOSTILE = (
    *("", "0", "-7", "+5", "007", "1e3", "1.5", " 3", "nan", "x", "*", "{id}", "a b", "]] .. x", "\n", "\x00"),
    *(str(INT64_MAX), str(INT64_MAX + 1), str(INT64_MIN), "9" * 40, "v" * 70_000),
)
#: How often an entry may be put off.
MAX_WAITS = 100


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
    return first(check for moment in moments for check in (at(moment), at(moment, bogus))) or _late(
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
    return attempt(lab, sample, sample.id)


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

    return first(case(field) for field in lab.settings.active)


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
                    yield refused(sample.changed(field, value), f"{sample.id} with {field} = {short(value)}")
        for command in commands:
            if command.minimum is not None and command.amount and command.amount.field and command.amount.negative:
                much = str(int(COUNTER) - int(command.minimum) + 1)
                yield refused(sample.changed(command.amount.field, much), f"{sample.id} with an amount of {much}")

    return first(cases())


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
    return judge(lab, sample, f"{sample.id} with a string in place of its hash")


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
    return first(
        attempt(lab, sample.changed(field, value), f"{sample.id} with {field} = {short(value)}")
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
    return judge(lab, sample, f"{sample.id} used again")
