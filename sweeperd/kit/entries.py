"""Properties of a kind that are about the entry: its deadline, its index entry and its hash."""

from collections.abc import Iterator
from dataclasses import replace

from sweeperd.config.kind_commands import INT64_MAX, INT64_MIN
from sweeperd.kit.derived import filled
from sweeperd.kit.failure import Failure
from sweeperd.kit.judge import attempt, first, judge, outcome_is, short
from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import DEADLINE, Sample
from sweeperd.kit.verdicts import problem, stated
from sweeperd.sweep.kind import Decision, Outcome

#: Values that a field of a hash may come to hold.
HOSTILE = (
    *("", "0", "-7", "+5", "007", "1e3", "1.5", " 3", "nan", "x", "*", "{id}", "a b", "]] .. x", "\n", "\x00"),
    *(str(INT64_MAX), str(INT64_MAX + 1), str(INT64_MIN), "9" * 40, "v" * 70_000),
)
#: How often an entry may be put off.
MAX_WAITS = 100
#: What is added to the deadline, ms: the time and its seconds are even, then odd.
SHIFTS = (0, 1_234_567)


def expires(lab: Lab, sample: Sample) -> Failure | None:
    """Each sample comes to the outcome that it should, and leaves what its `after` says."""
    lab.load(sample)
    before = lab.world(sample)
    failure = outcome_is(lab, sample, sample.id, Outcome(sample.outcome))
    found = "" if failure else stated(lab, sample, before)
    return Failure(sample.id, found) if found else failure


def never_early(lab: Lab, sample: Sample) -> Failure | None:
    """
    An entry does not expire at the end of its grace or before, with any arguments of a caller; and one millisecond
    later it does. Both with an even and with an odd deadline.
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
    before = lab.world(sample)
    result = lab.run(sample.id.encode(), at=DEADLINE + 1)
    found = problem(lab, sample, result, before)
    return Failure(f"{sample.id} with a deadline to come", found) if found else None


def orphan(lab: Lab, sample: Sample) -> Failure | None:
    """An index entry without a hash goes, and nothing else happens."""
    lab.load(sample)
    lab.client.delete(lab.hash_key(sample.id.encode()))
    return outcome_is(lab, sample, f"{sample.id} without its hash", Outcome.NOT_FOUND)


def alive(lab: Lab, sample: Sample) -> Failure | None:
    """An entry with another value in a field of `active` has ended, and is not touched."""

    def case(field: str) -> Failure | None:
        lab.load(sample.changed(field, "another"))
        return outcome_is(lab, sample, f"{sample.id} with {field} = 'another'", Outcome.SKIPPED)

    return first(case(field) for field in lab.settings.active)


def amounts(lab: Lab, sample: Sample) -> Failure | None:
    """An amount that is no plain number, or takes more than is there, is set aside."""
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
    """An entry that waits or is extended comes to an end, where each time is the one that it was put off to."""
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
    return outcome_is(lab, over, f"{sample.id} that has ended", Outcome.SKIPPED)


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
    left_alone = (Outcome.QUARANTINED, Outcome.SKIPPED)
    return outcome_is(lab, sample, f"{sample.id} with a deadline in seconds", *left_alone)


def reused(lab: Lab, sample: Sample) -> Failure | None:
    """An id that is used again under the TTL of the ended hash expires again, with an event of its own."""
    if sample.outcome != "expired":
        return None
    lab.load(sample)
    lab.run(sample.id.encode())
    lab.client.hset(lab.hash_key(sample.id.encode()), mapping=sample.hash)
    lab.client.zadd(lab.kind.index, {sample.id: DEADLINE})
    lab.write(sample.keys)
    return judge(lab, sample, f"{sample.id} used again")
