"""The limits of an endpoint's batches, as its settings have them by default."""

from sweeperd.delivery.batches import BatchLimits


def batch_limits(events: int = 1, size: int = 1024 * 1024, wait: float = 0.05) -> BatchLimits:
    return BatchLimits(events, size, wait)
