"""The command line: options in, exit codes and text out; no logic of its own."""

from sweeperd.cli.app import main

__all__ = ["main"]
