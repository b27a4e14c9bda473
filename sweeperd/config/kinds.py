"""Defines the settings of configured kinds and checks that they fit together."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, field_validator, model_validator
from pydantic import Field as Checked

from sweeperd.config.secrets import read_text
from sweeperd.config.templates import (
    ID,
    Command,
    Field,
    Word,
    bare,
    check_name,
    fields_of,
    parse_command,
    parse_field,
    parse_unless,
    parse_word,
    pattern_of,
)
from sweeperd.config.types import (
    OWN_KEYS,
    PositiveDuration,
    PositiveRetention,
    Retention,
    Section,
    as_text,
    matching,
    milliseconds,
)

#: Names that could be mistaken for sweeperd's own.
RESERVED_NAMES = {"reservation", "reservations", "system", "webhook", "sweeperd"}
#: The fields of the event's data that sweeperd sets.
OWN_DATA = {"id", "expires_at", "expired_at", "missing"}
#: The fields of the hash that sweeperd sets.
OWN_FIELDS = {"expired_at", "dismissed_at", "quarantined_at", "quarantine_reason", "quarantine_detail"}
#: The prefixes of reservations' keys, if they are swept.
RESERVATION_KEYS = ("reservation:", "budget:")
#: The most writes for one entry, and with `each`.
MAX_WRITES, MAX_EACH = 64, 256
#: How many ms a unit of deadlines is.
UNITS = {"ms": 1, "s": 1000}
#: The most fields of the hash that a script may read, and the largest script file in bytes.
MAX_FIELDS, MAX_SCRIPT = 256, 65_536


def _script_text(value: object, info: ValidationInfo) -> object:
    """Reads the file named by `file:PATH`, relative to the settings file."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith("file:"):
        raise ValueError('must name a Lua file: "file:PATH"')
    path = Path((info.context or {}).get("directory", "."), value.removeprefix("file:"))
    text = read_text(path)
    if len(text.encode()) > MAX_SCRIPT:
        raise ValueError(f"{path} is longer than {MAX_SCRIPT} bytes")
    return text


ScriptText = Annotated[
    str | None, BeforeValidator(_script_text), *as_text("^file:.", lambda text: f"({len(text)} characters of Lua)")
]
Name = Annotated[
    str, *matching(r"^[a-z][a-z0-9-]{0,63}$", "must be up to 64 lower-case letters, digits and `-`, a letter first")
]
Text = Annotated[str, Checked(min_length=1)]
#: One value of a field, or several.
Values = Annotated[
    list[str],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=Text | list[Text]
    ),
    Checked(min_length=1),
]


def _key(key: str | None) -> str | None:
    if key is None:
        return None
    word = parse_word(key)
    if [part.name for part in word if isinstance(part, Field)] != [ID] or len(word) == 1:
        raise ValueError('must hold {id} once and no other placeholder, such as "seats:hold:{id}"')
    if word[0] == Field(ID):
        raise ValueError('must begin with literal text, such as "seats:hold:{id}", or an id could name any key')
    return key


def _member(member: str | None) -> str | None:
    word = parse_word(member or "")
    names = [part for part in word if isinstance(part, Field)]
    if len({name.name for name in names}) < len(names) or any(name.default for name in names) or Field(ID) in names:
        raise ValueError("must name each part once, without a default, and none of them id")
    if any(isinstance(one, Field) and isinstance(two, Field) for one, two in pairwise(word)):
        raise ValueError("must have a text between two parts, such as {type}|{slot}")
    if member is not None and not names:
        raise ValueError("must name the parts of a member, such as {type}|{slot}")
    return member


def _event(event: list[str]) -> list[str]:
    names = {parse_field(field).name for field in event}
    if own := OWN_DATA & names:
        raise ValueError(f"{min(own)} is set by sweeperd itself")
    if len(names) != len(event) or len(event) > MAX_WRITES:
        raise ValueError(f"must name each field once, and up to {MAX_WRITES}")
    return event


def _name(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"{name} is reserved by sweeperd itself")
    return name


def _each(check: Callable[[Any], object]) -> AfterValidator:
    """Checks each item of a list, which stays as it is."""

    def validate(items: list[Any] | None) -> list[Any] | None:
        for item in items or []:
            check(item)
        return items

    return AfterValidator(validate)


