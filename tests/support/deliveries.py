"""Deliveries in the test's own process, on a real Redis."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings, WebhooksSettings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.http import DeliveryResult
from sweeperd.delivery.webhook import WebhookClient
from sweeperd.metrics import Metrics
from sweeperd.outbox import Message, WebhookRequest, webhook_request
from sweeperd.store import Clock, Shard
from tests.support.harness import eventually

EVENTS = "sweeperd:events"


#: A reader sees soon that it is to stop.
QUICK = Timing(block=0.1)


class Delivery:
    """A running dispatcher with one endpoint, `hook`, and what can be measured of it."""

    def __init__(
        self,
        shard: Shard,
        url: str,
        concurrency: int,
        endpoint: dict[str, Any],
        kept: int = 1000,
        timing: Timing = DEFAULT_TIMING,
        until_idle: bool = False,
        **webhooks: Any,
    ) -> None:
        settings = Settings.model_validate(
            {
                "events": {"attempts_kept": kept},
                "webhooks": webhooks | {"endpoints": [{"name": "hook", "url": url} | endpoint]},
            }
        )
        self.client = shard.client
        self.metrics = Metrics()
        self.stop = threading.Event()
        self.dispatcher = Dispatcher(
            ShardContext(settings, shard, self.metrics, self.stop, concurrency, timing=timing, until_idle=until_idle)
        )
        self.dispatcher.prepare()

    def attempts(self, result: str) -> float:
        """The counter of requests."""
        return self.sample("sweeperd_webhook_attempts_total", result=result)

    def events(self, result: str) -> float:
        """The counter of events."""
        return self.sample("sweeperd_webhook_events_total", result=result)

    def dead_letters(self) -> float:
        """The counter of dead letters."""
        return self.sample("sweeperd_webhook_dead_letters_total")

    def pending(self) -> dict[bytes, tuple[bytes, int, int]]:
        """The pending events: id -> owner, deliveries, idle ms."""
        rows: Any = self.client.xpending_range(EVENTS, "hook", "-", "+", 10_000)
        return {
            row["message_id"]: (row["consumer"], row["times_delivered"], row["time_since_delivered"]) for row in rows
        }

    def sample(self, name: str, **labels: str) -> float:
        """The value of a series of this endpoint; 0 if it is not there."""
        return self.metrics.registry.get_sample_value(name, {"endpoint": "hook"} | labels) or 0.0


#: URL, and settings of `webhooks` beside it.
Deliver = Callable[..., contextlib.AbstractContextManager[Delivery]]


@pytest.fixture
def deliver(shard: Shard) -> Deliver:
    """Run a dispatcher while the block lasts."""

    @contextlib.contextmanager
    def running(
        url: str, concurrency: int = 2, endpoint: dict[str, Any] | None = None, **webhooks: Any
    ) -> Iterator[Delivery]:
        quick: dict[str, Any] = {
            "redelivery_initial": "200ms",
            "redelivery_max": "1s",
            "attempts": 1,
            "backoff_initial": "10ms",
            "timing": QUICK,
        }
        delivery = Delivery(shard, url, concurrency, endpoint or {}, **(quick | webhooks))
        delivery.dispatcher.start()
        try:
            yield delivery
        finally:
            delivery.stop.set()
            assert delivery.dispatcher.join(time.monotonic() + 20)

    return running


#: Of `running`: the reader looks for what nobody tells of once in an hour.
RARELY: dict[str, Any] = {"refresh_every": 3600.0, "webhooks": {"redelivery_initial": "4h", "redelivery_max": "4h"}}


class Running:
    """A dispatcher for these endpoints, which runs until the block ends."""

    def __init__(self, shard: Shard, endpoints: list[dict[str, Any]], metrics: Metrics, **how: Any) -> None:
        self.stop = threading.Event()
        webhooks = {"endpoints": endpoints, "timeout": "60s", "redelivery_initial": "2s"} | how.pop("webhooks", {})
        settings = Settings.model_validate({"webhooks": webhooks})
        concurrency = how.pop("concurrency", 16)
        idle = how.pop("until_idle", False)
        timing = Timing(**{"block": QUICK.block} | how)
        context = ShardContext(settings, shard, metrics, self.stop, concurrency, timing=timing, until_idle=idle)
        self.dispatcher = Dispatcher(context)


@contextlib.contextmanager
def running(
    shard: Shard, endpoints: list[dict[str, Any]], before: Running | None = None, **how: Any
) -> Iterator[Running]:
    """`before`: what a reload replaces."""
    made = Running(shard, endpoints, before.dispatcher._metrics if before else Metrics(), **how)
    if before:
        made.dispatcher.adopt(before.dispatcher)
        before.stop.set()
    made.dispatcher.prepare()
    made.dispatcher.start()
    try:
        yield made
    finally:
        made.stop.set()
        assert made.dispatcher.join(time.monotonic() + 30)


def endpoints(url: str, names: int) -> list[dict[str, Any]]:
    return [{"name": f"e{number}", "url": f"{url}?e{number}"} for number in range(names)]


def expire(client: redis.Redis, *names: str, tenant: str = "acme") -> list[bytes]:
    """Add an event for each name, as an expiry does. Returns the stream ids."""
    fields = {"tenant": tenant, "scope": "tenant:acme", "unit": "TOKENS", "amount": "5", "trace_id": "a" * 32}
    times = {"created_at": 1763712000000, "expires_at": 1763712060000, "expired_at": 1763712065000, "grace_ms": 0}
    with client.pipeline() as pipeline:
        for name in names:
            pipeline.xadd(EVENTS, {"id": name, "extensions": 0} | fields | times)  # type: ignore[arg-type]
        return list(pipeline.execute())


def settled(delivery: Delivery) -> None:
    """Wait until nothing is pending."""
    eventually(lambda: not delivery.pending())


# ---- requests to one endpoint, without a Redis

TRACE = "0123456789abcdef0123456789abcdef"
BODY = json.dumps({"event_id": "evt_1", "tenant_id": "täglich"}, ensure_ascii=False).encode()
MESSAGE = Message("evt_1", "reservation.expired", TRACE, BODY)


class Sender:
    """A webhook of this endpoint, with the results that it returned."""

    def __init__(
        self, url: str, settings: dict[str, object] | None = None, clock: Clock | None = None, **endpoint: object
    ) -> None:
        self.verdicts: list[DeliveryResult] = []
        self.stop = threading.Event()
        self.clock = clock or Clock()
        self.clock.set(int(time.time() * 1000))
        quick = {"timeout": "5s", "connect_timeout": "5s", "backoff_initial": "1ms", "backoff_max": "5ms"}
        self.endpoint = EndpointSettings.model_validate({"name": "odd", "url": url, **endpoint})
        self.webhook = WebhookClient(
            self.endpoint,
            WebhooksSettings.model_validate(quick | (settings or {})),
            self.clock,
            4,
            self.verdicts.append,
        )

    def once(self) -> DeliveryResult:
        """A single request."""
        return self.deliver(attempts=1)

    def deliver(self, *messages: Message, attempts: int | None = None) -> DeliveryResult:
        """Deliver these messages, by default MESSAGE, in one request."""
        hand_over = self.webhook.hand_over(self.request(messages), attempts)
        while (pause := hand_over.attempt()) is not None and not self.stop.wait(pause):
            pass
        hand_over.end()
        return hand_over.result

    def request(self, messages: Sequence[Message] = ()) -> WebhookRequest:
        """The request with these messages, by default MESSAGE."""
        return webhook_request(messages or [MESSAGE], self.endpoint.format, batches=self.endpoint.batch_size > 1)
