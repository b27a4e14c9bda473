"""Defines the settings of configured kinds, and parses the commands of `give_back`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, ValidationInfo, field_validator, model_validator
from pydantic import Field as Checked

from sweeperd.config.types import PositiveDuration, PositiveRetention, Retention, Section, milliseconds

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: The most words of one command, and bytes of one key.
MAX_WORDS, MAX_KEY = 128, 1024
#: 100 years, ms: the longest time of PEXPIRE and PX.
MAX_TTL_MS = 3_155_760_000_000
#: The placeholder of the entry's id. Every other placeholder is a field of the hash.
ID = "id"

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}")
#: Names that could be mistaken for sweeperd's own.
RESERVED_NAMES = {"reservation", "reservations", "system", "webhook", "sweeperd"}
#: The fields of the event's data that sweeperd sets.
OWN_DATA = {"id", "expires_at", "expired_at", "missing"}
#: The fields of the hash that sweeperd sets.
OWN_FIELDS = {"expired_at", "dismissed_at", "quarantined_at", "quarantine_reason", "quarantine_detail"}
#: The prefixes of sweeperd's keys, and of reservations' keys if they are swept.
OWN_KEYS = "sweeperd:"
RESERVATION_KEYS = ("reservation:", "budget:")
MAX_WRITES = 64
#: The most fields of the hash that a script may read, and the largest script file in bytes.
MAX_FIELDS, MAX_SCRIPT = 256, 65_536


class Field(NamedTuple):
    """A placeholder: the value of this field of the hash, or the entry's id."""

    name: str


#: One word of a template: literal text and placeholders in order.
Word = tuple[str | Field, ...]


@dataclass(frozen=True)
class Amount:
    """A number: `literal`, or the value of `field`, negated if `negative`."""

    literal: str = "0"
    field: str | None = None
    negative: bool = False


