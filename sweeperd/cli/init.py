"""`sweeperd init`: writes a first settings file, and a secret for its endpoint."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from sweeperd.cli.keygen import write_new
from sweeperd.cli.options import Exit, Options, fail
from sweeperd.config.example import SCHEMA_LINE, Example, examples
from sweeperd.webhook_keys import generate_shared

SECRET_FILE = "webhook-secret"  # noqa: S105 - the name of a file
#: Table -> its keys, with the line that replaces the example's.
_ENDPOINT: Mapping[str, str | None] = {
    "name": 'name = "first"',
    "url": 'url = "http://127.0.0.1:8080/"',
    "secrets": f'secrets = ["file:{SECRET_FILE}"]',
}
_KIND = "name index key deadline active ended over retention tenant give_back channels event".split()  # noqa: SIM905


@click.command("init")
@click.option("--kind", "kinds", flag_value=True, type=bool, help="Sweep an example of a kind: entries of your own.")
@click.option("--reservations", "kinds", flag_value=False, type=bool, help="Sweep reservations.  [default]")
@click.pass_obj
def command(options: Options, kinds: bool | None) -> None:
    """
    Write a commented config.toml (or the file of --config) and a secret that only you can read. Nothing is overwritten.

    Exit codes: 0 done; 1 a file cannot be written; 2 bad option, or a file exists.
    """
    path = options.config_file or Path("config.toml")
    secret = path.parent / SECRET_FILE
    for file in (path, secret):
        if file.exists():
            fail(f"{file} exists; nothing was written", Exit.USAGE)
    write_new(secret, generate_shared() + "\n", 0o600)
    write_new(path, "\n".join(_text(_chosen(kind=bool(kinds)))), 0o644)
    sweeperd = "sweeperd" if options.config_file is None else f"sweeperd --config {path}"
    click.echo(f"written: {path}, {secret}. Next, and the second in its own terminal:")
    click.echo(f"  {sweeperd} {'prove --kind seat-hold' if kinds else 'check'}")
    click.echo(f"  sweeperd listen --secret file:{secret}")
    click.echo(f"  {sweeperd}")


def _chosen(*, kind: bool) -> Mapping[str, Mapping[str, str | None]]:
    kinds: dict[str, Mapping[str, str | None]] = {
        "[reservations]": {"enabled": "enabled = false"},
        "[[kinds]]": dict.fromkeys(_KIND),
    }
    return {"[redis]": {"url": None}, **(kinds if kind else {}), "[[webhooks.endpoints]]": _ENDPOINT}


def _text(chosen: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    """The lines of the settings file, with the comments of the example."""
    every: list[Example] = list(examples())
    yield SCHEMA_LINE
    yield "# The settings of sweeperd. `sweeperd config` lists all of them, `sweeperd config schema` describes them."
    for table, keys in chosen.items():
        yield f"\n{table}"
        for each in every:
            if each.table == table and each.key in keys:
                yield from (*each.comment, keys[each.key] or each.line)
    yield ""
