"""When an event that was not delivered is sent again, and from which age on it becomes a dead letter."""

from dataclasses import dataclass
from typing import Self

from sweeperd.config import WebhooksSettings
from sweeperd.config.types import milliseconds


def growing_wait(initial: float, longest: float, times: int) -> float:
    """Seconds to wait after so many failures: nothing, `initial`, twice that, ... up to `longest`."""
    if times <= 0:
        return 0.0
    return min(longest, initial * 2.0 ** min(times - 1, 60))


@dataclass(slots=True)
class Redelivery:
    """The waits between the deliveries of one event, and its greatest age. Times in seconds, ages in ms."""

    initial: float
    longest: float
    max_age_ms: int
    #: When the group was made, where it began in the past: an older event counts as if it had been added then.
    counts_from_ms: int = 0

    @classmethod
    def of(cls, settings: WebhooksSettings) -> Self:
        """The waits that the settings ask for."""
        return cls(
            settings.redelivery_initial.total_seconds(),
            settings.redelivery_max.total_seconds(),
            milliseconds(settings.max_age),
        )

    def oldest_ms(self, now_ms: int) -> int:
        """Events that were added before then are too old; 0: none is. `now_ms`: Redis's clock."""
        oldest = now_ms - self.max_age_ms
        return oldest if self.counts_from_ms < oldest else 0

    def wait_ms(self, deliveries: int) -> float:
        """How long an event waits after so many deliveries in vain."""
        return growing_wait(self.initial, self.longest, deliveries) * 1000
