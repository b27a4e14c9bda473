"""Serves metrics, health and the status page over HTTP."""
