"""
`python -m tests.docs.generate` writes what is made from the code: pages of docs/reference, and the schemas of the JSON
documents in docs/schemas.
"""

import functools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from prometheus_client.metrics import MetricWrapperBase
from pydantic.json_schema import GenerateJsonSchema

from sweeperd.cli.app import main
from sweeperd.cli.config import ConfigDocument
from sweeperd.cli.dead_letters import DeadLettersChangeDocument, DeadLettersDocument
from sweeperd.cli.dry_run import DryRunDocument
from sweeperd.cli.ledger import LedgerDocument
from sweeperd.cli.listen import ListenDocument
from sweeperd.cli.replay import ReplaysDocument
from sweeperd.cli.uninstall import UninstallDocument
from sweeperd.config import Settings
from sweeperd.config.example import examples
from sweeperd.document import Document
from sweeperd.metrics import KeptCounter, LogLines, Metrics
from sweeperd.ops.acl import AclDocument
from sweeperd.ops.actions import ActionsDocument
from sweeperd.ops.check.findings import CheckDocument
from sweeperd.ops.endpoints import (
    AttemptsDocument,
    DropDocument,
    EndpointChangeDocument,
    EndpointsDocument,
    SkipDocument,
)
from sweeperd.ops.expired import ExpiredCountDocument
from sweeperd.ops.quarantine import AdoptDocument, QuarantineChangeDocument, QuarantineDocument
from sweeperd.ops.reconcile.indexing import IndexDocument
from sweeperd.ops.reconcile.report import ReconcileDocument, RepairBudgetDocument
from sweeperd.ops.search import ShowDocument
from sweeperd.ops.status import KindAcceptDocument
from sweeperd.ops.status_report import StatusDocument
from sweeperd.ops.trial import TrialDocument
from sweeperd.runtime.once import OnceDocument
from tests.docs import reference
from tests.docs.openapi import openapi
from tests.docs.webhook import EVENTS, Body, KindExpired
from tests.support.documents import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SCHEMAS = DOCS / "schemas"
OPENAPI = DOCS / "openapi.json"
EXAMPLE = ROOT / "config.example.toml"
#: The schema of the chart's values, whose `config` is made.
VALUES = ROOT / "deploy" / "helm" / "sweeperd" / "values.schema.json"
#: The width of the help texts.
WIDTH = 100


#: The generated pages of docs/reference.
PAGES = ("metrics", "cli", "settings", "ledger-api", "json", "events")


def made() -> list[Path]:
    """The paths of the generated pages."""
    schemas = [*DOCUMENTS, "webhook", "expired", "config"]
    return [
        *(REFERENCE / f"{name}.md" for name in PAGES),
        *(SCHEMAS / f"{name}.schema.json" for name in schemas),
        VALUES,
        OPENAPI,
    ]


@functools.cache
def pages() -> dict[Path, str]:
    """Each page that is made, and its text."""
    texts = (
        metrics_page(),
        cli_page(),
        reference.settings_page(json.loads(config_schema()), settings()),
        reference.ledger_page(),
        reference.json_page(commands(_root()), DOCUMENTS),
        reference.events_page(Body, KindExpired, EVENTS),
    )
    schemas = {name: schema_of(model) for name, model in DOCUMENTS.items()}
    schemas |= {"webhook": webhook_schema(), "expired": expired_schema(), "config": config_schema()}
    return {
        **{REFERENCE / f"{name}.md": text for name, text in zip(PAGES, texts, strict=True)},
        **{SCHEMAS / f"{name}.schema.json": text for name, text in schemas.items()},
        VALUES: values_schema(),
        OPENAPI: openapi(json.loads(webhook_schema()), EVENTS | {"<kind>.expired": ("", KindExpired)}, _parts),
    }


# ---- metrics


