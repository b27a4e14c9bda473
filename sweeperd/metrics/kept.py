"""A counter whose values are kept in Redis."""

import threading
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily


class KeptCounter:
    """A counter whose values are kept in Redis: a command of an operator ends, and its own counters with it."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self.labels = labels
        self._family = name, documentation
        self._lock = threading.Lock()
        #: Shard -> value by the second label.
        self._values: dict[str, dict[str, int]] = {}

    def set(self, shard: str, values: dict[str, int]) -> None:
        """The values of one shard, as Redis has them."""
        with self._lock:
            self._values[shard] = dict(values)

    def forget(self, shard: str) -> None:
        """A shard that is configured no more."""
        with self._lock:
            self._values.pop(shard, None)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For the registry."""
        family = CounterMetricFamily(*self._family, labels=self.labels)
        with self._lock:
            for shard, values in self._values.items():
                for label, value in values.items():
                    family.add_metric([shard, label], value)
        yield family
