"""The fixtures of a delivery in the test's own process."""

from tests.support.deliveries import deliver

__all__ = ["deliver"]
