"""`sweeperd demo`."""

import sys

import click

from sweeperd.demo import run_demo


@click.command("demo", short_help="Show the whole main job, live, on a Redis of its own.")
def command() -> None:
    """Show the whole main job on a Redis of its own: no server, no configuration, half a minute at most."""
    sys.exit(run_demo(click.echo))
