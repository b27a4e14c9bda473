"""Which process this is, as other replicas and operators see it."""

import os
import socket


def process_name() -> str:
    """Host and process id: `sweeper-1-4711`."""
    return f"{socket.gethostname()}-{os.getpid()}"