def metrics_page() -> str:
    rows = [f"| `{name}` | {kind} | {labels} | {text} |\n" for name, kind, labels, text in sorted(metrics())]
    return (
        "# Metrics\n\n*For operators who scrape, alert and graph.*\n\n"
        "Served at `/metrics` on the HTTP port ([endpoints](http.md#watching)), and written by `sweeperd --once "
        "--metrics-file FILE`. This page is made from the code by `python -m tests.docs.generate`.\n\n"
        "A metric without the label `shard` is the sum over shards, or the oldest of them. All series of a shard and "
        "of an endpoint exist from the start with the value 0, so that a rate sees the first event. The process's own "
        "metrics (`process_resident_memory_bytes`, `process_cpu_seconds_total` and others) are served too, but not "
        "written into a metrics file. Metrics that begin with `cycles_` exist only with "
        "[`cycles.enabled`](../how-to/cycles.md).\n\n"
        "| metric | type | labels | meaning |\n|---|---|---|---|\n" + "".join(rows) + "\n"
        "The alerts in [`sweeperd.rules.yaml`](../../deploy/prometheus/sweeperd.rules.yaml) use these metrics; the "
        "[runbook](../runbook.md) has a section for each alert.\n\nNext: [runbook](../runbook.md).\n"
    )


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Name, type, labels and help of each metric that a daemon can expose."""
    for collector in set(Metrics(cycles=True).registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            name = collector._name + ("_total" if collector._type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in collector._labelnames)
            yield name, str(collector._type), labels, collector._documentation.replace("|", "\\|")
        elif isinstance(collector, KeptCounter | LogLines):
            (family,) = collector.collect()
            labels = ", ".join(f"`{label}`" for label in collector.labels)
            yield f"{family.name}_total", "counter", labels, family.documentation


# ---- commands


def _root() -> click.Context:
    width: dict[str, Any] = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    return click.Context(main, info_name="sweeperd", **main.context_settings, **width)


def cli_page() -> str:
    sections = [_section(context) for context in commands(_root())]
    return (
        "# Commands\n\n*For operators at a terminal.*\n\n"
        "The help text of each command, made from the code by `python -m tests.docs.generate`. "
        "[How-tos](../README.md) explain what the commands are for.\n\n"
        "Output is a table with colours on a terminal, tab-separated lines elsewhere, and JSON with `--json` "
        "([schemas](../schemas); a time is RFC 3339, a value from a hash stands as it is stored). Each "
        "command names its Redis: in the first line of a table, in `address` of a JSON document, otherwise on "
        "standard error. A command that changes something asks first, or takes `--yes`. If one of several "
        "shards is down, the command says so, works on the others, and exits with 1. Control characters in "
        "tables are shown escaped (`\\x1b`).\n\n"
        + "\n".join(sections)
        + "\nNext: [what `status` and `check` say](status.md).\n"
    )


def commands(context: click.Context) -> Iterator[click.Context]:
    """The command of this context, then its subcommands, depth first."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from commands(click.Context(command, parent=context, info_name=name))


def _section(context: click.Context) -> str:
    level = "#" * min(len(context.command_path.split()) + 1, 4)
    help_text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
    return f"{level} {context.command_path}\n\n```text\n{help_text}\n```\n"


# ---- settings


def settings() -> Iterator[tuple[str, str]]:
    """Key and comment of each setting in config.example.toml."""
    for each in examples():
        yield each.place, " ".join(line.removeprefix("# ") for line in each.comment)


class _ConfigSchema(GenerateJsonSchema):
    """Without the titles and defaults of pydantic."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])


def config_schema() -> str:
    """The schema of the settings file: types of the models, texts and defaults of the example."""
    schema = _without_null(Settings.model_json_schema(schema_generator=_ConfigSchema))
    definitions = schema.pop("$defs")
    for part in definitions.values():
        part.pop("title"), part.pop("description", None)
    defaults = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    for key, text in settings():
        *tables, name = key.split(".")
        place, default = schema, defaults
        for table in tables:
            found = place["properties"][table.removesuffix("[]")]
            place = definitions[found.get("items", found)["$ref"].rpartition("/")[2]]
            default = default.get(table, {})
        place["properties"][name] |= {"description": text} | ({"default": default[name]} if name in default else {})
    return _written(schema | {"title": "The settings of sweeperd", "description": "TOML."}, definitions)


def values_schema() -> str:
    """The schema of the chart's values as it is, with the settings as `config`."""
    values, config = json.loads(VALUES.read_text(encoding="utf-8")), json.loads(config_schema())
    del config["$schema"]
    values["$defs"] = config.pop("$defs")
    values["properties"]["config"] = config
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_null(value) for name, value in schema.items()}
    return found.pop("anyOf")[0] | found if len(found.get("anyOf", ())) == 1 else found