class SumSettings(Section):
    """A field of a hash, and the field of the active entries whose sum it must equal."""

    key: Text
    field: Text
    of: Text


class KindSettings(Section):
    """One kind of entry to sweep."""

    name: Annotated[Name, AfterValidator(_name)]
    index: Text
    entry: Literal["hash", "json", "member"] = "hash"
    key: Annotated[Text | None, AfterValidator(_key)] = None
    member: Annotated[Text | None, AfterValidator(_member)] = None
    deadline: Text | None = None
    unit: Literal["ms", "s"] = "ms"
    grace: Retention = timedelta(0)
    active: dict[str, Values] = {}
    ended: dict[str, str] = {}
    over: dict[str, Values] = {}
    retention: Retention = timedelta(days=7)
    tenant: Text | None = None
    give_back: Annotated[list[Text | list[str]], _each(parse_command)] = []
    event: Annotated[list[Text], AfterValidator(_event)] = []
    each: Text | None = None
    script: ScriptText = None
    fields: list[Text] | None = None
    commands: Annotated[list[Text] | None, _each(check_name)] = None
    writes: list[Text] | None = None
    reads: list[Text] | None = None
    channels: list[Text] = []
    max_writes: int = Checked(default=MAX_WRITES, ge=1, le=MAX_EACH)
    max_wait: PositiveDuration = timedelta(hours=1)
    unless: str | list[str] | dict[str, str] | None = None
    unless_recheck: PositiveDuration = timedelta(seconds=30)
    unless_max: PositiveRetention | None = None
    protected: Literal["quarantine", "expire"] = "quarantine"
    sums: list[SumSettings] = []

    @field_validator("unless")
    @classmethod
    def _question_has_its_form(cls, unless: Any) -> Any:
        if unless is not None and not isinstance(unless, dict):
            parse_unless(unless)
        return unless

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problem := next(_problems(self), None):
            raise ValueError(problem)
        return self

    @cached_property
    def key_parts(self) -> tuple[str, str]:
        """The text before and after the id in the name of an entry's key; empty if the member is the entry."""
        if self.key is None:
            return "", ""
        word = parse_word(self.key)
        place = word.index(Field(ID))
        return "".join(map(str, word[:place])), "".join(map(str, word[place + 1 :]))

    @property
    def entry_patterns(self) -> list[str]:
        """The name of every entry's key, with `*` for the id; none if the member is the entry."""
        return [] if self.key is None else ["*".join(self.key_parts)]

    @property
    def parts(self) -> Word:
        """The parts of a member and the text between them."""
        return parse_word(self.member or "")

    def is_of_element(self, field: Field) -> bool:
        """Whether the field belongs to an element of `each`."""
        return self.each is not None and field.name.startswith(f"{self.each}.")

    def repeats(self, command: Command) -> bool:
        """Whether the command is repeated for each element of `each`."""
        return any(map(self.is_of_element, command.fields))

    @property
    def unit_ms(self) -> int:
        return UNITS[self.unit]

    @property
    def event_fields(self) -> list[Field]:
        """The fields of `event`."""
        return list(map(parse_field, self.event))

    @property
    def named(self) -> list[str]:
        """The fields of an entry that the settings name, without those of its elements."""
        fields = [
            *self.event_fields,
            *fields_of(self.unless_key or ()),
            *(f for each in self.given_back for f in each.fields),
        ]
        plain = [*self.active, *self.ended, *self.over, *self.unless_values, *(self.fields or [])]
        plain += [name for name in (self.deadline, self.tenant, self.each) if name is not None]
        return [*plain, *(field.name for field in fields if not self.is_of_element(field))]

    @property
    def given_back(self) -> list[Command]:
        """The writes of `give_back`."""
        return [parse_command(template) for template in self.give_back]

    @property
    def write_patterns(self) -> list[str]:
        """The keys that may be written."""
        if self.writes is not None:
            return self.writes
        return list(dict.fromkeys(command.pattern for command in self.given_back if command.name != "PUBLISH"))

    @property
    def read_patterns(self) -> list[str]:
        """The keys that a script may read, and the key of `unless`."""
        asked = [] if self.unless_key is None else [pattern_of(self.unless_key)]
        return list(dict.fromkeys([*(self.write_patterns if self.reads is None else self.reads), *asked]))

    @property
    def unless_key(self) -> Word | None:
        """The key whose existence protects an entry; None if `unless` names no key."""
        return None if self.unless is None or isinstance(self.unless, dict) else parse_unless(self.unless)

    @property
    def unless_values(self) -> dict[str, str]:
        """The values that protect an entry if all these fields of the hash have them; may be empty."""
        return self.unless if isinstance(self.unless, dict) else {}

    @property
    def unless_recheck_ms(self) -> int:
        return milliseconds(self.unless_recheck)

    @property
    def unless_max_ms(self) -> int | None:
        """How long after deadline and grace an entry may be protected, ms; None for forever."""
        return None if self.unless_max is None else milliseconds(self.unless_max)

    @property
    def grace_ms(self) -> int:
        return milliseconds(self.grace)

    @property
    def retention_ms(self) -> int:
        """How long an expired hash stays readable, ms; 0 to delete it at once."""
        return 0 if self.entry == "member" else milliseconds(self.retention)

    @property
    def max_wait_ms(self) -> int:
        return milliseconds(self.max_wait)


