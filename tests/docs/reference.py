"""The pages of docs/reference that are made from the code: settings, the ledger's Python API, JSON documents."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import click

from sweeperd import ledger
from sweeperd.document import Document

MADE = "This page is made from the code by `python -m tests.docs.generate`."
#: The settings that every installation decides.
DECIDE_FIRST = ("redis.url", "keys.prefix", "sweep.grace", "sweep.audit_retention", "webhooks.endpoints")


# ---- settings


def settings_page(schema: Mapping[str, Any], keys: Iterator[tuple[str, str]]) -> str:
    """A table for each table of the settings file; `keys`: each key with its text."""
    tables: dict[str, list[str]] = {}
    for key, text in keys:
        table, _, name = key.rpartition(".")
        found = _setting(schema, key)
        default = found.get("default", "")
        written = "" if default == "" else f"`{_toml(default)}`"
        tables.setdefault(table, []).append(f"| `{name}` | {_type(found)} | {written} | {_cell(text)} |\n")
    sections = "".join(
        f"## {f'`[[{table[:-2]}]]`' if table.endswith('[]') else f'`[{table}]`' if table else 'Top level'}\n\n"
        "| key | type | default | what it is, and when to change it |\n|---|---|---|---|\n" + "".join(rows) + "\n"
        for table, rows in tables.items()
    )
    return (
        "# Settings\n\n*For operators who write `config.toml`.*\n\n"
        f"{MADE} [`config.example.toml`](../../config.example.toml) has the same settings as a file to copy from, and "
        "[the JSON schema](../schemas/config.schema.json) is for editors. [Configuration](configuration.md) says where "
        "settings come from, and how to write secrets and addresses.\n\n"
        "Most installations decide only these: " + ", ".join(f"`{key}`" for key in DECIDE_FIRST) + ".\n\n"
        f"{sections}Next: [configuration](configuration.md).\n"
    )


def _setting(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    *tables, name = key.split(".")
    place: Mapping[str, Any] = schema
    for table in tables:
        found = place["properties"][table.removesuffix("[]")]
        place = schema["$defs"][found.get("items", found)["$ref"].rpartition("/")[2]]
    setting: Mapping[str, Any] = place["properties"][name]
    return setting


def _type(found: Mapping[str, Any]) -> str:
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(_type(each) for each in found["anyOf"]))
    if "pattern" in found and "ms|s|m|h|d" in found["pattern"]:
        return "duration"
    kind = found.get("type", "table")
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return "list" if kind == "array" else "table" if kind == "object" else words.get(kind, str(kind))


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {_toml(each)}' for name, each in value.items())}}}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    """Without what ends a cell; `<` begins no tag, and needs no escape between backticks."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


# ---- the ledger

#: The calls of a Ledger, in the order of a reservation's life.
CALLS = (
    "from_url", "open_budget", "reserve", "extend", "commit", "release", "settle", "event", "budget", "get", "close",
)  # fmt: skip


def ledger_page() -> str:
    classes = [getattr(ledger, name) for name in ledger.__all__]
    refusals = [each for each in classes if inspect.isclass(each) and issubclass(each, ledger.LedgerError)]
    answers = [each for each in classes if dataclasses.is_dataclass(each)]
    return (
        "# The ledger's Python API\n\n*For developers who call `sweeperd.ledger`.*\n\n"
        f"{MADE} [The reference ledger](ledger.md) says what the operations mean.\n\n## Ledger\n\n"
        f"{_doc(ledger.Ledger)}\n\n" + "".join(map(_call, CALLS)) + f"## AsyncLedger\n\n{_doc(ledger.AsyncLedger)}\n\n"
        "## Answers\n\n" + "".join(map(_answer, answers)) + "## Refusals\n\n"
        f"{_doc(ledger.LedgerError)}\n\n| exception | when |\n|---|---|\n"
        + "".join(
            f"| `{each.__name__}` | {_cell(_doc(each))} |\n" for each in refusals if each is not ledger.LedgerError
        )
        + "\nNext: [the reference ledger](ledger.md).\n"
    )


def _doc(what: object) -> str:
    return inspect.getdoc(what) or ""


def _call(name: str) -> str:
    method = getattr(ledger.Ledger, name)
    parameters = [str(_shown(each)) for each in inspect.signature(method).parameters.values() if each.name != "self"]
    star = [
        place
        for place, each in enumerate(inspect.signature(method).parameters.values())
        if each.kind is each.KEYWORD_ONLY
    ]
    if star:
        parameters.insert(star[0] - (name != "from_url"), "*")
    returns = _named(inspect.signature(method).return_annotation)
    lines = ",\n    ".join(parameters)
    signature = f"{name}(\n    {lines},\n) -> {returns}" if parameters else f"{name}() -> {returns}"
    return f"### {name}\n\n```python\n{signature}\n```\n\n{_doc(method)}\n\n"


