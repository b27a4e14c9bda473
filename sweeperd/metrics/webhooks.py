"""The metrics of the delivery."""

import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Seconds. One request.
WEBHOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: The states of an endpoint, the worst last.
ENDPOINT_STATES = ("delivering", "open", "paused")


class WebhookMetrics:
    """Of all endpoints. Not `lasting`: of a run that ends."""

    def __init__(self, registry: CollectorRegistry, *, lasting: bool) -> None:
        self._lock = threading.Lock()
        #: Endpoint -> shard -> events not acknowledged yet, age of the oldest.
        self._waiting: dict[str, dict[str, tuple[int, float]]] = {}
        #: Endpoint -> shard -> its state there.
        self._states: dict[str, dict[str, str]] = {}
        self.attempts = Counter(
            "sweeperd_webhook_attempts_total", "Webhook requests by result", ["endpoint", "result"], registry=registry
        )
        self.events = Counter(
            "sweeperd_webhook_events_total",
            "Events sent, by the result of their request after its quick retries",
            ["endpoint", "result"],
            registry=registry,
        )
        self.duration = Histogram(
            "sweeperd_webhook_duration_seconds",
            "How long a webhook request took",
            ["endpoint"],
            buckets=WEBHOOK_BUCKETS,
            registry=registry,
        )
        self.pending = Gauge(
            "sweeperd_webhook_pending_events",
            "Events that are to be sent",
            ["endpoint"],
            registry=registry,
        )
        self.oldest_pending = Gauge(
            "sweeperd_webhook_oldest_pending_seconds",
            "Age of the oldest event that is to be sent",
            ["endpoint"],
            registry=registry,
        )
        self._endpoint_state = Gauge(
            "sweeperd_endpoint_state",
            "1 for the state that an endpoint is in, for this process, else 0; of several shards the worst",
            ["endpoint", "state"],
            registry=registry if lasting else None,
        )
        self.dead_letters = Counter(
            "sweeperd_webhook_dead_letters_total", "Deliveries given up on", ["endpoint"], registry=registry
        )
        self.groups_remade = Counter(
            "sweeperd_groups_remade_total",
            "Consumer groups that were lost and made again at their position",
            ["shard"],
            registry=registry,
        )
        self.dropped_attempts = Counter(
            "sweeperd_webhook_dropped_attempts_total",
            "Attempts that are missing in the log of attempts, because Redis refused them or they were too many",
            ["endpoint"],
            registry=registry,
        )

        self.rate_waits = Counter(
            "sweeperd_webhook_rate_waits_total", "Requests that waited for max_rate", ["endpoint"], registry=registry
        )
        self.sweep_waits = Counter(
            "sweeperd_webhook_sweep_waits_total",
            "Events that waited for their turn beside a sweep of the same process",
            ["endpoint"],
            registry=registry,
        )

    def announce(self, endpoint: str) -> None:
        """Show an endpoint's series at 0 from the start."""
        for result in ("delivered", "rejected", "failed"):
            self.attempts.labels(endpoint, result)
            self.events.labels(endpoint, result)
        self.duration.labels(endpoint)
        self.dead_letters.labels(endpoint)
        self.rate_waits.labels(endpoint)
        self.sweep_waits.labels(endpoint)
        self.dropped_attempts.labels(endpoint)

    def waiting(self, shard: str, endpoint: str, events: int, oldest_seconds: float) -> None:
        """
        What waits for an endpoint on one shard. Its gauges show the sum and the oldest of all shards; one that cannot
        be measured now counts as it was last seen.
        """
        with self._lock:
            on_shards = self._waiting.setdefault(endpoint, {})
            on_shards[shard] = events, oldest_seconds
            self._show_waiting(endpoint, on_shards)

    def endpoint_state(self, shard: str, endpoint: str, state: str) -> None:
        """The state of an endpoint on one shard, one of ENDPOINT_STATES."""
        with self._lock:
            on_shards = self._states.setdefault(endpoint, {})
            on_shards[shard] = state
            self._show_state(endpoint, on_shards)

    def forget(self, endpoint: str) -> None:
        """An endpoint that is configured no more has nothing that waits; its counters stay where they are."""
        with self._lock:
            if self._waiting.pop(endpoint, None) is not None:
                self.pending.remove(endpoint)
                self.oldest_pending.remove(endpoint)
            if self._states.pop(endpoint, None) is not None:
                for state in ENDPOINT_STATES:
                    self._endpoint_state.remove(endpoint, state)

    def forget_shard(self, shard: str) -> None:
        """The same for a shard: what waits there counts no more."""
        with self._lock:
            for endpoint, on_shards in self._waiting.items():
                if on_shards.pop(shard, None) is not None:
                    self._show_waiting(endpoint, on_shards)
            for endpoint, states in self._states.items():
                if states.pop(shard, None) is not None:
                    self._show_state(endpoint, states)

    def _show_state(self, endpoint: str, on_shards: dict[str, str]) -> None:
        worst = max(on_shards.values(), key=ENDPOINT_STATES.index, default="")
        for state in ENDPOINT_STATES:
            self._endpoint_state.labels(endpoint, state).set(state == worst)

    def _show_waiting(self, endpoint: str, on_shards: dict[str, tuple[int, float]]) -> None:
        self.pending.labels(endpoint).set(sum(count for count, _ in on_shards.values()))
        self.oldest_pending.labels(endpoint).set(max((oldest for _, oldest in on_shards.values()), default=0))