def _problems(kind: KindSettings) -> Iterator[str]:
    """Settings that contradict each other, most important first."""
    yield from _form_problems(kind)
    yield from _script_problems(kind) if kind.script is not None else _declared_problems(kind)
    named: dict[str, Iterable[str]] = {"deadline": [kind.deadline or ""], "unless": kind.unless_values}
    named |= {"ended": kind.ended, "over": kind.over, "active": kind.active}
    for key, fields in named.items():
        if own := OWN_FIELDS.intersection(fields):
            yield f"{key}: {min(own)} is set by sweeperd itself"
    if kind.deadline in kind.ended:
        yield "ended: it must not change the deadline"
    yield from _unless_problems(kind)
    if any(may_overlap(pattern, f"{OWN_KEYS}*") for pattern in [kind.index, *kind.entry_patterns]):
        yield f"index and key: {OWN_KEYS}* is sweeperd's own"


def _unless_problems(kind: KindSettings) -> Iterator[str]:
    if kind.unless is None:
        for key in sorted({"unless_recheck", "unless_max", "protected"} & kind.model_fields_set):
            yield f"{key}: belongs to `unless`"
        return
    if kind.protected == "expire" and kind.unless_max is None:
        yield 'protected: "expire" needs unless_max'
    if kind.unless == {}:
        yield "unless: names no field"
    own_key = kind.unless_key is not None and pattern_of(kind.unless_key) in kind.entry_patterns
    values = kind.unless_values
    if own_key or (values and all(kind.active.get(name) == [value] for name, value in values.items())):
        yield "unless: every active entry would be protected"


def _form_problems(kind: KindSettings) -> Iterator[str]:
    """What does not go with `entry` or `each`."""
    if kind.entry == "member":
        refused = {"key", "active", "ended", "over", "retention", "each", "sums"}
        if kind.member is None:
            yield "member: must name the parts of a member, such as {type}|{slot}"
        names = {part.name for part in fields_of(kind.parts)}
        if unknown := [name for name in kind.named if bare(name) not in names and not (kind.script and name in names)]:
            yield f"{unknown[0]} is not a part of member"
    else:
        refused = {"member"} | ({"ended", "sums"} if kind.entry == "json" else set())
        if kind.key is None:
            yield "key: must name the key of an entry, such as seats:hold:{id}"
        if kind.entry == "json" and kind.retention:
            yield 'retention: must be "0s": a string that stayed would look alive, and give back again'
    for key in sorted(refused & kind.model_fields_set):
        yield f'{key}: does not go with entry = "{kind.entry}"'
    if kind.each is None and kind.max_writes > MAX_WRITES:
        yield f"max_writes: more than {MAX_WRITES} need `each`"
    if kind.each is not None:
        if kind.script is not None or not any(map(kind.repeats, kind.given_back)):
            yield f"each: no template of give_back names a field of an element, such as {{{kind.each}.sku}}"
        if any(map(kind.is_of_element, [*kind.event_fields, *fields_of(kind.unless_key or ())])):
            yield f"each: only give_back may name a field of an element of {kind.each}"
        if kind.entry == "json" and kind.each in kind.event:
            yield f"event: {kind.each} is an array; name fields that are texts or numbers"


