"""`sweeperd endpoints keygen` and `keys`: asymmetric keys."""

import json

import click

from sweeperd.cli.names import check_name
from sweeperd.cli.options import Exit, Options, fail, json_option
from sweeperd.cli.output import Output
from sweeperd.ops import signing_keys


@click.command("keygen")
@json_option
def keygen(as_json: bool) -> None:
    """
    Make a key pair for asymmetric signatures. The private key goes into the `secrets` of an endpoint, as a file or a
    variable; the public key goes to the receiver. Nothing is stored.
    """
    try:
        private, public = signing_keys.generate()
    except signing_keys.NoCryptography:
        fail("the cryptography package is missing: pip install 'sweeperd[ed25519]'", Exit.FAILED)
    if as_json:
        click.echo(json.dumps({"private_key": private, "public_key": public}))
    else:
        click.echo(f"{private}\n{public}")


@click.command("keys")
@click.argument("name", required=False)
@click.pass_obj
def keys(options: Options, name: str | None) -> None:
    """
    Print the public keys of all endpoints, or of one, as a JSON Web Key Set (JWKS). Host it where the receivers can
    reach it; the daemon serves it to operators at /.well-known/jwks.json.
    """
    with options.shards(secrets=True) as (settings, _):
        endpoints = settings.webhooks.endpoints
    if name is not None:
        check_name("endpoint", name, [endpoint.name for endpoint in endpoints])
    found = [endpoint for endpoint in endpoints if name in (None, endpoint.name)]
    Output(as_json=True).name_address()
    click.echo(json.dumps(signing_keys.jwks(found), indent=2))
