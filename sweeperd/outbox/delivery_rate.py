"""Measures how many events one process delivers to an endpoint each second."""

from collections import deque

#: The longest window, seconds, and how many events are enough for a shorter window.
WINDOW, COUNTED = 60.0, 2000
#: If a window is shorter, seconds, there is no rate.
SHORTEST = 0.5


class DeliveryRate:
    """
    The samples of one endpoint in one process: a time (monotonic, seconds) and how many events were delivered so far.
    A single thread adds samples, others may read the rate.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        #: Events per second, and over how many seconds. 0.0 seconds: not known yet.
        self.per_second, self.window_seconds = 0.0, 0.0

    def add(self, now: float, delivered: int) -> None:
        """
        Add a sample. The rate is then over the last WINDOW seconds, or over the last COUNTED events if these took less
        time.
        """
        samples = self._samples
        samples.append((now, delivered))
        while len(samples) > 2 and (now - samples[1][0] >= WINDOW or delivered - samples[1][1] >= COUNTED):
            samples.popleft()
        since, before = samples[0]
        if (window := now - since) >= SHORTEST:
            self.per_second, self.window_seconds = round((delivered - before) / window, 2), round(window, 3)
