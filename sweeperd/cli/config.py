"""`sweeperd config`: prints the effective settings, and the JSON schema of the settings file."""

import json
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import click
from pydantic import BaseModel, Field

from sweeperd.cli.options import Options, json_option
from sweeperd.cli.output import Output
from sweeperd.config.example import shipped
from sweeperd.config.loading import find_file, overrides
from sweeperd.document import Document

SCHEMA = "docs/schemas/config.schema.json"
_HIDDEN = "**********"
Source = Literal["file", "environment", "default", "inherited"]


class SettingDocument(Document):
    key: str = Field(description="Such as sweep.batch_size, or webhooks.endpoints[0].url.")
    value: Any = Field(description="Secrets are hidden; of an address, host and database are shown.")
    source: Source = Field(
        description="inherited: a limit that an endpoint does not set, as in [webhooks]; its source is that setting's."
    )


class ConfigDocument(Document, title="sweeperd config --json"):
    """The effective settings."""

    file: str | None = Field(description="The settings file; null if there is none.")
    settings: list[SettingDocument]


@click.group("config", invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """
    Print each setting with its value and its source: the file, the environment or the default. Secrets are hidden.
    "inherited" is a limit that an endpoint does not set: it has the value of [webhooks].

    Exit codes: 0 done; 2 bad option or configuration.
    """
    if context.invoked_subcommand is not None:
        return
    options: Options = context.obj
    settings = options.settings("error", secrets=False)
    rows = list(_settings(settings, settings.model_dump(mode="json"), overrides(os.environ)))
    file, output = find_file(options.config_file), Output(as_json=as_json)
    if as_json:
        output.json(ConfigDocument(file=None if file is None else str(file), settings=rows))
        return
    click.echo(f"sweeperd: the file is {file}" if file else "sweeperd: there is no file", err=True)
    output.table(("key", "value", "source"), [(row.key, _as_text(row.value), row.source) for row in rows])


@command.command("schema")
def schema() -> None:
    """Print the JSON schema of the settings file, for editors and validators."""
    click.echo(shipped(SCHEMA), nl=False)


def _as_text(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _settings(
    section: BaseModel,
    shown: Mapping[str, Any],
    given: object,
    before: str = "",
    common: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[SettingDocument]:
    """
    `given`: the environment's overrides of this section; a list is overridden as a whole. `common`: for an item of a
    list, the settings beside the list, which it inherits.
    """
    for name in type(section).model_fields:
        value, key = getattr(section, name), before + name
        of_environment = name in given if isinstance(given, Mapping) else given is not None
        below = given.get(name) if isinstance(given, Mapping) else given
        if isinstance(value, BaseModel):
            yield from _settings(value, shown[name], below, f"{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for number, item in enumerate(value):
                yield from _settings(item, shown[name][number], below, f"{key}[{number}].", shown)
        elif value is None and name in common:
            yield SettingDocument(key=key, value=common[name], source="inherited")
        else:
            chosen = name in section.model_fields_set
            source: Source = "default" if not chosen else "environment" if of_environment else "file"
            # A reference that only a signing command reads is None.
            yield SettingDocument(
                key=key, value=_HIDDEN if chosen and shown[name] is None else shown[name], source=source
            )
