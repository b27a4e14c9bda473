"""Checks whether a Redis belongs to a Cycles installation that sweeperd can take over."""

import contextlib
import ipaddress
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, cast
from urllib.parse import urlsplit

import redis

from sweeperd.config.types import milliseconds
from sweeperd.ops.acl import Duty, cycles_grants
from sweeperd.ops.check.findings import CheckedShard, CheckLevel, CheckResult, NotAllowed, failure, ok, warning
from sweeperd.ops.check.keys import judge_last_walk
from sweeperd.ops.check.rights import refused
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.outbox.cycles_subscription import SYSTEM, CyclesSubscription, parse
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.store.scripts import Command, accepted, run_commands
from sweeperd.text import decode

#: Up to how many subscriptions and tenants are read, so that a check takes a moment.
MOST_SUBSCRIPTIONS, MOST_TENANTS = 10_000, 1000
#: How many of the newest records are searched for one that a service wrote.
RECENT = 500
#: The source of the events that the relay writes.
RELAYED = "sweeperd"
#: Lifetimes that differ by less are equal, ms: a record is written a little after its time.
NEAR_MS = 3_600_000
#: How many records a finding names.
NAMED = 3
#: A living dispatcher holds its lock but for this long between two deliveries; how often the check looks for it.
UNLOCKED_SECONDS, LOOKS = 0.025, 10
#: The addresses that the dispatcher blocks, whatever else its rules say.
BLOCKED = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    *("::/128", "::1/128", "fc00::/7", "fe80::/10"),
)


def installation(subject: CheckedShard) -> CheckResult:
    keys = subject.shard.keys.cycles
    found = [
        key.decode(errors="backslashreplace")
        for key in (keys.all_subscriptions, keys.all_events, keys.dispatch, keys.lease)
        if subject.shard.client.exists(key)
    ]
    if found:
        return ok(f"a Cycles installation: it has {', '.join(found)}")
    return warning(
        "no key of the Cycles services: no subscription, event, delivery or lease",
        "compare redis.url and keys.prefix with those of the services",
    )


def enabled(subject: CheckedShard) -> CheckResult:
    if subject.settings.cycles.enabled:
        return ok("cycles.enabled is true: sweeperd takes the lease and writes the records of Cycles")
    return ok("cycles.enabled is false: the services of Cycles keep sweeping")


def lease(subject: CheckedShard) -> CheckResult:
    key, client = subject.shard.keys.cycles.lease, subject.shard.client
    token, rest = client.get(key), client.pttl(key)
    if token is None:
        return ok("free")
    if token == CYCLES_TOKEN.encode():
        return ok("held by sweeperd")
    holder = decode(cast(bytes, token))
    if rest < 0:
        return failure(f"held by {holder} without a TTL, so it never ends", "find out who set it, and delete the key")
    return ok(f"held by a service ({holder}) for {rest / 1000:.0f} s; sweeperd takes over when that sweep ends")


def cycles_rights(subject: CheckedShard) -> CheckResult:
    needed = [grant for grant in cycles_grants(subject.shard.keys) if grant.duty is not Duty.OPERATE]
    if missing := refused(subject.shard, needed):
        advice = "`sweeperd acl` with cycles.enabled = true prints the rights"
        return failure(f"this user may not {', '.join(missing)}", advice)
    return ok("all commands on the keys of the lease and the relay")


def dispatcher(subject: CheckedShard) -> CheckResult:
    """Which dispatcher works on the deliveries, and whether it can take any."""
    keys, client = subject.shard.keys.cycles, subject.shard.client
    looks: list[Command] = [("GET", keys.dispatch_lock), ("PTTL", keys.dispatch_lock)]
    lengths: list[Command] = [("LLEN", key) for key in (keys.dispatch, keys.dispatch_processing, keys.dispatch_failed)]
    _need_looks(subject)
    for _ in range(LOOKS):
        holder, rest, *counts = accepted(run_commands(client, [*looks, *lengths]))
        if isinstance(holder, bytes):
            break
        time.sleep(UNLOCKED_SECONDS)
    pending, processing, failed = cast(list[int], counts)
    queued = f"{pending} deliveries wait, {processing} are being sent, {failed} could not be read (dispatch:failed)"
    if not isinstance(holder, bytes):
        says = "0.1.25.18 or newer, not at work" if processing or failed else "none, or one older than 0.1.25.18"
    elif cast(int, rest) < 0:
        says = f"{decode(holder)} holds the lock without a TTL, so no dispatcher takes a delivery; {queued}"
        return failure(says, "find out who set dispatch:ordering:lock, and delete the key")
    else:
        says = f"0.1.25.18 or newer: {decode(holder)} holds the lock for {cast(int, rest) / 1000:.0f} s"
    if failed:
        return warning(f"{says}; {queued}", "`redis-cli lrange dispatch:failed 0 10` names the deliveries")
    return ok(f"{says}; {queued}")


