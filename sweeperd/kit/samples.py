"""Reads or derives the entries that a kind is proved with."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeperd.config.kinds import KindSettings
from sweeperd.config.templates import ID, Command, Field, Word, bare, fields_of
from sweeperd.errors import ConfigError
from sweeperd.sweep.fields import json_fields, member_fields

#: The deadline of every sample, ms: overdue by any server's clock.
DEADLINE = 1_700_000_000_000
_LIST = (list, tuple, set)
_TYPES: dict[str, Any] = {"hash": dict, "string": (str, int, float), "set": _LIST, "zset": dict, "list": _LIST}
#: The amounts and counters of a derived sample.
AMOUNT, COUNTER = "3", "1000"
_OTHER = "another"
_NUMBER = re.compile(r"0|-?[1-9]\d{0,39}")

#: In `after`: any value, and the time of the run, ms. ANY instead of a key's content: any content, or none.
ANY, NOW = "*", "{now}"

#: {"hash": {..}}, {"string": ".."}, {"set": [..]}, {"zset": {..}} or {"list": [..]}.
Content = dict[str, Any]


@dataclass(frozen=True)
class After:
    """The expected content of Redis after the sample's outcome. Keys that are not named must not change."""

    #: Fields of the entry's hash (None: without this field), or None if the hash is removed.
    hash: dict[str, str | None] | None = field(default_factory=dict)
    #: The whole content of each key (None: removed), or ANY.
    keys: dict[str, Content | str | None] = field(default_factory=dict)
    #: All `data` fields of the event, if they are stated.
    event: dict[str, str] | None = None
    #: Each channel and message in order, if they are stated.
    messages: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class Sample:
    """One overdue entry, and the keys that it refers to."""

    id: str
    #: The fields of the entry, whatever its form.
    hash: dict[str, str]
    keys: dict[str, Content]
    #: Groups of counters ("KEY FIELD" or "KEY") whose sum no expiry may change.
    books: tuple[tuple[str, ...], ...] = ()
    outcome: str = "expired"
    after: After | None = None
    #: Whether the entry waits until its keys change.
    endless: bool = False
    #: Whether it is a copy of a real entry.
    live: bool = False
    #: When it is due if the score of the index is the deadline, ms.
    due: int = DEADLINE

    def changed(self, field: str, value: str | None) -> "Sample":
        """The sample with another value in this field, or without the field."""
        rest = {name: old for name, old in self.hash.items() if name != field}
        return replace(self, hash=rest if value is None else rest | {field: value})


def due(sample: Sample, kind: KindSettings, ms: int) -> Sample:
    if kind.deadline is None:
        return replace(sample, due=ms)
    return sample.changed(kind.deadline, unit_text(kind, ms))


def unit_text(kind: KindSettings, ms: int) -> str:
    return str(ms) if kind.unit_ms == 1 else f"{ms / kind.unit_ms:.3f}"


def member_of(kind: KindSettings, fields: Mapping[str, str]) -> str:
    return "".join(fields.get(part.name, "") if isinstance(part, Field) else part for part in kind.parts)


def json_text(fields: Mapping[str, str], each: str | None = None) -> str:
    """A JSON object with these fields. Whole numbers are numbers, and `each` is an array if it can be read."""
    document: dict[str, Any] = {}
    for name, text in fields.items():
        *path, last = [bare(name)] if name.startswith('"') else name.split(".")
        place = document
        for step in path:
            place = place.setdefault(step, {})
        if isinstance(place, dict):
            place[last] = _json_value(text, is_array=name == each)
    return json.dumps(document, ensure_ascii=False)