def _script_problems(kind: KindSettings) -> Iterator[str]:
    for key, given in (("active", kind.active), ("give_back", kind.give_back), ("event", kind.event)):
        if given:
            yield f"{key}: belongs to a kind without a script; the script decides it"
    if "PUBLISH" in (kind.commands or []) and not kind.channels:
        yield "commands: PUBLISH: name its channel in channels"
    if kind.writes is None:
        yield "writes: a kind with a script must name the keys that it may write"
    if not kind.ended and kind.retention_ms:
        yield "ended: a kind with a script must name a field that marks an ended entry, or it would expire again"
    if kind.fields is not None and len(kind.fields) > MAX_FIELDS:
        yield f"fields: more than {MAX_FIELDS}"


def _declared_problems(kind: KindSettings) -> Iterator[str]:
    for key, given in (("fields", kind.fields), ("reads", kind.reads), ("commands", kind.commands)):
        if given is not None:
            yield f"{key}: belongs to a kind with a script"
    if kind.retention_ms and all(kind.ended.get(field, values[0]) in values for field, values in kind.active.items()):
        yield (
            "ended: must give a field of active another value, or an expired entry would still be active "
            'and expire again (or set retention = "0s")'
        )
    for field, values in kind.over.items() if kind.entry != "member" else ():
        if field not in kind.active:
            yield f"over: {field} is not a field of active, so it cannot mark an end"
        elif both := [value for value in values if value in kind.active[field]]:
            yield f"over: {field} = {both[0]!r} is active"
    if len(kind.give_back) > kind.max_writes:
        yield f"give_back: more than max_writes = {kind.max_writes} commands"
    for command in kind.given_back:
        if refusal := _refusal(kind, command):
            yield f"give_back: {command.pattern} {refusal}"


def _refusal(kind: KindSettings, command: Command) -> str:
    """Why the command can never be allowed; empty if it may be."""
    literal = all(isinstance(part, str) for part in command.key)
    if command.name == "PUBLISH":
        return "" if kind.channels else "is a channel: name it in channels"
    if isinstance(command.key[0], str) and command.key[0].startswith(OWN_KEYS):
        return "is sweeperd's own"
    if literal and kind.writes is not None and not any_match(kind.writes, command.pattern):
        return "matches no pattern of writes"
    return "is the index" if literal and command.pattern == kind.index else ""


def any_match(patterns: Sequence[str], key: str) -> bool:
    """Whether the key matches a pattern. In a pattern only `*` is special."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), key, re.DOTALL) for pattern in patterns)


def may_overlap(one: str, other: str) -> bool:
    """Whether a key may match both patterns, by the text before their first `*`."""
    first, second = one.partition("*")[0], other.partition("*")[0]
    return first.startswith(second) or second.startswith(first)


def check_kinds(kinds: Sequence[KindSettings], reservations: bool) -> None:
    """Raises ValueError if two kinds, or a kind and reservations, conflict."""
    names: set[str] = set()
    indexes = {"reservation:ttl": "reservations"} if reservations else {}
    keys: dict[tuple[str, str], str] = {}
    for kind in kinds:
        if kind.name in names:
            raise ValueError(f"kinds: two are named {kind.name}")
        names.add(kind.name)
        if (other := indexes.setdefault(kind.index, kind.name)) != kind.name:
            raise ValueError(f"kinds: {kind.name}: the index {kind.index} is that of {other}")
        if kind.key is not None and (other := keys.setdefault(kind.key_parts, kind.name)) != kind.name:
            raise ValueError(f"kinds: {kind.name} and {other} have the same key")
        for stem in RESERVATION_KEYS if reservations else ():
            if any(may_overlap(pattern, f"{stem}*") for pattern in kind.entry_patterns):
                raise ValueError(f"kinds: {kind.name}: {stem}* belongs to reservations (reservations.enabled)")
        for pattern in kind.write_patterns if reservations else ():
            if pattern.startswith(RESERVATION_KEYS):
                raise ValueError(f"kinds: {kind.name}: {pattern} belongs to reservations (reservations.enabled)")
