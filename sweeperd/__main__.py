"""`sweeperd`, and `python -m sweeperd`."""

from sweeperd.runtime import hang_ups


def run() -> None:
    """The command."""
    hang_ups.hold()
    from sweeperd.cli import main  # noqa: PLC0415 - it takes a moment, in which a signal may come

    main()


if __name__ == "__main__":
    run()
