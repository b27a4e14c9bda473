"""`sweeperd endpoints keygen`: generates the keys that sign webhooks."""

import json
import os
from pathlib import Path

import click

from sweeperd.cli.options import Exit, fail, json_option
from sweeperd.webhook_keys import generate_pair, generate_shared


@click.command("keygen")
@click.option("--symmetric", is_flag=True, help="Generate a shared secret (whsec_...) instead of a key pair.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the private key or secret to this new file with mode 0600 instead of printing it.",
)
@json_option
def command(symmetric: bool, out: Path | None, as_json: bool) -> None:
    """
    Generate a key pair for asymmetric signatures, or with --symmetric a shared secret. Put the private key or secret
    into the `secrets` of an endpoint, and give the receiver the public key or the same secret.
    """
    if symmetric:
        made = {"secret": generate_shared()}
    else:
        try:
            private, public = generate_pair()
        except ImportError:
            fail("the cryptography package is missing: pip install 'sweeperd[ed25519]'", Exit.FAILED)
        made = {"private_key": private, "public_key": public}
    if out is not None:
        kept, *_ = made
        write_new(out, made.pop(kept) + "\n", 0o600)
        made["file"] = str(out)
    if as_json:
        click.echo(json.dumps(made))
        return
    for name, text in made.items():
        click.echo(f"written to {text}" if name == "file" else text, err=name == "file")


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a file that does not exist yet. Exits if it does, or if it cannot be written."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
    except FileExistsError:
        fail(f"{path} exists and may be in use; choose another file", Exit.USAGE)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", Exit.FAILED)