def subscriptions(subject: CheckedShard) -> CheckResult:
    records, members = _subscriptions(subject)
    bad = [f"{name} ({fault})" for name, fault in records if isinstance(fault, str)]
    if bad:
        return warning(
            f"{len(bad)} of {len(records)} cannot be read and get no events: {_named(bad, ', ')}",
            "correct the fields through the admin API of Cycles, or delete the subscriptions there",
        )
    return ok(f"{len(records)} can be read" + (f", of {members}" if members > len(records) else ""))


def webhook_rules(subject: CheckedShard) -> CheckResult:
    """Which URLs the dispatcher will refuse to send to, by the rules of the installation. No name is resolved."""
    client, key = subject.shard.client, subject.shard.keys.cycles.webhook_security
    _need_looks(subject)
    try:
        rules = json.loads(cast(bytes, client.get(key) or b"{}"))
        blocked = [
            ipaddress.ip_network(each, strict=False) for each in (*BLOCKED, *(_list(rules, "blocked_cidr_ranges")))
        ]
        # As the services read a pattern: only the star is special.
        patterns = [".*".join(map(re.escape, each.split("*"))) for each in _list(rules, "allowed_url_patterns")]
        http = rules.get("allow_http") is True
    except (ValueError, TypeError, AttributeError) as error:
        says = f"{decode(key)} cannot be read, so the dispatcher sends nothing: {error}"
        return warning(says, "correct the rules through the admin API of Cycles")
    found = []
    readable = [(name, each) for name, each in _subscriptions(subject)[0] if isinstance(each, CyclesSubscription)]
    for name, subscription in readable:
        active = subscription.status == "ACTIVE"
        if active and (refusal := _refusal(subscription.url or "", blocked, patterns, http=http)):
            found.append(f"{name} ({refusal})")
    if found:
        return warning(
            f"a dispatcher of 0.1.25.22 or newer will block the URLs of {len(found)}: {_named(found, ', ')}",
            "change the URLs, or the rules, through the admin API of Cycles",
        )
    return ok("no URL of an active subscription is blocked, as far as is known without resolving names")


def _list(rules: Mapping[str, Any], name: str) -> list[str]:
    return rules.get(name) or []


def _refusal(
    url: str, blocked: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network], patterns: Sequence[str], *, http: bool
) -> str:
    """Why the dispatcher refuses the URL; empty if it does not."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not a URL"
    if parts.scheme not in ("https", "http") or (parts.scheme == "http" and not http):
        return "not HTTPS"
    if not parts.hostname:
        return "no host"
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address("127.0.0.1" if parts.hostname == "localhost" else parts.hostname)
        address = getattr(address, "ipv4_mapped", None) or address
        if any(address in each for each in blocked):
            return f"{address} is blocked"
    if patterns and not any(re.fullmatch(each, url) for each in patterns):
        return "no pattern allows it"
    return ""


def _subscriptions(subject: CheckedShard) -> tuple[list[tuple[str, CyclesSubscription | str | None]], int]:
    """
    The subscriptions by id, and how many there are. Instead of one that cannot be read there is the reason, and None if
    it was deleted.
    """
    keys, client = subject.shard.keys.cycles, subject.shard.client
    members = cast(set[bytes], client.smembers(keys.all_subscriptions) | client.smembers(keys.subscriptions(SYSTEM)))
    ids = sorted(members)[:MOST_SUBSCRIPTIONS]
    records = run_commands(client, (("GET", keys.subscription(each)) for each in ids))
    return list(zip(map(decode, ids), map(_parsed, records), strict=True)), len(members)


def _parsed(record: object) -> CyclesSubscription | str | None:
    if record is None:
        return None
    try:
        return parse(record) if isinstance(record, bytes) else "the record is not a string"
    except ValueError as error:
        return str(error)


def _named(texts: Sequence[str], separator: str) -> str:
    return separator.join(texts[:NAMED]) + (" and more" if len(texts) > NAMED else "")


def retention(subject: CheckedShard) -> CheckResult:
    """Compares how long the services and the relay keep records, by the newest record that a service wrote."""
    keys, cycles = subject.shard.keys.cycles, subject.settings.cycles
    _need_looks(subject)
    members = sorted(cast(set[bytes], subject.shard.client.smembers(keys.all_subscriptions)))[:RECENT]
    indexes = [keys.deliveries(decode(each)) for each in members]
    known, other = [], []
    for name, lifetime, setting, ours in (
        ("events", _lifetime(subject, [keys.all_events], keys.event), "event_ttl", cycles.event_ttl),
        ("deliveries", _lifetime(subject, indexes, keys.delivery), "delivery_ttl", cycles.delivery_ttl),
    ):
        if lifetime is not None:
            known.append(f"{name} {_days(lifetime)}")
            if abs(lifetime - milliseconds(ours)) > NEAR_MS:
                other.append((known[-1], f"cycles.{setting} ({_days(milliseconds(ours))})"))
    if other:
        differing, settings = (", ".join(texts) for texts in zip(*other, strict=True))
        return warning(f"the services keep {differing}", f"set {settings} to the same")
    if not known:
        return ok(f"unknown: none of the {RECENT} newest records is from a service")
    return ok(f"{', '.join(known)}, as in the services")


def created_index(subject: CheckedShard) -> CheckResult:
    """Compares the indexes by creation, which the service and the ledger maintain, with their metadata."""
    keys, client = subject.shard.keys.cycles, subject.shard.client
    _need_looks(subject)
    tenants = sorted(cast(set[bytes], client.smembers(keys.tenants)))[:MOST_TENANTS]
    looks = list[Command]()
    for tenant in tenants:
        index, metadata = keys.created_index(tenant), keys.created_metadata(tenant)
        looks += [("TYPE", metadata), ("HMGET", metadata, "state", "expected_count"), ("TYPE", index), ("ZCARD", index)]
    replies = iter(run_commands(client, looks))
    ready, faults = 0, []
    for tenant, metadata, fields, index, count in zip(tenants, replies, replies, replies, replies, strict=True):
        if metadata not in (b"hash", b"none"):
            faults.append(f"{decode(tenant)}: the metadata is a {metadata.decode()}")
        elif index not in (b"zset", b"none"):
            faults.append(f"{decode(tenant)}: the index is a {index.decode()}")
        elif fields[0] == b"READY":
            ready += 1
            if fields[1] != b"%d" % count:
                faults.append(f"{decode(tenant)}: {count} ids, but {decode(fields[1] or b'none')} are expected")
    if faults:
        return warning(
            _named(faults, "; "), "none: the service reads all reservations until it has rebuilt the indexes"
        )
    if not ready:
        return ok("no tenant has one: the service reads all reservations")
    return ok(f"READY for {ready} of {len(tenants)} tenants, and complete")


def _need_looks(subject: CheckedShard) -> None:
    """Raises NotAllowed if this user may not run a command that only an operator's user may run."""
    looks = [each for each in cycles_grants(subject.shard.keys) if each.duty is Duty.OPERATE]
    if missing := refused(subject.shard, looks):
        raise NotAllowed(", ".join(missing), CheckLevel.OK)