def _shown(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_named(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    return f"{text} = {str(default) if hasattr(default, 'name') else repr(default).replace('datetime.', '')}"


def _named(annotation: object) -> str:
    if annotation is None:
        return "None"
    text = annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)
    text = text.replace("str | bytes", "Name")
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def _answer(answer: Any) -> str:
    comments = _comments(answer)
    rows = (
        f"| `{each.name}` | `{_named(each.type)}` | {_cell(comments.get(each.name, ''))} |\n"
        for each in dataclasses.fields(answer)
    )
    return (
        f"### {answer.__name__}\n\n{_doc(answer)}\n\n| field | type | |\n|---|---|---|\n"
        + "".join(rows).replace(" | None", " \\| None")
        + "\n"
    )


def _comments(answer: Any) -> dict[str, str]:
    """Field -> the `#:` comment above it."""
    found, comment = dict[str, str](), list[str]()
    for line in inspect.getsource(answer).splitlines():
        if text := re.fullmatch(r" +#: (.*)", line):
            comment.append(text[1])
        elif field := re.match(r"    (\w+): ", line):
            found[field[1]], comment = " ".join(comment), []
    return found


# ---- JSON documents and exit codes


def json_page(commands: Iterator[click.Context], documents: Mapping[str, type[Document]]) -> str:
    titles = {str(model.model_config.get("title", "")): name for name, model in documents.items()}
    rows = []
    for context in commands:
        group = context.command if isinstance(context.command, click.Group) else None
        if group and context.parent and not group.invoke_without_command:
            continue
        path = context.command_path
        schemas = [name for title, name in titles.items() if any(_is_of(part, path) for part in title.split(", "))]
        links = ", ".join(f"[{name}](../schemas/{name}.schema.json)" for name in schemas)
        if not links and any("--json" in parameter.opts for parameter in context.command.params):
            links = "no schema"
        rows.append(f"| `{path}` | {links} | {_exit_codes(context.command)} |\n")
    return (
        "# JSON documents and exit codes\n\n*For programs that run sweeperd's commands.*\n\n"
        f"{MADE} With `--json` a command prints one document on standard output, or nothing if what it is about cannot "
        "be found or reached. A time is RFC 3339, a value from a hash stands as it is stored, and fields may be "
        "added in later versions. Warnings and errors are on standard error. `down` names the shards that could not be "
        "read.\n\n"
        "Every command exits with 0 if it is done, 1 if it failed or a shard is unreachable, and 2 for a bad option, "
        "name or configuration. The table has what differs. If the second cell is empty, the command has no "
        "`--json`.\n\n"
        "| command | schema of `--json` | exit codes |\n|---|---|---|\n" + "".join(rows) + "\n"
        "The body of a webhook is [webhook](../schemas/webhook.schema.json), and the whole request "
        "[openapi.json](../openapi.json).\n\nNext: [commands](cli.md).\n"
    )


def _is_of(title: str, path: str) -> bool:
    """Whether `sweeperd dead-letters drop --json` is of this command; `sweeperd --once --json` is of sweeperd."""
    words = [
        word for word in title.replace("One line of ", "").split() if not word.startswith("-") and not word.isupper()
    ]
    return " ".join(words) == path


def _exit_codes(command: click.Command) -> str:
    text = " ".join((command.help or "").split())
    found = re.search(r"Exit codes?:? ([^.]*)\.", text)
    return _cell(found[1]) if found else ""


# ---- events


def events_page(body: type[Document], kind: type[Document], events: Mapping[str, tuple[str, type[Document]]]) -> str:
    """The fields of every event, from the models of the schemas."""
    types: dict[type[Document], list[str]] = {}
    for event_type, (_, model) in events.items():
        types.setdefault(model, []).append(event_type)
    sections = "".join(
        f"## {', '.join(f'`{name}`' for name in names)}\n\n{_paragraph(model)}\n\n{_fields(model)}{_nested(model)}"
        for model, names in [*types.items(), (kind, ["<kind>.expired"])]
    )
    return (
        "# Events\n\n*For developers of receivers who need a field.*\n\n"
        f"{MADE} The [JSON schema](../schemas/webhook.schema.json) and the [OpenAPI document](../openapi.json) "
        "say the same to programs. A field whose value is unknown is left out, and no field is null. Bytes that are "
        "not UTF-8 are shown escaped (`\\xff`).\n\n"
        "Only `reservation.expired` and the events of kinds go to every endpoint. All others go to the endpoints that "
        "name their type in `events`, and are not relayed to Cycles.\n\n"
        f"## The body\n\n{_paragraph(body)}\n\n{_fields(body)}{sections}Next: [webhooks](webhooks.md).\n"
    )


def _paragraph(model: type[Document]) -> str:
    return " ".join(_doc(model).split())


def _fields(model: type[Document]) -> str:
    schema = model.model_json_schema(mode="serialization")
    rows = (
        f"| `{name}` | {_json_type(schema['properties'][name])} | {_cell(field.description or '')} |\n"
        for name, field in model.model_fields.items()
    )
    return "| field | type | meaning |\n|---|---|---|\n" + "".join(rows) + "\n"


def _nested(model: type[Document]) -> str:
    """The objects in the model's lists."""
    for name, field in model.model_fields.items():
        for inner in typing.get_args(field.annotation):
            if inspect.isclass(inner) and issubclass(inner, Document):
                return f"Each of `{name}`:\n\n{_fields(inner)}"
    return ""


def _json_type(found: Mapping[str, Any]) -> str:
    if "anyOf" in found:
        return _json_type(next(each for each in found["anyOf"] if each != {"type": "null"}))
    if "const" in found:
        return f"`{found['const']}`" if found["const"] else "empty list"
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if found.get("format") == "date-time":
        return "RFC 3339"
    return "object" if "$ref" in found else str(found.get("type", "object"))
