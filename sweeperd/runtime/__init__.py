"""Runs sweeps and deliveries: as a daemon, or once for cron."""
