"""
The Lua of `give_back`: its templates, to be filled with the fields of an entry's hash.

A plan has two forms in the script of a kind. The full form gives a list of the commands to kind_plan.lua. The quick
form is for commands that are all HINCRBY: it checks the everyday case with as few steps as possible, and leaves every
other case to the full form.
"""

import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from sweeperd.config.kind_commands import ID, Amount, Command, Field, Word

#: The characters that stand for themselves in a Lua string.
_PLAIN = set(string.ascii_letters + string.digits + " !#$%&()*+,-./:;<=>?@[]^_`{|}~")
#: Below this, an addition in floating point is exact.
_SMALL = 10**15
#: The most keys of a quick plan. Each is compared with all before it.
_MAX_QUICK_KEYS = 8
#: The most bytes of a plan and its event.
_MAX_BYTES = 65_536


class Row(Protocol):
    """The fields of the hash, each as Lua."""

    def __getitem__(self, field: str) -> str: ...


def quoted(text: str) -> str:
    """A Lua string. All but plain ASCII letters, digits and a few signs are escaped."""
    characters = (chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03d}" for byte in text.encode())
    return f"'{''.join(characters)}'"


def needed_fields(commands: Sequence[Command]) -> list[str]:
    """The fields of the hash that the commands cannot do without."""
    return list(dict.fromkeys(field for command in commands for field in command.fields))


def field_checks(commands: Sequence[Command], row: Row) -> Iterator[str]:
    """Lua statements that raise where a field is missing, or an amount is none."""
    for field in needed_fields(commands):
        yield f"full_plan.field({row[field]}, {quoted(field)})"
    for field in _amount_fields(commands):
        yield f"full_plan.amount({row[field]})"


def command_list(commands: Sequence[Command], row: Row) -> str:
    """The Lua of a list of the commands. Its fields must have been checked."""
    return f"{{{', '.join(_command(command, row) for command in commands)}}}"


def _amount_fields(commands: Sequence[Command]) -> list[str]:
    return list(dict.fromkeys(c.amount.field for c in commands if c.amount and c.amount.field))


def _command(command: Command, row: Row) -> str:
    key, *rest = (_filled(word, row) for word in (command.key, *command.words))
    amount = [_amount(command.amount, row)] if command.amount else []
    least = ["'MIN'", quoted(command.minimum)] if command.minimum is not None else []
    match command.name:
        case "SET" if amount:
            rest = [*rest, "'PX'", *amount]
        case "HINCRBY" | "INCRBY":
            rest = [*rest, *amount, *least]
        case _:
            rest = [*amount, *rest]
    return f"{{{', '.join([quoted(command.name), key, *rest])}}}"


def _filled(word: Word, row: Row) -> str:
    def lua(part: str | Field) -> str:
        if isinstance(part, str):
            return quoted(part)
        return "ARGV[1]" if part.name == ID else row[part.name]

    return " .. ".join(map(lua, word)) or "''"


def _amount(amount: Amount, row: Row) -> str:
    if amount.field is None:
        return quoted(amount.literal)
    return f"'-' .. {row[amount.field]}" if amount.negative else row[amount.field]


# ---- the quick form


def has_quick_plan(commands: Sequence[Command]) -> bool:
    """Whether the commands add to fields that are named in full, each once, and their literal numbers are small."""
    uses = [(command.key, *command.words) for command in commands]
    return (
        bool(commands)
        and all(command.name == "HINCRBY" and _is_plain(command) for command in commands)
        and len(set(uses)) == len(uses)
        and len({command.key for command in commands}) <= _MAX_QUICK_KEYS
    )


def quick_plan(commands: Sequence[Command], row: Row, event_bytes: str) -> Iterator[str]:
    """The body of a Lua function that returns what the plan comes to (kind_plan.lua), or nil. `event_bytes`: Lua."""
    numbers = {field: f"amount_{number}" for number, field in enumerate(_amount_fields(commands))}
    for field, number in numbers.items():
        yield f"local {number} = quick_amount({row[field]})"
    texts = [f"({row[field]} or '') == ''" for field in needed_fields(commands) if field not in numbers]
    missing = [*(f"not {number}" for number in numbers.values()), *texts]
    if missing:
        yield f"if {' or '.join(missing)} then\n  return nil\nend"
    yield f"if {event_bytes} + {_bytes(commands, row)} > {_MAX_BYTES} then\n  return nil\nend"
    writes = []
    for place, key in enumerate(dict.fromkeys(command.key for command in commands)):
        together = [command for command in commands if command.key == key]
        yield from _quick_key(place, together, numbers, row)
        writes.append(_quick_write(place, together, row))
    yield f"return {{writes = {{{', '.join(writes)}}}}}"


def _is_plain(command: Command) -> bool:
    literals = [command.amount.literal if command.amount else "0", command.minimum or "0"]
    (field,) = command.words
    return all(abs(int(literal)) < _SMALL for literal in literals) and all(isinstance(part, str) for part in field)


def _quick_key(place: int, commands: Sequence[Command], numbers: Mapping[str, str], row: Row) -> Iterator[str]:
    """The sums of one key."""
    name, key, values = f"name_{place}", f"key_{place}", f"values_{place}"
    fields = ", ".join(_filled(command.words[0], row) for command in commands)
    yield f"local {name} = {_filled(commands[0].key, row)}\nlocal {key} = ARGV[2] .. {name}"
    if place:
        same = " or ".join(f"{name} == name_{before}" for before in range(place))
        yield f"if {same} then\n  return nil\nend"
    yield f"local {values} = quick_read({name}, {key}, writable, {fields})"
    for number, command in enumerate(commands, 1):
        amount = _number(command.amount, numbers) if command.amount else "0"
        yield f"{values}[{number}] = quick_sum({values}[{number}], {amount}, {command.minimum or 'nil'})"
    absent = " and ".join(f"{values}[{number}]" for number in range(1, len(commands) + 1))
    yield f"if not ({absent}) then\n  return nil\nend"


def _quick_write(place: int, commands: Sequence[Command], row: Row) -> str:
    pairs = (f"{_filled(c.words[0], row)}, values_{place}[{number}]" for number, c in enumerate(commands, 1))
    return f"{{'HSET', key_{place}, {', '.join(pairs)}}}"


def _number(amount: Amount, numbers: Mapping[str, str]) -> str:
    if amount.field is None:
        return amount.literal
    return f"{'-' if amount.negative else ''}{numbers[amount.field]}"


def _bytes(commands: Sequence[Command], row: Row) -> str:
    """Lua for the bytes of the commands' words, as kind_plan.lua counts them."""
    literal, fields = 0, Counter[str]()
    for command in commands:
        for part in _parts(command):
            if isinstance(part, str):
                literal += len(part.encode())
            else:
                fields[_filled((part,), row)] += 1
    return " + ".join([str(literal), *(f"{count} * #{value}" for value, count in fields.items())])


def _parts(command: Command) -> Iterator[str | Field]:
    """All that the words of a command consist of, but for its name."""
    for word in (command.key, *command.words):
        yield from word
    if command.amount:
        yield "-" if command.amount.negative else ""
        yield command.amount.literal if command.amount.field is None else Field(command.amount.field)
    if command.minimum is not None:
        yield from ("MIN", command.minimum)