# ---- schemas

DOCUMENTS: dict[str, type[Document]] = {
    "acl": AclDocument,
    "actions": ActionsDocument,
    "check": CheckDocument,
    "config-print": ConfigDocument,
    "dead-letters-change": DeadLettersChangeDocument,
    "dead-letters-list": DeadLettersDocument,
    "dry-run": DryRunDocument,
    "endpoints-attempts": AttemptsDocument,
    "endpoints-change": EndpointChangeDocument,
    "endpoints-list": EndpointsDocument,
    "endpoints-drop": DropDocument,
    "endpoints-skip": SkipDocument,
    "endpoints-test": TrialDocument,
    "expired-count": ExpiredCountDocument,
    "index": IndexDocument,
    "kinds-accept": KindAcceptDocument,
    "ledger-show": LedgerDocument,
    "listen": ListenDocument,
    "once": OnceDocument,
    "quarantine-adopt": AdoptDocument,
    "quarantine-change": QuarantineChangeDocument,
    "quarantine-list": QuarantineDocument,
    "reconcile": ReconcileDocument,
    "repair-budget": RepairBudgetDocument,
    "replay": ReplaysDocument,
    "show": ShowDocument,
    "status": StatusDocument,
    "uninstall": UninstallDocument,
}
MORE_FIELDS = "Fields may be added in later versions."


class _Schema(GenerateJsonSchema):
    """Without the titles that pydantic makes of the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_field_schema(self, schema: Any) -> Any:
        """Without the default: all fields of a dataclass stand in the document."""
        found: dict[str, Any] = super().dataclass_field_schema(schema)
        found.pop("default", None)
        return found

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def schema_of(model: type[Document]) -> str:
    schema, definitions = _parts(model)
    about = " ".join(filter(None, [schema.pop("description", ""), MORE_FIELDS]))
    return _written(schema | {"description": about}, definitions)


def webhook_schema() -> str:
    """The body of a webhook: what all events have, and then the data of each type."""
    schema, definitions = _parts(Body)
    types = schema["allOf"] = []
    for event_type, (category, model) in EVENTS.items():
        data, more = _parts(model)
        del data["title"]
        definitions |= more
        types.append(
            {
                "if": {"properties": {"event_type": {"const": event_type}}},
                "then": {"properties": {"category": {"const": category}, "data": data}},
            }
        )
    return _written(schema, definitions)


def _parts(model: type[Document]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a model, and the schemas that its references name."""
    schema: dict[str, Any] = _cleaned(model.model_json_schema(mode="serialization", schema_generator=_Schema))
    definitions = schema.pop("$defs", {})
    for part in definitions.values():
        del part["title"]
    return schema, definitions


def _written(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    head = {"$schema": GenerateJsonSchema.schema_dialect} | {
        name: schema.pop(name) for name in ("title", "description")
    }
    tail = {"$defs": definitions} if definitions else {}
    return json.dumps(head | schema | tail, indent=2, ensure_ascii=False) + "\n"


def expired_schema() -> str:
    """A line of `expired` is the body of a webhook, and more."""
    body = json.loads(webhook_schema())
    body["title"] = "One line of sweeperd expired --json"
    body["description"] = f"The body of the webhook, and the shard. {MORE_FIELDS}"
    body["required"].append("shard")
    body["properties"]["shard"] = {"type": "string"}
    return json.dumps(body, indent=2) + "\n"


def _cleaned(schema: Any) -> Any:
    """
    Without the default of a field: such a field is left out, and is never null then. `$comment` names the schema of
    another file.
    """
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("default", ...) is None:
        (value,) = (item for item in schema.pop("anyOf") if item != {"type": "null"})
        schema |= value
    return {
        {"$comment": "$ref"}.get(name, name): _cleaned(value) for name, value in schema.items() if name != "default"
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