@dataclass(frozen=True)
class Command:
    """One write. The key has no prefix; for PUBLISH it is the channel."""

    name: str
    key: Word
    words: tuple[Word, ...] = ()
    #: The amount added by HINCRBY and INCRBY, the score of ZADD, the time of PEXPIRE and PX.
    amount: Amount | None = None
    #: The least value that HINCRBY and INCRBY may leave.
    minimum: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the hash that the command needs, without duplicates."""
        parts = [part for word in (self.key, *self.words) for part in word]
        names = [part.name for part in parts if isinstance(part, Field)]
        names += [self.amount.field] if self.amount and self.amount.field else []
        return tuple(dict.fromkeys(name for name in names if name != ID))

    @property
    def pattern(self) -> str:
        """The key with each placeholder replaced by `*`."""
        return pattern_of(self.key)


def pattern_of(key: Word) -> str:
    """The key with each placeholder replaced by `*`."""
    return "".join("*" if isinstance(part, Field) else part for part in key)


def parse_word(text: str) -> Word:
    """Raises ValueError if a brace has no partner."""
    parts: list[str | Field] = []
    place = 0
    for found in _PART.finditer(text):
        parts.append(text[place : found.start()])
        place = found.end()
        if found[0] in ("{{", "}}"):
            parts.append(found[0][0])
        elif found[1]:
            parts.append(Field(found[1]))
        else:
            raise ValueError(f"{text!r}: write a brace as {{{{ or }}}}, and name the placeholder: {{field}}")
    parts.append(text[place:])
    return _joined(parts)


def parse_command(template: str | Sequence[str]) -> Command:
    """Raises ValueError with what is wrong, and suggests a similar name."""
    words = template.split() if isinstance(template, str) else list(template)
    shown = template if isinstance(template, str) else " ".join(template)
    try:
        return _command(words)
    except ValueError as error:
        raise ValueError(f"{shown!r}: {error}") from None


def parse_unless(template: str | Sequence[str]) -> Word:
    """The key of `EXISTS key`. Raises ValueError."""
    words = template.split() if isinstance(template, str) else list(template)
    if len(words) != 2 or words[0] != "EXISTS" or not words[1]:
        raise ValueError('the form is "EXISTS key", or fields of the hash with their values: { paid = "yes" }')
    if words[1].startswith("{") and not words[1].startswith("{{"):
        raise ValueError('the key must begin with literal text, such as "EXISTS jobs:{id}"')
    return parse_word(words[1])


def check_name(name: str) -> None:
    """Raises ValueError if a plan cannot use this command, and suggests a similar one."""
    if name not in FORMS:
        close = f"; did you mean {name.upper()}?" if name.upper() in FORMS else f", only {' '.join(FORMS)}"
        raise ValueError(f"{name} is not a command that a kind may use{close}")


def _joined(parts: Iterable[str | Field]) -> Word:
    """Joins adjacent texts and drops empty ones."""
    word: list[str | Field] = []
    for part in parts:
        if part == "":
            continue
        if word and isinstance(part, str) and isinstance(word[-1], str):
            word[-1] += part
        else:
            word.append(part)
    return tuple(word)


def _command(words: Sequence[str]) -> Command:
    if not words:
        raise ValueError("there is no command")
    name, rest = words[0], words[1:]
    check_name(name)
    if len(words) > MAX_WORDS:
        raise ValueError(f"more than {MAX_WORDS} words")
    if not rest or not rest[0]:
        raise ValueError(f"the form is: {name} {FORMS[name]}")
    key, rest = parse_word(rest[0]), rest[1:]
    if len("".join(part for part in key if isinstance(part, str)).encode()) > MAX_KEY:
        raise ValueError(f"the key has more than {MAX_KEY} bytes")
    command = _arguments(name, key, rest)
    if command is None:
        raise ValueError(f"the form is: {name} {FORMS[name]}")
    return command


#: Each command and the words after it.
FORMS = {
    "HSET": "key field value [field value ...]",
    "HDEL": "key field [field ...]",
    "HINCRBY": "key field amount [MIN n]",
    "INCRBY": "key amount [MIN n]",
    "SET": "key value [PX ms]",
    "DEL": "key",
    "ZADD": "key score member",
    "ZREM": "key member [member ...]",
    "SADD": "key member [member ...]",
    "SREM": "key member [member ...]",
    "LPUSH": "key value [value ...]",
    "RPUSH": "key value [value ...]",
    "PEXPIRE": "key ms",
    "PUBLISH": "channel message",
}


def _arguments(name: str, key: Word, rest: Sequence[str]) -> Command | None:
    """The command, or None if the words don't match its form. Raises ValueError."""
    match name, rest:
        case "DEL", []:
            return Command(name, key)
        case "HSET", [_, _, *_] if len(rest) % 2 == 0:
            return Command(name, key, tuple(map(parse_word, rest)))
        case (("HDEL" | "ZREM" | "SADD" | "SREM" | "LPUSH" | "RPUSH"), [_, *_]):
            return Command(name, key, tuple(map(parse_word, rest)))
        case "PUBLISH", [message]:
            return Command(name, key, (parse_word(message),))
        case "HINCRBY", [field, amount, *least]:
            return Command(name, key, (parse_word(field),), _amount(amount), _least(least))
        case "INCRBY", [amount, *least]:
            return Command(name, key, (), _amount(amount), _least(least))
        case "SET", [value]:
            return Command(name, key, (parse_word(value),))
        case "SET", [value, "PX", ttl]:
            return Command(name, key, (parse_word(value),), _time(ttl))
        case "ZADD", [score, member]:
            return Command(name, key, (parse_word(member),), _score(score))
        case "PEXPIRE", [ttl]:
            return Command(name, key, (), _time(ttl))
        case _:
            return None


def _amount(text: str) -> Amount:
    word = parse_word(text)
    match word:
        case (Field(name),) if name != ID:
            return Amount(field=name)
        case ("-", Field(name)) if name != ID:
            return Amount(field=name, negative=True)
        case (str(literal),) if _is_int64(literal):
            return Amount("0" if literal == "-0" else literal)
        case _:
            raise ValueError(f"{text} is not an amount: a whole number, {{field}} or -{{field}}")


