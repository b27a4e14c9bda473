"""`sweeperd uninstall`: removes sweeperd's own keys from Redis, except for those that are still needed."""

from collections.abc import Iterator
from typing import cast

import click
from pydantic import Field

from sweeperd.cli.change import Change, changing
from sweeperd.config.types import OWN_KEYS
from sweeperd.document import Document, ShardsDocument
from sweeperd.ops.processes import read_processes
from sweeperd.store import streams
from sweeperd.store.scripts import batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS, kind_option
from sweeperd.text import counted, decode, glob

#: Keys that one SCAN visits, and that one UNLINK removes.
PAGE = 500
#: Why a key stays after an error.
FAILED = "UNLINK failed"


class OwnKey(Document):
    """A key of sweeperd."""

    shard: str
    key: str
    removed: bool
    why: str = Field(description="Why the key stays; empty if it does not.")


class UninstallDocument(ShardsDocument, title="sweeperd uninstall --json"):
    keys: list[OwnKey]


@click.command("uninstall")
@changing
def command(change: Change) -> None:
    """
    Remove sweeperd's own keys from Redis. Shows them first, and asks.

    Stop all daemons and cron lines before. These keys stay: the event stream while an endpoint or another consumer
    group has not acknowledged all events, dead letters, and quarantined entries. Reservations, budgets and the entries
    of kinds are never touched. The user needs UNLINK, which `sweeperd acl` does not grant.

    Exit codes: 0 nothing of sweeperd is left; 1 a key stays, a daemon runs, or a shard is unreachable.
    """
    found = change.each(lambda shard: list(_own_keys(shard)))
    listed = [(shard.name, decode(key), why) for shard, keys in found for key, why in keys]
    if not change.output.as_json:
        change.output.table(["shard", "key", "why it stays"], listed)
    if going := sum(not why for *_, why in listed):
        change.output.confirm(f"Remove {counted(going, 'key')}? This cannot be undone.", yes=change.yes)
    rows = list[OwnKey]()
    for shard, keys in found:
        removed = set[bytes]()
        with change.catching(shard):
            for page in batches([key for key, why in keys if not why], PAGE):
                shard.client.unlink(*page)
                removed.update(page)
        for key, why in keys:
            stays = why or ("" if key in removed else FAILED)
            rows.append(OwnKey(shard=shard.name, key=decode(key), removed=not stays, why=stays))
    change.report(UninstallDocument(keys=rows))
    if stay := sum(not row.removed for row in rows):
        change.fail(f"{counted(stay, 'key')} {'stays' if stay == 1 else 'stay'}")


def _own_keys(shard: Shard) -> Iterator[tuple[bytes, str]]:
    """Each key of sweeperd, and why it stays: empty if it does not."""
    keys = shard.keys
    living = [each.process for each in read_processes(shard, shard.read_clock()).known or () if not each.silent]
    waiting = _waiting(shard)
    names = {*shard.client.scan_iter(match=glob(keys.prefix + OWN_KEYS.encode()) + b"*", count=PAGE)}
    of_quarantine = {keys.quarantine: RESERVATIONS} | {
        kept: name
        for key in names
        if (name := decode(key.removeprefix(keys.quarantine + b":"))) != decode(key)
        for kept in (key, keys.kind_notes(name), keys.kind_marks(name))
    }
    for key in sorted(cast(set[bytes], names)):
        if living:
            yield key, f"{living[0]} runs: stop it"
        elif key == keys.dead_letters and shard.client.xlen(key):
            yield key, "dead letters: `sweeperd dead-letters replay` or `drop`"
        elif key in of_quarantine:
            command = " ".join(("sweeperd quarantine requeue", *kind_option(of_quarantine[key])))
            yield key, f"entries in quarantine: `{command}` or `dismiss`"
        else:
            yield key, waiting if key in (keys.events, keys.groups, keys.endpoints) else ""


def _waiting(shard: Shard) -> str:
    """Why the event stream stays."""
    last = streams.last_id(shard.client, shard.keys.events)
    for name, row in streams.groups(shard.client, shard.keys.events).items():
        if row["pending"] or row["last-delivered-id"] != last:
            return f"events for {decode(name)}: `sweeperd --once` or `endpoints drop`"
    return ""
