"""The command line, which parses options, calls `ops` and `runtime`, and prints what they return."""

from sweeperd.cli.app import main

__all__ = ["main"]