def _is_int64(text: str) -> bool:
    return bool(_WHOLE.fullmatch(text)) and INT64_MIN <= int(text) <= INT64_MAX


def _score(text: str) -> Amount:
    amount = _amount(text)
    if abs(int(amount.literal)) > 2**53:
        raise ValueError(f"{text} is not a score: a whole number up to 2^53, {{field}} or -{{field}}")
    return amount


def _time(text: str) -> Amount:
    amount = _amount(text)
    if amount.negative or (amount.field is None and not 1 <= int(amount.literal) <= MAX_TTL_MS):
        raise ValueError(f"{text} is not a time: milliseconds from 1 to {MAX_TTL_MS} (100 years)")
    return amount


def _least(words: Sequence[str]) -> str | None:
    match words:
        case []:
            return None
        case ["MIN", least] if _is_int64(least):
            return least
        case _:
            raise ValueError("only MIN and a whole number may follow the amount")


def _script_text(value: object, info: ValidationInfo) -> object:
    """Reads the file named by `file:PATH`, relative to the settings file."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith("file:"):
        raise ValueError('must name a Lua file: "file:PATH"')
    path = Path((info.context or {}).get("directory", "."), value.removeprefix("file:"))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path} cannot be read: {reason}") from None
    if len(text.encode()) > MAX_SCRIPT:
        raise ValueError(f"{path} is longer than {MAX_SCRIPT} bytes")
    return text


ScriptText = Annotated[str | None, BeforeValidator(_script_text)]
Name = Annotated[str, Checked(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Text = Annotated[str, Checked(min_length=1)]
#: One value of a field, or several.
Ends = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Checked(min_length=1)
]


class SumSettings(Section):
    """A field of a hash, and the field of the active entries whose sum it must equal."""

    key: Text
    field: Text
    of: Text


class KindSettings(Section):
    """One kind of entry to sweep."""

    name: Name
    index: Text
    key: Text
    deadline: Text
    grace: Retention = timedelta(0)
    active: dict[str, str] = {}
    ended: dict[str, str] = {}
    over: dict[str, Ends] = {}
    retention: Retention = timedelta(days=7)
    tenant: Text | None = None
    give_back: list[Text | list[str]] = []
    event: list[Text] = []
    script: ScriptText = None
    fields: list[Text] | None = None
    commands: list[Text] | None = None
    writes: list[Text] | None = None
    reads: list[Text] | None = None
    channels: list[Text] = []
    max_writes: int = Checked(default=MAX_WRITES, ge=1, le=MAX_WRITES)
    max_wait: PositiveDuration = timedelta(hours=1)
    unless: str | list[str] | dict[str, str] | None = None
    unless_recheck: PositiveDuration = timedelta(seconds=30)
    unless_max: PositiveRetention | None = None
    protected: Literal["quarantine", "expire"] = "quarantine"
    sums: list[SumSettings] = []

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if name in RESERVED_NAMES:
            raise ValueError(f"{name} is reserved by sweeperd itself")
        return name

    @field_validator("key")
    @classmethod
    def _key_names_the_entry(cls, key: str) -> str:
        word = parse_word(key)
        placeholders = [part.name for part in word if isinstance(part, Field)]
        if placeholders != [ID] or len(word) == 1:
            raise ValueError('must hold {id} once and no other placeholder, such as "seats:hold:{id}"')
        if word[0] == Field(ID):
            raise ValueError('must begin with literal text, such as "seats:hold:{id}", or an id could name any key')
        return key

    @field_validator("give_back")
    @classmethod
    def _commands_are_allowed(cls, give_back: list[str | list[str]]) -> list[str | list[str]]:
        for template in give_back:
            parse_command(template)
        return give_back

    @field_validator("unless")
    @classmethod
    def _question_has_its_form(
        cls, unless: str | list[str] | dict[str, str] | None
    ) -> str | list[str] | dict[str, str] | None:
        if unless is not None and not isinstance(unless, dict):
            parse_unless(unless)
        return unless

    @field_validator("commands")
    @classmethod
    def _commands_have_names(cls, commands: list[str] | None) -> list[str] | None:
        for name in commands or []:
            check_name(name)
        return commands

    @field_validator("event")
    @classmethod
    def _event_fields_are_free(cls, event: list[str]) -> list[str]:
        if own := OWN_DATA.intersection(event):
            raise ValueError(f"{min(own)} is set by sweeperd itself")
        if len(set(event)) != len(event) or len(event) > MAX_WRITES:
            raise ValueError(f"must name each field once, and up to {MAX_WRITES}")
        return event

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in _problems(self):
            raise ValueError(problem)
        return self

    @cached_property
    def entry(self) -> tuple[str, str]:
        """The text before and after the id in the name of a hash."""
        word = parse_word(self.key)
        place = word.index(Field(ID))
        return "".join(map(str, word[:place])), "".join(map(str, word[place + 1 :]))

    @property
    def entry_pattern(self) -> str:
        """The name of every hash, with `*` for the id."""
        return "*".join(self.entry)

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
        """How often a protected entry is checked again, ms."""
        return milliseconds(self.unless_recheck)

    @property
    def unless_max_ms(self) -> int | None:
        """The longest time after deadline and grace for which an entry is protected, ms; None for forever."""
        return None if self.unless_max is None else milliseconds(self.unless_max)

    @property
    def grace_ms(self) -> int:
        return milliseconds(self.grace)

    @property
    def retention_ms(self) -> int:
        """How long an expired hash stays readable, ms; 0 to delete it at once."""
        return milliseconds(self.retention)

    @property
    def max_wait_ms(self) -> int:
        """The longest wait that a script may ask for, ms."""
        return milliseconds(self.max_wait)


def _problems(kind: KindSettings) -> "list[str]":
    """Settings that contradict each other, most important first."""
    found = _script_problems(kind) if kind.script is not None else _declared_problems(kind)
    if own := OWN_FIELDS.intersection(kind.ended):
        found.append(f"ended: {min(own)} is set by sweeperd itself")
    if own := OWN_FIELDS.intersection(kind.over):
        found.append(f"over: {min(own)} is set by sweeperd itself")
    if kind.deadline in kind.ended:
        found.append("ended: it must not change the deadline")
    if kind.deadline in OWN_FIELDS:
        found.append(f"deadline: {kind.deadline} is set by sweeperd itself")
    found += _unless_problems(kind)
    if own := OWN_FIELDS.intersection(kind.active):
        found.append(f"active: {min(own)} is set by sweeperd itself")
    if kind.index.startswith(OWN_KEYS) or may_meet(kind.entry_pattern, f"{OWN_KEYS}*"):
        found.append(f"index and key: {OWN_KEYS}* is sweeperd's own")
    return found


def _unless_problems(kind: KindSettings) -> list[str]:
    if kind.unless is None:
        more = ("unless_recheck", "unless_max", "protected")
        return [f"{key}: belongs to `unless`" for key in more if key in kind.model_fields_set]
    found = []
    if kind.protected == "expire" and kind.unless_max is None:
        found.append('protected: "expire" needs unless_max')
    if kind.unless == {}:
        found.append("unless: names no field")
    if own := OWN_FIELDS.intersection(kind.unless_values):
        found.append(f"unless: {min(own)} is set by sweeperd itself")
    own_key = kind.unless_key is not None and pattern_of(kind.unless_key) == kind.entry_pattern
    if own_key or (kind.unless_values and kind.unless_values.items() <= kind.active.items()):
        found.append("unless: every active entry would be protected")
    return found


def _script_problems(kind: KindSettings) -> list[str]:
    found = [
        f"{key}: belongs to a kind without a script; the script decides it"
        for key, value in (("active", kind.active), ("give_back", kind.give_back), ("event", kind.event))
        if value
    ]
    if "PUBLISH" in (kind.commands or []) and not kind.channels:
        found.append("commands: PUBLISH: name its channel in channels")
    if kind.writes is None:
        found.append("writes: a kind with a script must name the keys that it may write")
    if not kind.ended and kind.retention:
        found.append(
            "ended: a kind with a script must name a field that marks an ended entry, or it would expire again"
        )
    if kind.fields is not None and len(kind.fields) > MAX_FIELDS:
        found.append(f"fields: more than {MAX_FIELDS}")
    return found


def _declared_problems(kind: KindSettings) -> list[str]:
    found = [
        f"{key}: belongs to a kind with a script"
        for key, given in (("fields", kind.fields), ("reads", kind.reads), ("commands", kind.commands))
        if given is not None
    ]
    differing = [field for field, value in kind.active.items() if kind.ended.get(field, value) != value]
    if not differing and kind.retention:
        found.append(
            "ended: must give a field of active another value, or an expired entry would still be active "
            'and expire again (or set retention = "0s")'
        )
    for field, values in kind.over.items():
        if field not in kind.active:
            found.append(f"over: {field} is not a field of active, so it cannot mark an end")
        elif kind.active[field] in values:
            found.append(f"over: {field} = {kind.active[field]!r} is active")
    if len(kind.give_back) > kind.max_writes:
        found.append(f"give_back: more than max_writes = {kind.max_writes} commands")
    for command in kind.given_back:
        problem = _refused_key(kind, command)
        if problem:
            found.append(f"give_back: {problem}")
    return found


def _refused_key(kind: KindSettings, command: Command) -> str:
    """Why the command can never be allowed; empty if it may be."""
    if command.name == "PUBLISH":
        if not kind.channels:
            return f"PUBLISH {command.pattern}: name its channel in channels"
        return ""
    start = command.key[0]
    if isinstance(start, str) and start.startswith(OWN_KEYS):
        return f"{command.pattern} is sweeperd's own"
    if kind.writes is not None and _is_literal(command.key) and not any_match(kind.writes, command.pattern):
        return f"{command.pattern} matches no pattern of writes"
    if _is_literal(command.key) and command.pattern == kind.index:
        return f"{command.pattern} is the index"
    return ""


def _is_literal(word: Word) -> bool:
    return all(isinstance(part, str) for part in word)


def any_match(patterns: Sequence[str], key: str) -> bool:
    """Whether the key matches a pattern. In a pattern only `*` is special."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), key, re.DOTALL) for pattern in patterns)


