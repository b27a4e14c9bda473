"""Samples of a declared kind, from its own templates: what it writes is what its templates say."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from sweeperd.config.kind_commands import ID, Command, Field, Word
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError
from sweeperd.kit.samples import DEADLINE, After, Content, Sample

#: What an amount of a derived sample is, and what its counters hold before.
AMOUNT, COUNTER = "3", "1000"
_OTHER = "another"


def derived_samples(kind: KindSettings) -> list[Sample]:
    """A sample of a declared kind, with counters that are large enough. Raises ConfigError for a kind with a script."""
    if kind.script is not None:
        raise ConfigError(f"kinds: {kind.name} has a script: name entries with --samples FILE")
    commands = kind.given_back
    fields: dict[str, str] = {name: f"{name}-1" for name in [*kind.event, *([kind.tenant] if kind.tenant else [])]}
    fields |= {name: f"{name}-1" for command in commands for name in command.fields}
    fields |= {command.amount.field: AMOUNT for command in commands if command.amount and command.amount.field}
    fields |= kind.active | {kind.deadline: str(DEADLINE)}
    keys: dict[str, Content] = {}
    for command in commands:
        _found(keys, command, fields)
    after: dict[str, Content] = deepcopy(keys)
    for command in commands:
        _written(after, command, fields)
    left = {key: after.get(key) for key in [*keys, *after] if after.get(key) != keys.get(key)}
    messages = tuple(
        (filled(each.key, fields), filled(each.words[0], fields)) for each in commands if each.name == "PUBLISH"
    )
    return [Sample("id-1", fields, keys, _books(commands, fields), after=After(keys=left, messages=messages))]


def _found(keys: dict[str, Content], command: Command, fields: dict[str, str]) -> None:
    """Adds what the command finds: a counter to add to, a member to take out and another one that stays."""
    key, words = filled(command.key, fields), [filled(word, fields) for word in command.words]
    match command.name:
        case "HINCRBY":
            keys.setdefault(key, {"hash": {}}).get("hash", {})[words[0]] = COUNTER
        case "HDEL":
            keys.setdefault(key, {"hash": {}}).get("hash", {}).update(dict.fromkeys([*words, _OTHER], "x"))
        case "INCRBY":
            keys[key] = {"string": COUNTER}
        case "DEL":
            keys.setdefault(key, {"string": "x"})
        case "SREM":
            keys.setdefault(key, {"set": [_OTHER]}).get("set", []).extend(words)
        case "ZREM":
            keys.setdefault(key, {"zset": {_OTHER: 1}}).get("zset", {}).update(dict.fromkeys(words, 1))


def _written(keys: dict[str, Content], command: Command, fields: dict[str, str]) -> None:
    """Does what the command does."""
    key, words = filled(command.key, fields), [filled(word, fields) for word in command.words]
    amount = _amount(command, fields)

    def content(type_: str, empty: Any) -> Any:
        return keys.setdefault(key, {type_: empty})[type_]

    match command.name:
        case "HINCRBY":
            held = content("hash", {})
            held[words[0]] = str(int(held[words[0]]) + amount)
        case "INCRBY":
            keys[key] = {"string": str(int(content("string", COUNTER)) + amount)}
        case "HSET":
            content("hash", {}).update(zip(words[::2], words[1::2], strict=True))
        case "SET":
            keys[key] = {"string": words[0]}
        case "DEL":
            del keys[key]
        case "ZADD":
            content("zset", {})[words[0]] = amount
        case "SADD":
            content("set", []).extend(words)
        case "RPUSH":
            content("list", []).extend(words)
        case "LPUSH":
            keys[key] = {"list": [*reversed(words), *content("list", [])]}
        case "HDEL" | "ZREM":
            for word in words:
                content("hash" if command.name == "HDEL" else "zset", {}).pop(word, None)
        case "SREM":
            keys[key] = {"set": [member for member in content("set", []) if member not in words]}


def _amount(command: Command, fields: dict[str, str]) -> int:
    if command.amount is None:
        return 0
    amount = int(fields[command.amount.field] if command.amount.field else command.amount.literal)
    return -amount if command.amount.negative else amount


def _books(commands: Sequence[Command], fields: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """The counters of one key between which an amount is moved."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for command in commands:
        if command.name == "HINCRBY" and command.amount and command.amount.field:
            key = filled(command.key, fields)
            moves = groups.setdefault((key, command.amount.field), {})
            counter = f"{key} {filled(command.words[0], fields)}"
            moves[counter] = moves.get(counter, 0) + (-1 if command.amount.negative else 1)
    return tuple(tuple(moves) for moves in groups.values() if len(moves) > 1 and sum(moves.values()) == 0)


def filled(word: Word, fields: dict[str, str], entry: str = "id-1") -> str:
    """The word with these fields of the hash and this id in its placeholders."""
    values = fields | {ID: entry}
    return "".join(values[part.name] if isinstance(part, Field) else part for part in word)


def counter_keys(kind: KindSettings, fields: dict[str, str], entry: str) -> list[str]:
    """The keys that a declared kind adds to, without the prefix. Where one does not exist it is not made."""
    counters = (
        [command for command in kind.given_back if command.name in ("HINCRBY", "INCRBY")] if not kind.script else []
    )
    return list(dict.fromkeys(filled(command.key, fields, entry) for command in counters))