def _lifetime(subject: CheckedShard, indexes: Sequence[bytes], key: Callable[[str], bytes]) -> int | None:
    """
    The TTL, in ms, of the newest record in these sorted sets that a service wrote; None if the newest are all the
    relay's. `key` turns the id of a record into its key.
    """
    client, keys = subject.shard.client, subject.shard.keys.cycles
    pages = client.pipeline(transaction=False)
    for index in indexes:
        pages.zrange(index, -1 - RECENT // len(indexes), -1, withscores=True)
    rows = sorted(chain.from_iterable(pages.execute()), key=itemgetter(1), reverse=True)[:RECENT]
    records = _documents(client, [key(decode(name)) for name, _ in rows])
    # A delivery names its event, and only the event names its source.
    events = _documents(client, [keys.event(str(record.get("event_id"))) for record in records])
    for (name, at), record, event in zip(rows, records, events, strict=True):
        if (record.get("source") or event.get("source") or RELAYED) != RELAYED:
            left = client.pttl(key(decode(name)))
            if left > 0:
                return left + subject.shard.read_clock() - int(at)
    return None


def _documents(client: redis.Redis, keys: Sequence[bytes]) -> list[dict[str, Any]]:
    """The JSON objects under these keys, empty for a key without one."""
    found = []
    for text in run_commands(client, (("GET", key) for key in keys)):
        document = None
        with contextlib.suppress(ValueError):
            document = json.loads(text) if isinstance(text, bytes) else None
        found.append(document if isinstance(document, dict) else {})
    return found


def _days(duration_ms: int) -> str:
    return f"{duration_ms / 86_400_000:.2f}".rstrip("0").rstrip(".") + " d"


def foreign_quarantine(subject: CheckedShard) -> CheckResult:
    says, advice = "were quarantined by another sweeper", "`sweeperd quarantine adopt --all`"
    return judge_last_walk(subject, lambda walk: walk.found.get(Fault.FOREIGN_QUARANTINE, 0), says, advice)


#: The checks of `--cycles`, in order.
CYCLES_CHECKS: Mapping[str, Callable[[CheckedShard], CheckResult]] = {
    "cycles installation": installation,
    "cycles enabled": enabled,
    "cycles lease": lease,
    "cycles rights": cycles_rights,
    "cycles dispatcher": dispatcher,
    "cycles subscriptions": subscriptions,
    "cycles webhook rules": webhook_rules,
    "cycles retention": retention,
    "cycles created-at index": created_index,
    "cycles quarantine": foreign_quarantine,
}
