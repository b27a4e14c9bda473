"""
The Redis that a command works on. Each command names its address once, because a wrong one looks like an empty one.

`Options.shards` remembers the shards for the rest of the command; `Output` prints their address: as the first line of a
table, as `address` in a JSON document, and on standard error in all other cases.
"""

from collections.abc import Sequence

import click

from sweeperd.store.shard import Shard

_KEY = "sweeperd.cli.address"


def remember(shards: Sequence[Shard]) -> None:
    """These are the shards of the running command."""
    click.get_current_context().meta[_KEY] = list(shards)


def json_address() -> str | None:
    """The addresses of the shards, joined by a comma and a space. None: the command uses no Redis of the settings."""
    return ", ".join(shard.address for shard in _remembered()) or None


def text_address() -> str:
    """The same for people: with the names of several shards, and with the prefix of the keys where there is one."""
    shards = _remembered()
    return ", ".join((f"{shard.name} " if len(shards) > 1 else "") + _place(shard) for shard in shards)


def _place(shard: Shard) -> str:
    prefix = shard.keys.prefix.decode("utf-8", "backslashreplace")
    return f"{shard.address} prefix {prefix}" if prefix else shard.address


def _remembered() -> list[Shard]:
    context = click.get_current_context(silent=True)
    return context.meta.get(_KEY, []) if context else []
