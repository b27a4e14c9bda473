"""Parses the templates of `give_back` and `unless` into commands, words and amounts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: The most words of one command, and bytes of one key.
MAX_WORDS, MAX_KEY = 128, 1024
#: 100 years, ms: the longest time of PEXPIRE and PX.
MAX_TTL_MS = 3_155_760_000_000
#: The placeholder of the entry's id. Every other placeholder is a field of the hash.
ID = "id"

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}")
#: A field's name, in quotes or plain, and its default.
_FIELD = re.compile(r'(?:"(?P<quoted>[^"]+)"|(?P<plain>[^":]+))(?::(?P<default>0|[1-9]\d{0,18}))?')

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


class Field(NamedTuple):
    """A placeholder: the value of this field of the entry, or the entry's id."""

    name: str
    #: What a missing or empty field counts as; None if it must be present.
    default: str | None = None


#: One word of a template: literal text and placeholders in order.
Word = tuple[str | Field, ...]


@dataclass(frozen=True)
class Amount:
    """A number: `literal`, or the value of `field`, negated if `negative`."""

    literal: str = "0"
    field: Field | None = None
    negative: bool = False

    @property
    def given(self) -> int:
        """The number in the template: the literal, or the default of the field; 1 without a default."""
        return int(self.literal if self.field is None else self.field.default or 1)


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
    def fields(self) -> tuple[Field, ...]:
        """The fields of the entry that the command takes, without duplicates."""
        found = fields_of(self.key, *self.words)
        return tuple(dict.fromkeys([*found, *([self.amount.field] if self.amount and self.amount.field else [])]))

    @property
    def pattern(self) -> str:
        return pattern_of(self.key)


def pattern_of(key: Word) -> str:
    """The key with each placeholder replaced by `*`."""
    return "".join("*" if isinstance(part, Field) else part for part in key)


def fields_of(*words: Word) -> list[Field]:
    """The placeholders of these words, except the entry's id."""
    return [part for word in words for part in word if isinstance(part, Field) and part.name != ID]


def bare(name: str) -> str:
    """The name without the quotes that parse_field leaves."""
    return name.strip('"')


def parse_field(text: str) -> Field:
    """A field: `name`, `name:0` with a default, or `"name"`, literally (kept quoted with a dot). Raises ValueError."""
    found = _FIELD.fullmatch(text)
    if found is None or int(found["default"] or 0) > INT64_MAX:
        raise ValueError(
            f"{text!r}: after a colon comes the default of a missing field, a whole number up to 2^63-1; put another "
            'name in quotes: {"a:b"}'
        )
    quoted, plain = found["quoted"], found["plain"]
    if (plain or quoted) == ID and found["default"]:
        raise ValueError(f"{text!r}: {{id}} has no default, because every entry has an id")
    return Field(plain or (f'"{quoted}"' if "." in quoted else quoted), found["default"])


def parse_word(text: str) -> Word:
    """Raises ValueError if a brace has no partner."""
    parts: list[str | Field] = [""]

    def literal(more: str) -> None:
        if isinstance(parts[-1], str):
            parts[-1] += more
        else:
            parts.append(more)

    place = 0
    for found in _PART.finditer(text):
        literal(text[place : found.start()])
        place = found.end()
        if found[0] in ("{{", "}}"):
            literal(found[0][0])
        elif found[1]:
            parts.append(parse_field(found[1]))
        else:
            raise ValueError(f"{text!r}: write a brace as {{{{ or }}}}, and name the placeholder: {{field}}")
    literal(text[place:])
    return tuple(part for part in parts if part != "")


def parse_command(template: str | Sequence[str]) -> Command:
    """Raises ValueError with what is wrong, and suggests a similar name."""
    words = _words(template)
    try:
        return _command(words)
    except ValueError as error:
        shown = template if isinstance(template, str) else " ".join(words)
        raise ValueError(f"{shown!r}: {error}") from None


def parse_unless(template: str | Sequence[str]) -> Word:
    """The key of `EXISTS key`. Raises ValueError."""
    words = _words(template)
    if len(words) != 2 or words[0] != "EXISTS" or not words[1]:
        raise ValueError('the form is "EXISTS key", or fields of the hash with their values: { paid = "yes" }')
    if words[1].startswith("{") and not words[1].startswith("{{"):
        raise ValueError('the key must begin with literal text, such as "EXISTS jobs:{id}"')
    return parse_word(words[1])


def _words(template: str | Sequence[str]) -> list[str]:
    return template.split() if isinstance(template, str) else list(template)


def check_name(name: str) -> None:
    """Raises ValueError if a plan cannot use this command, and suggests a similar one."""
    if name not in FORMS:
        close = f"; did you mean {name.upper()}?" if name.upper() in FORMS else f", only {' '.join(FORMS)}"
        raise ValueError(f"{name} is not a command that a kind may use{close}")


def _command(words: Sequence[str]) -> Command:
    if not words:
        raise ValueError("there is no command")
    name, rest = words[0], words[1:]
    check_name(name)
    if len(words) > MAX_WORDS:
        raise ValueError(f"more than {MAX_WORDS} words")
    key = parse_word(rest[0]) if rest else ()
    if len("".join(part for part in key if isinstance(part, str)).encode()) > MAX_KEY:
        raise ValueError(f"the key has more than {MAX_KEY} bytes")
    command = _arguments(name, key, rest[1:]) if key else None
    if command is None:
        raise ValueError(f"the form is: {name} {FORMS[name]}")
    return command


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
        case (Field(name) as field,) if name != ID:
            return Amount(field=field)
        case ("-", Field(name) as field) if name != ID:
            return Amount(field=field, negative=True)
        case (str(literal),) if _is_int64(literal):
            return Amount("0" if literal == "-0" else literal)
        case _:
            raise ValueError(f"{text} is not an amount: a whole number, {{field}} or -{{field}}")


def _is_int64(text: str) -> bool:
    return bool(_WHOLE.fullmatch(text)) and INT64_MIN <= int(text) <= INT64_MAX


def _score(text: str) -> Amount:
    amount = _amount(text)
    if abs(amount.given) > 2**53:
        raise ValueError(f"{text} is not a score: a whole number up to 2^53, {{field}} or -{{field}}")
    return amount


def _time(text: str) -> Amount:
    amount = _amount(text)
    if amount.negative or not 1 <= amount.given <= MAX_TTL_MS:
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
