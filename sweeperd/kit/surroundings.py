"""Properties of a kind that are about what surrounds the entry: the keys that it writes, rights, memory, time."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import redis

from sweeperd.config.kind_commands import FORMS, INT64_MAX, INT64_MIN
from sweeperd.config.kinds import any_match
from sweeperd.kit.failure import Failure
from sweeperd.kit.judge import attempt, first, judge, short
from sweeperd.kit.lab import BYSTANDER, Lab, World
from sweeperd.kit.samples import Sample
from sweeperd.sweep.kind import Decision

#: Values that a counter may come to hold.
COUNTERS = ("", "x", "1.5", "007", "0", "1", str(INT64_MAX), str(INT64_MAX - 1), str(INT64_MIN), "9" * 40)
#: The most that one run may take, seconds and commands.
MAX_SECONDS, MAX_COMMANDS = 0.25, 400


def counters(lab: Lab, sample: Sample) -> Failure | None:
    """A key that the plan writes may be of another type, hold no number or be absent: all is moved, or nothing."""

    def cases() -> Iterator[Failure | None]:
        for key, content in sample.keys.items():
            rest = {name: other for name, other in sample.keys.items() if name != key}
            yield attempt(lab, replace(sample, keys=rest), f"{sample.id} without {key}")
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
