"""`sweeperd uninstall`: removes sweeperd's own keys from Redis, except for those that are still needed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import click
from pydantic import Field

from sweeperd.cli.change import Change, changing
from sweeperd.config import Start
from sweeperd.config.types import OWN_KEYS
from sweeperd.document import Document, ShardsDocument
from sweeperd.ops.processes import read_processes
from sweeperd.outbox import Outbox, Subscription
from sweeperd.outbox.groups import REPLAY_PREFIX
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.sweep.reservations import RESERVATIONS, kind_option
from sweeperd.text import counted, decode, glob

#: Keys that one SCAN visits, and that one step removes.
PAGE = 500
_UNINSTALL = Script("ops/uninstall")
#: Name -> where a new group starts.
Endpoints = Mapping[str, Start | StreamId]
#: Why a key stays after an error.
FAILED = "UNLINK failed"
#: Why a key stays that was free when the operator was asked.
IN_USE = "in use since you were asked: stop what writes it, and run this again"


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
    endpoints = {each.name: Subscription(each).start for each in change.settings.consumers}
    found = change.each(lambda shard: list(_own_keys(shard, endpoints)))
    listed = [(shard.name, decode(key), why) for shard, keys in found for key, why in keys]
    if not change.output.as_json:
        change.output.table(["shard", "key", "why it stays"], listed)
    if going := sum(not why for *_, why in listed):
        change.output.confirm(f"Remove {counted(going, 'key')}? This cannot be undone.", yes=change.yes)
    rows = list[OwnKey]()
    for shard, keys in found:
        left = {key: why or FAILED for key, why in keys}
        with change.catching(shard):
            _remove(shard, endpoints, [key for key, why in keys if not why])
            left = {key: why or IN_USE for key, why in _own_keys(shard, endpoints)}
        for key in sorted({key for key, _ in keys} | left.keys()):
            rows.append(OwnKey(shard=shard.name, key=decode(key), removed=key not in left, why=left.get(key, "")))
    change.report(UninstallDocument(keys=rows))
    if stay := sum(not row.removed for row in rows):
        change.fail(f"{counted(stay, 'key')} {'stays' if stay == 1 else 'stay'}")


def _remove(shard: Shard, endpoints: Endpoints, shown: Sequence[bytes]) -> None:
    """
    Remove those keys that are still not needed, but none once an event, a dead letter, a quarantined entry or a process
    has come meanwhile.
    """
    keys, client = shard.keys, shard.client
    needed = [keys.events, keys.dead_letters, keys.quarantine, keys.processes]
    seen: list[bytes | str | int] = [streams.last_id(client, key) for key in needed[:2]]
    seen += [int(client.zcard(keys.quarantine)), int(client.hlen(keys.processes))]
    going = [key for key, why in _own_keys(shard, endpoints) if not why and key in shown]
    # What tells of a change goes last, and with it what belongs to the events.
    last = {*needed, keys.groups, keys.endpoints}.intersection(going)
    for page in filter(None, [*batches([key for key in going if key not in last], PAGE), sorted(last)]):
        if not _UNINSTALL.run(client, Call([*needed, *page], seen)):
            return


def _own_keys(shard: Shard, endpoints: Endpoints) -> Iterator[tuple[bytes, str]]:
    """Each key of sweeperd, and why it stays: empty if it does not. `endpoints`: those in the settings."""
    keys = shard.keys
    living = [each.process for each in read_processes(shard, shard.read_clock()).known or () if not each.silent]
    waiting = _waiting(shard, endpoints)
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


def _waiting(shard: Shard, endpoints: Endpoints) -> str:
    """Why the event stream stays."""
    stream = shard.keys.events
    last = streams.last_id(shard.client, stream)
    for group, row in streams.groups(shard.client, stream).items():
        if not row["pending"] and row["last-delivered-id"] == last:
            continue
        name = decode(group)
        if name in endpoints:
            return f"events for {name}: `sweeperd --once` or `sweeperd endpoints drop {name} --before 0s`"
        if name.startswith(REPLAY_PREFIX):
            return f"a replay: `sweeperd replay --endpoint {name.removeprefix(REPLAY_PREFIX)} --cancel`"
        destroy = f"XGROUP DESTROY {decode(stream)} {name}"
        return f"events for {name}, which is no endpoint: let its program read them, or {destroy}"
    if lost := Outbox(shard, "operator").groups.lost(endpoints):
        return f"events for {lost[0]}, whose consumer group is lost: `sweeperd --once` makes it again"
    return ""
