"""From the outbox to the receivers, over HTTP."""
