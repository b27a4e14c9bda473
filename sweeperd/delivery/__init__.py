"""Delivers events from the outbox to the receivers over HTTP."""