def may_meet(one: str, other: str) -> bool:
    """Whether a key may match both patterns, judged by the text before the first `*`."""
    first, second = one.partition("*")[0], other.partition("*")[0]
    return first.startswith(second) or second.startswith(first)


def check_kinds(kinds: Sequence[KindSettings], reservations: bool) -> None:
    """Raises ValueError if two kinds, or a kind and reservations, conflict."""
    names: set[str] = set()
    indexes = {"reservation:ttl": "reservations"} if reservations else {}
    for kind in kinds:
        if kind.name in names:
            raise ValueError(f"kinds: two are named {kind.name}")
        names.add(kind.name)
        other = indexes.setdefault(kind.index, kind.name)
        if other != kind.name:
            raise ValueError(f"kinds: {kind.name}: the index {kind.index} is that of {other}")
        own = [stem for stem in RESERVATION_KEYS if reservations and may_meet(kind.entry_pattern, f"{stem}*")]
        if own:
            raise ValueError(f"kinds: {kind.name}: {own[0]}* belongs to reservations (reservations.enabled)")
        for pattern in kind.write_patterns if reservations else []:
            if pattern.startswith(RESERVATION_KEYS):
                raise ValueError(f"kinds: {kind.name}: {pattern} belongs to reservations (reservations.enabled)")
    patterns = [(kind.name, kind.entry) for kind in kinds]
    for number, (name, entry) in enumerate(patterns):
        for other_name, other_entry in patterns[:number]:
            if entry == other_entry:
                raise ValueError(f"kinds: {name} and {other_name} have the same key")