def _json_value(text: str, *, is_array: bool) -> Any:
    if _NUMBER.fullmatch(text):
        return int(text)
    if is_array:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def elements(kind: KindSettings, fields: Mapping[str, str]) -> list[dict[str, str]]:
    """The fields of each element of `each`, under their names in templates; empty if it is no array of objects."""
    found = []
    with contextlib.suppress(ValueError, RecursionError):
        for element in json.loads(fields.get(kind.each or "") or "[]"):
            texts = json_fields(json.dumps(element, ensure_ascii=False).encode("utf-8", "surrogateescape"))
            found.append({f"{kind.each}.{_text(name)}": _text(value) for name, value in texts.items()})
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def given(kind: KindSettings, fields: Mapping[str, str]) -> list[tuple[Command, dict[str, str]]]:
    """The writes of an entry with these fields, each with the fields that fill it."""
    return [
        (command, {**fields, **more})
        for command in kind.given_back
        for more in (elements(kind, fields) if kind.repeats(command) else [{}])
    ]


def read_samples(path: Path, kind: KindSettings) -> list[Sample]:
    """The samples of a JSON file. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        books = tuple(tuple(map(str, group)) for group in document.get("books", []))
        samples = [sample_of(row, kind, books) for row in document["samples"]]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise ConfigError(f"{path}: {error.args[0]} is missing; `samples` need `id` and `hash`") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: invalid samples: {error!r}") from None
    if not samples:
        raise ConfigError(f"{path}: `samples` is empty")
    return samples


def sample_of(row: dict[str, Any], kind: KindSettings, books: tuple[tuple[str, ...], ...] = ()) -> Sample:
    """The sample of a JSON object, with the deadline filled in. Raises ValueError, KeyError, TypeError."""
    keys: dict[str, Content] = row.get("keys", {})
    _check(keys)
    fields = {str(name): str(value) for name, value in row.get("hash", {}).items()}
    if kind.entry == "member":
        fields = {
            _text(name): _text(value) for name, value in member_fields(kind.parts, str(row["id"]).encode()).items()
        }
    elif "json" in row:
        text = json.dumps(row["json"], ensure_ascii=False).encode()
        fields = {_text(name): _text(value) for name, value in json_fields(text).items()}
    elif "hash" not in row:
        raise KeyError("json" if kind.entry == "json" else "hash")
    if kind.deadline is not None:
        fields |= {kind.deadline: unit_text(kind, DEADLINE)}
    after = None if row.get("after") is None else _after(row["after"])
    outcome, endless = row.get("outcome", "expired"), bool(row.get("endless", False))
    return Sample(str(row["id"]), fields, keys, books, outcome, after, endless)


def _after(row: dict[str, Any]) -> After:
    if unknown := row.keys() - {"hash", "keys", "event", "messages"}:
        raise ValueError(f"after: {min(unknown)} is not one of hash, keys, event, messages")
    keys: dict[str, Content | str | None] = row.get("keys", {})
    _check({key: content for key, content in keys.items() if content is not None and content != ANY})
    fields, event, messages = row.get("hash", {}), row.get("event"), row.get("messages")
    return After(
        None if fields is None else {name: None if value is None else str(value) for name, value in fields.items()},
        keys,
        None if event is None else {name: str(value) for name, value in event.items()},
        None if messages is None else tuple((str(channel), str(message)) for channel, message in messages),
    )


def _check(keys: Mapping[str, Any]) -> None:
    for key, content in keys.items():
        if not isinstance(content, dict) or len(content) != 1 or next(iter(content)) not in _TYPES:
            raise ValueError(f"{key}: the type must be one of {', '.join(_TYPES)}")
        ((type_, value),) = content.items()
        if not isinstance(value, _TYPES[type_]) or not (value or type_ == "string"):
            raise ValueError(f"{key}: a {type_} cannot be {value!r}")


def without_after(samples: Sequence[Sample]) -> str:
    """A warning that names the expired samples without `after`, or ""."""
    names = [sample.id for sample in samples if sample.outcome == "expired" and sample.after is None]
    return f"these samples have no `after` to compare Redis with: {', '.join(names)}" if names else ""


def derived_samples(kind: KindSettings) -> list[Sample]:
    """A sample for a declared kind, with large enough counters. Raises ConfigError for a kind with a script."""
    if kind.script is not None:
        raise ConfigError(f"kinds: {kind.name} has a script: give entries with --samples FILE")
    commands = kind.given_back
    named = [*kind.event_fields, *([Field(kind.tenant)] if kind.tenant else []), *fields_of(kind.unless_key or ())]
    named += [field for command in commands for field in command.fields]
    amounts = {bare(amount.name): AMOUNT for command in commands if (amount := command.amount and command.amount.field)}
    all_fields = {bare(field.name): f"{bare(field.name)}-1" for field in named} | amounts
    fields = {name: value for name, value in all_fields.items() if not kind.is_of_element(Field(name))}
    fields |= {name: values[0] for name, values in kind.active.items()}
    if kind.deadline is not None:
        fields |= {kind.deadline: unit_text(kind, DEADLINE)}
    if kind.each is not None:
        stem = f"{kind.each}."
        one = {name.removeprefix(stem): value for name, value in all_fields.items() if name.startswith(stem)}
        two = {name: value.replace("-1", "-2") for name, value in one.items()}
        fields[kind.each] = f"[{json_text(one)}, {json_text(two)}]"
    entry = "id-1"
    if kind.entry == "member":
        fields = {part.name: amounts.get(part.name, f"{part.name}1") for part in fields_of(kind.parts)}
        entry = member_of(kind, fields)
    writes = [(command, more | {ID: entry}) for command, more in given(kind, fields)]
    keys: dict[str, Content] = {}
    for command, filling in writes:
        _found(keys, command, filling)
    after: dict[str, Content] = deepcopy(keys)
    for command, filling in writes:
        _written(after, command, filling)
    left: dict[str, Content | str | None] = {
        key: after.get(key) for key in [*keys, *after] if after.get(key) != keys.get(key)
    }
    messages = tuple((filled(c.key, more), filled(c.words[0], more)) for c, more in writes if c.name == "PUBLISH")
    return [Sample(entry, fields, keys, books_of(writes), after=After(keys=left, messages=messages))]


def _found(keys: dict[str, Content], command: Command, fields: dict[str, str]) -> None:
    """Add the keys that the command needs: a counter, or a member to remove and one that stays."""
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
    amount = int(value_of(command.amount.field, fields) if command.amount.field else command.amount.literal)
    return -amount if command.amount.negative else amount


def books_of(writes: Sequence[tuple[Command, dict[str, str]]]) -> tuple[tuple[str, ...], ...]:
    """The groups of counters of one key between which an amount moves."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for command, fields in writes:
        if command.name == "HINCRBY" and command.amount and command.amount.field:
            key = filled(command.key, fields)
            moves = groups.setdefault((key, command.amount.field.name), {})
            counter = f"{key} {filled(command.words[0], fields)}"
            moves[counter] = moves.get(counter, 0) + (-1 if command.amount.negative else 1)
    return tuple(tuple(moves) for moves in groups.values() if len(moves) > 1 and sum(moves.values()) == 0)


def value_of(field: Field, fields: Mapping[str, str]) -> str:
    """The value of a field, or its default; empty without both."""
    return fields.get(bare(field.name)) or field.default or ""


def filled(word: Word, fields: dict[str, str], entry: str = "id-1") -> str:
    """The word with its placeholders filled from the hash and the id; a missing field is empty."""
    values = {ID: entry} | fields
    return "".join(value_of(part, values) if isinstance(part, Field) else part for part in word)


def counter_keys(kind: KindSettings, fields: dict[str, str], entry: str) -> list[str]:
    """The keys that a declared kind adds to, without the prefix; it creates none of them."""
    writes = () if kind.script else given(kind, fields)
    counters = ((command, more) for command, more in writes if command.name in ("HINCRBY", "INCRBY"))
    return list(dict.fromkeys(filled(command.key, more, entry) for command, more in counters))
