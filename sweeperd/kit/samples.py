"""Entries to prove a kind with, and what must stand in Redis after their expiry."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError

#: The deadline of every sample, ms: long ago, so that a sample is overdue on any server's clock.
DEADLINE = 1_700_000_000_000
_TYPES = ("hash", "string", "set", "zset", "list")

#: A key's type and content: {"hash": {..}}, {"string": ".."}, {"set": [..]}, {"zset": {..}} or {"list": [..]}.
Content = dict[str, Any]


@dataclass(frozen=True)
class After:
    """What must stand in Redis when the sample has come to its outcome. A key that is not named has not changed."""

    #: Fields of the entry's hash, None for one that is absent; None in place of all where there is no hash.
    hash: dict[str, str | None] | None = field(default_factory=dict)
    #: The whole content of each key, None for one that is absent.
    keys: dict[str, Content | None] = field(default_factory=dict)
    #: All `data` fields of the event; None where they are not stated.
    event: dict[str, str] | None = None
    #: Each message and its channel, in order; None where they are not stated.
    messages: tuple[tuple[str, str], ...] | None = None


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
    #: None where it is not stated.
    after: After | None = None
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
    keys: dict[str, Content] = row.get("keys", {})
    _check(keys)
    fields = {str(name): str(value) for name, value in row["hash"].items()} | {kind.deadline: str(DEADLINE)}
    after = None if row.get("after") is None else _after(row["after"])
    outcome, endless = row.get("outcome", "expired"), bool(row.get("endless", False))
    return Sample(str(row["id"]), fields, keys, books, outcome, after, endless)


def _after(row: dict[str, Any]) -> After:
    """Raises ValueError, KeyError, TypeError, AttributeError."""
    if unknown := row.keys() - {"hash", "keys", "event", "messages"}:
        raise ValueError(f"after: {min(unknown)} is none of hash, keys, event, messages")
    keys: dict[str, Content | None] = row.get("keys", {})
    _check({key: content for key, content in keys.items() if content is not None})
    fields, event, messages = row.get("hash", {}), row.get("event"), row.get("messages")
    return After(
        None if fields is None else {name: None if value is None else str(value) for name, value in fields.items()},
        keys,
        None if event is None else {name: str(value) for name, value in event.items()},
        None if messages is None else tuple((str(channel), str(message)) for channel, message in messages),
    )


def _check(keys: dict[str, Content]) -> None:
    """Raises ValueError, TypeError."""
    for key, content in keys.items():
        if len(content) != 1 or next(iter(content)) not in _TYPES:
            raise ValueError(f"{key}: a key is one of {', '.join(_TYPES)}")


def without_after(samples: Sequence[Sample]) -> str:
    """A warning that names the expired samples without `after`; empty for none."""
    names = [sample.id for sample in samples if sample.outcome == "expired" and sample.after is None]
    return f"no `after` says what these have to leave in Redis: {', '.join(names)}" if names else ""
