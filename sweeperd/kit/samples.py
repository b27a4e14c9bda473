"""Entries to prove a kind with: from a file, or derived from the templates of a declared kind."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeperd.config.kind_commands import ID, Command, Field, Word
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError

#: The deadline of every sample, ms: long ago, so that a sample is overdue on any server's clock.
DEADLINE = 1_700_000_000_000
#: What an amount of a derived sample is, and what its counters hold before.
AMOUNT, COUNTER = "3", "1000"
_TYPES = ("hash", "string", "set", "zset", "list")

#: A key's type and content: {"hash": {..}}, {"string": ".."}, {"set": [..]}, {"zset": {..}} or {"list": [..]}.
Content = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One overdue entry and the keys that it refers to."""

    id: str
    hash: dict[str, str]
    keys: dict[str, Content]
    #: Groups of "KEY FIELD" (or "KEY" of a number) whose sum no expiry may change.
    books: tuple[tuple[str, ...], ...] = ()
    #: What a sweep makes of it.
    outcome: str = "expired"
    #: What counters, named as in `books`, hold after it.
    after: tuple[tuple[str, str], ...] = ()
    #: Whether it waits for as long as its keys are as they are.
    endless: bool = False

    def changed(self, field: str, value: str | None) -> "Sample":
        """The sample with another value of this field, or without it."""
        rest = {name: old for name, old in self.hash.items() if name != field}
        return replace(self, hash=rest if value is None else rest | {field: value})


def read_samples(path: Path, kind: KindSettings) -> list[Sample]:
    """The samples of a JSON file. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        books = tuple(tuple(map(str, group)) for group in document.get("books", []))
        samples = [sample_of(row, kind, books) for row in document["samples"]]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no samples: {error!r}") from None
    if not samples:
        raise ConfigError(f"{path}: there are no samples")
    return samples


def sample_of(row: dict[str, Any], kind: KindSettings, books: tuple[tuple[str, ...], ...] = ()) -> Sample:
    """
    A sample from its JSON form: `id`, `hash`, and where needed `keys`, `outcome`, `after`, `endless`. The deadline is
    filled in. Raises ValueError, KeyError, TypeError.
    """
    for key, content in row.get("keys", {}).items():
        if len(content) != 1 or next(iter(content)) not in _TYPES:
            raise ValueError(f"{key}: a key is one of {', '.join(_TYPES)}")
    fields = {str(name): str(value) for name, value in row["hash"].items()} | {kind.deadline: str(DEADLINE)}
    after = tuple((str(counter), str(value)) for counter, value in row.get("after", {}).items())
    outcome, endless = row.get("outcome", "expired"), bool(row.get("endless", False))
    return Sample(str(row["id"]), fields, row.get("keys", {}), books, outcome, after, endless)


def derived_samples(kind: KindSettings) -> list[Sample]:
    """A sample of a declared kind, with counters that are large enough. Raises ConfigError for a kind with a script."""
    if kind.script is not None:
        raise ConfigError(f"kinds: {kind.name} has a script: name entries with --samples FILE")
    commands = kind.commands
    fields: dict[str, str] = {name: f"{name}-1" for name in [*kind.event, *([kind.tenant] if kind.tenant else [])]}
    fields |= {name: f"{name}-1" for command in commands for name in command.fields}
    fields |= {command.amount.field: AMOUNT for command in commands if command.amount and command.amount.field}
    fields |= kind.active | {kind.deadline: str(DEADLINE)}
    keys: dict[str, Content] = {}
    for command in commands:
        name = _filled(command.key, fields)
        if command.name == "HINCRBY":
            keys.setdefault(name, {"hash": {}})["hash"][_filled(command.words[0], fields)] = COUNTER
        elif command.name == "INCRBY":
            keys[name] = {"string": COUNTER}
    return [Sample("id-1", fields, keys, _books(commands, fields), after=_after(commands, fields))]


def _after(commands: Sequence[Command], fields: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """What each counter holds when all of its sums are made."""
    values: dict[str, int] = {}
    for command in commands:
        if command.name in ("HINCRBY", "INCRBY") and command.amount:
            counter = " ".join(_filled(word, fields) for word in (command.key, *command.words))
            amount = int(fields[command.amount.field] if command.amount.field else command.amount.literal)
            values[counter] = values.get(counter, int(COUNTER)) + (-amount if command.amount.negative else amount)
    return tuple((counter, str(value)) for counter, value in values.items())


def _books(commands: Sequence[Command], fields: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """The counters of one key between which an amount is moved."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for command in commands:
        if command.name == "HINCRBY" and command.amount and command.amount.field:
            key = _filled(command.key, fields)
            moves = groups.setdefault((key, command.amount.field), {})
            counter = f"{key} {_filled(command.words[0], fields)}"
            moves[counter] = moves.get(counter, 0) + (-1 if command.amount.negative else 1)
    return tuple(tuple(moves) for moves in groups.values() if len(moves) > 1 and sum(moves.values()) == 0)


def _filled(word: Word, fields: dict[str, str]) -> str:
    values = fields | {ID: "id-1"}
    return "".join(values[part.name] if isinstance(part, Field) else part for part in word)
