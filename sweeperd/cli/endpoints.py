"""`sweeperd endpoints`: the group; each of its commands has a module of its own, or shares one with its likes."""

import click

from sweeperd.cli.endpoint_attempts import attempts
from sweeperd.cli.endpoint_change import pause, resume, skip
from sweeperd.cli.endpoint_keys import keygen, keys
from sweeperd.cli.endpoint_list import list_
from sweeperd.cli.endpoint_trial import test


@click.group("endpoints", short_help="The receivers: list, pause, resume, skip, test, attempts; their keys.")
def command() -> None:
    """The receivers of the webhooks."""


for _each in (attempts, keygen, keys, list_, pause, resume, skip, test):
    command.add_command(_each)
