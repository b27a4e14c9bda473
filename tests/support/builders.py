"""Objects of the delivery as tests build them: what a test does not name is as usual."""

import threading
from typing import Any

from sweeperd.config import EndpointSettings
from sweeperd.context import USUAL
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, EndpointStateCache, Redelivery
from sweeperd.delivery.lane import AttemptLog, BatchLimits, BatchQueue, InFlight, Lane
from sweeperd.metrics import Metrics
from sweeperd.outbox.stream import Outbox
from sweeperd.outbox.subscription import Subscription
from sweeperd.store.shard import Shard


def batch_limits(events: int = 1, size: int = 1024 * 1024, wait: float = 0.05) -> BatchLimits:
    """The limits of an endpoint's batches, as its settings have them by default."""
    return BatchLimits(events, size, wait)


def make_lane(shard: Shard, name: str = "hook", endpoint: dict[str, Any] | None = None, **parts: Any) -> Lane:
    """The lane of one endpoint of this process, `us`. `parts`: the fields of the lane that are not as usual."""
    usual: dict[str, Any] = {
        "stop": threading.Event(),
        "metrics": Metrics(),
        "circuit": CircuitBreaker(30.0, 3600.0),
        "limits": batch_limits(),
        "timing": USUAL,
        "senders": 1,
    }
    given = usual | parts
    settings = EndpointSettings.model_validate({"name": name, "url": "http://127.0.0.1:1/"} | (endpoint or {}))
    made: dict[str, Any] = {
        "endpoint": name,
        "subscription": Subscription(settings),
        "outbox": given.get("outbox") or Outbox(shard, "us", timing=given["timing"]),
        "redelivery": Redelivery(30.0, 3600.0, 3_600_000),
        "publisher": CircuitPublisher(shard, name, "us", given["circuit"], given["timing"]),
        "state": EndpointStateCache(shard, name),
        "in_flight": InFlight(100, 10**9, given["stop"]),
        "batches": BatchQueue(given["limits"], given["senders"]),
        "attempts": AttemptLog(shard, name, 0, given["metrics"].webhooks.dropped_attempts.labels(name)),
        "log_fields": {"endpoint": name},
    }
    return Lane(shard=shard, **(made | given))
