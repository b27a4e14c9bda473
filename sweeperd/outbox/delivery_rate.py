"""Measures how many events one process delivers to an endpoint each second."""

from collections import deque

#: The longest window, seconds, and the number of events that allows a shorter one.
WINDOW, COUNTED = 60.0, 2000
#: The shortest window that gives a rate, seconds.
SHORTEST = 0.5


class DeliveryRate:
    """The rate over a sliding window. One thread adds samples, others may read the rate."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        #: Events per second, and the window in seconds. A window of 0.0 means that the rate is not known yet.
        self.per_second, self.window_seconds = 0.0, 0.0

    def add(self, now: float, delivered: int) -> None:
        """Events delivered so far at the monotonic time `now`. The window is WINDOW seconds or COUNTED events long."""
        samples = self._samples
        samples.append((now, delivered))
        while len(samples) > 2 and (now - samples[1][0] >= WINDOW or delivered - samples[1][1] >= COUNTED):
            samples.popleft()
        since, before = samples[0]
        if (window := now - since) >= SHORTEST:
            self.per_second, self.window_seconds = round((delivered - before) / window, 2), round(window, 3)
