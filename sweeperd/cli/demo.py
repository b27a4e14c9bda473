"""`sweeperd demo`."""

import sys

import click


@click.command("demo", short_help="Show the whole main job, live, on a Redis of its own.")
@click.option(
    "--kind",
    type=click.Choice(["seat-hold", "lock", "session", "permit"]),
    help="Show this example of a configured kind.  [default: reservations]",
)
def command(kind: str | None) -> None:
    """Show the whole main job on a Redis of its own: no server, no configuration, half a minute at most."""
    if kind is not None:
        from sweeperd.demo.kind import run_kind_demo  # noqa: PLC0415 - only what is shown is loaded

        sys.exit(run_kind_demo(kind, click.echo))
    from sweeperd.demo import run_demo  # noqa: PLC0415 - the same

    sys.exit(run_demo(click.echo))
