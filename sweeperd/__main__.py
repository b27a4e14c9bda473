"""Starts sweeperd (`sweeperd`, `python -m sweeperd`)."""

from sweeperd.runtime.process import ended_by_signals, hold_hang_ups, importing, raise_file_limit


def run() -> None:
    hold_hang_ups()
    raise_file_limit()
    with ended_by_signals(), importing():
        from sweeperd.cli import main  # noqa: PLC0415 - takes a moment, and a signal may come first

    main()


if __name__ == "__main__":
    run()
