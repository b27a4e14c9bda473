"""sweeperd: expires overdue reservations in Redis exactly once, and never loses the event."""

__version__ = "0.1.0"
