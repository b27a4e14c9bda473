"""How fast one process delivers to one endpoint: a rate over a stated window, from samples with times."""

from collections import deque

#: The longest window, seconds, and how many events are enough for a shorter one.
WINDOW, COUNTED = 60.0, 2000
#: A window that is shorter says nothing, seconds.
SHORTEST = 0.5


class DeliveryRate:
    """
    The samples of one endpoint in one process: a time (monotonic, seconds) and how many events were delivered until
    then. One thread adds them, others may read the rate.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        #: Events per second, and over how many seconds. 0.0 seconds: it is not known yet.
        self.per_second, self.window_seconds = 0.0, 0.0

    def add(self, now: float, delivered: int) -> None:
        """
        One more sample. From then on the rate is over the last WINDOW seconds, or over the last COUNTED events where
        these took less time.
        """
        samples = self._samples
        samples.append((now, delivered))
        while len(samples) > 2 and (now - samples[1][0] >= WINDOW or delivered - samples[1][1] >= COUNTED):
            samples.popleft()
        since, before = samples[0]
        if (window := now - since) >= SHORTEST:
            self.per_second, self.window_seconds = round((delivered - before) / window, 2), round(window, 3)
