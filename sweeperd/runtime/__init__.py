"""What runs: the service, the daemon, one pass for cron, and their background tasks."""
