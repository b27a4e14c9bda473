"""
Writes the records of a Cycles installation for each expiry: an event, and a pending delivery for each matching
subscription. Cycles' own dispatcher sends the deliveries; the event API and the delivery lists go on as before.

Formats, keys and the rule of the delivery id come from cycles-server and cycles-server-admin.
"""

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import redis

from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox import subscription as cycles_subscription
from sweeperd.outbox.event import EVENT_TYPE, WebhookRequest
from sweeperd.outbox.subscription import SYSTEM, CyclesSubscription
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode, parse_rfc3339, rfc3339

log = logging.getLogger(__name__)

#: How many events are relayed at a time.
SENDERS = 4
#: How long Cycles keeps an event and a delivery.
EVENT_RETENTION, DELIVERY_RETENTION = timedelta(days=90), timedelta(days=14)
#: How many unreadable records are remembered, to log each record once.
REMEMBERED = 1000


class Relay:
    """
    Takes requests with a single event, as `webhook.WebhookClient` does, and writes the event into the shard's Redis.
    Threads may share a relay.

    To write the same event again has no effect: if a relay dies between the write and the acknowledgement, nothing is
    doubled.
    """

    def __init__(self, shard: Shard, observe: Callable[[DeliveryResult], None]) -> None:
        """`observe` gets every result, for the metrics."""
        self._shard = shard
        self._observe = observe
        self._keys = shard.keys.cycles
        self._script = Script("delivery/relay")
        #: Subscription id -> hash of the last unreadable record.
        self._unreadable: dict[bytes, int] = {}

    def deliver(
        self,
        request: WebhookRequest,
        attempts: int | None = None,  # noqa: ARG002 - one attempt says all: Redis has refused, or has not
    ) -> DeliveryResult:
        """
        Write the records of the event. If the event has no tenant, or if the type is not `reservation.expired`, there
        are no records. FAILED if Redis refuses the records (full, or a key of another type) or cannot be reached.
        """
        started = time.monotonic()
        try:
            with self._shard.reaching():
                outcome, reason = Result.DELIVERED, f"{self._relay(request)} deliveries"
        except (RedisUnavailable, redis.RedisError) as error:
            outcome, reason = Result.FAILED, describe(error)
        result = DeliveryResult(outcome, reason, seconds=time.monotonic() - started)
        self._observe(result)
        return result

    def await_turn(self) -> bool:
        """There is no limit."""
        return True

    def close(self) -> None:
        """Nothing to close: the connections are the shard's."""

    def _relay(self, request: WebhookRequest) -> int:
        """Returns how many deliveries were made."""
        event = json.loads(request.body)
        if event["event_type"] != EVENT_TYPE or "tenant_id" not in event:
            return 0
        now = self._shard.clock.now_ms()
        keys, event_id, tenant = self._keys, request.event_id, event["tenant_id"].encode()
        call_keys = [keys.event(event_id), keys.events(tenant), keys.all_events, keys.dispatch]
        args: list[bytes | str | int] = [
            event_id,
            request.body,
            parse_rfc3339(event["timestamp"]),
            int(EVENT_RETENTION.total_seconds()),
            now,
            int(DELIVERY_RETENTION.total_seconds()),
        ]
        for subscription in self._matching(tenant, event):
            delivery_id = _delivery_id(event_id, subscription.subscription_id)
            call_keys += [keys.delivery(delivery_id), keys.deliveries(subscription.subscription_id)]
            args += [delivery_id, _delivery(delivery_id, subscription, event, now)]
        return int(self._script.run(self._shard.client, Call(call_keys, args)))

    def _matching(self, tenant: bytes, event: Mapping[str, Any]) -> list[CyclesSubscription]:
        """Each subscription that gets this event, once."""
        sets = self._shard.client.pipeline(transaction=False)
        sets.smembers(self._keys.subscriptions(tenant))
        sets.smembers(self._keys.subscriptions(SYSTEM))
        ids = sorted(set().union(*cast(list[set[bytes]], sets.execute())))
        records = self._shard.client.pipeline(transaction=False)
        for subscription in ids:
            records.get(self._keys.subscription(subscription))
        # If a record is of another type, the list has an error in place of the record.
        read = self._read(zip(ids, records.execute(raise_on_error=False), strict=True))
        scope = event.get("scope", "")
        wanted = [each for each in read if each.matches(event["event_type"], event["category"], scope)]
        return list({each.subscription_id: each for each in wanted}.values())

    def _read(self, records: Iterable[tuple[bytes, Any]]) -> list[CyclesSubscription]:
        found = []
        for subscription, record in records:
            if record is None:
                continue
            try:
                if isinstance(record, Exception):
                    raise record
                found.append(cycles_subscription.parse(record))
            except (ValueError, redis.ResponseError) as error:
                self._warn(subscription, record, error)
        return found

    def _warn(self, subscription: bytes, record: object, error: Exception) -> None:
        seen = hash(record if isinstance(record, bytes) else str(error))
        if self._unreadable.get(subscription) == seen:
            return
        if len(self._unreadable) >= REMEMBERED:
            self._unreadable.clear()
        self._unreadable[subscription] = seen
        reason = str(error).splitlines()[0]
        fields = {"shard": self._shard.name, "subscription": decode(subscription), "error": reason}
        log.warning("a subscription record cannot be read, so the subscription gets no events", extra=fields)


def _delivery(delivery_id: str, subscription: CyclesSubscription, event: Mapping[str, Any], now_ms: int) -> str:
    """
    A delivery that waits for Cycles' dispatcher, JSON. `attempted_at` is the present: if the time is long past, the
    dispatcher drops the delivery as stale.
    """
    known = {
        "delivery_id": delivery_id,
        "subscription_id": subscription.subscription_id,
        "event_id": event["event_id"],
        "event_type": event["event_type"],
        "status": "PENDING",
        "attempted_at": rfc3339(now_ms),
        "attempts": 0,
        "trace_id": event.get("trace_id"),
        "trace_flags": "01",
        "traceparent_inbound_valid": False,
    }
    return json.dumps({key: value for key, value in known.items() if value is not None}, separators=(",", ":"))


def _delivery_id(event_id: str, subscription_id: str) -> str:
    """The same for each try: Java's UUID.nameUUIDFromBytes (MD5, version 3), cut to 16 digits."""
    digest = hashlib.md5(f"{event_id}|{subscription_id}".encode(), usedforsecurity=False).digest()
    return f"del_{uuid.UUID(bytes=digest, version=3).hex[:16]}"
