"""Properties of a kind that are about what surrounds the entry: the keys that it writes, rights, memory, time."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import redis

from sweeperd.config.kind_commands import FORMS, INT64_MAX, INT64_MIN
from sweeperd.kit.derived import counter_keys
from sweeperd.kit.failure import Failure
from sweeperd.kit.judge import attempt, first, judge, outcome_is, short
from sweeperd.kit.lab import BYSTANDER, Lab
from sweeperd.kit.samples import DEADLINE, Sample
from sweeperd.kit.verdicts import names, problem, stated
from sweeperd.sweep.kind import Decision, Outcome

#: Values that a counter may come to hold.
COUNTERS = ("", "x", "1.5", "007", "0", "1", str(INT64_MAX), str(INT64_MAX - 1), str(INT64_MIN), "9" * 40)
#: The TTL of a key, ms: beyond the end of any proof.
TTL_MS = 86_400_000
#: After it a stream takes no other entry.
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
#: The most that one run may take, seconds and commands.
MAX_SECONDS, MAX_COMMANDS = 0.25, 400


def counters(lab: Lab, sample: Sample) -> Failure | None:
    """A key that the plan writes may be of another type, hold no number or be absent: all is moved, or nothing."""
    counted = counter_keys(lab.settings, sample.hash, sample.id) if sample.outcome == "expired" else []

    def cases() -> Iterator[Failure | None]:
        for key, content in sample.keys.items():
            rest = {name: other for name, other in sample.keys.items() if name != key}
            yield attempt(lab, replace(sample, keys=rest), f"{sample.id} without {key}")
            if key in counted:  # the writes to it are left out, and it is named in `missing`
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
    """A key that stays keeps its TTL. Of the commands only SET takes one away."""
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
    """A user that lacks a right to a command or a key moves nothing."""
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
            return None  # it would not be swept at all
        return judge(lab, sample, f"{sample.id} by a user with {rule}", errors=True, client=limited)


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
    found = problem(lab, sample, result, before)
    if not found and isinstance(result, Decision) and result.outcome != sample.outcome:
        found = f"{result.outcome} in place of {sample.outcome}: {result.why}"
    found = found or stated(lab, sample, before)
    return Failure(f"{sample.id} at maxmemory", found) if found else None


def full_stream(lab: Lab, sample: Sample) -> Failure | None:
    """While the stream takes no event nothing changes, and afterwards the entry comes to its outcome."""
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
    """The content without what no two runs have in common: the ids of a stream."""
    type_, content = held
    return type_, [fields for _, fields in content] if type_ == "stream" else content


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
