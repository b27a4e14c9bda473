"""Which process this is, as other replicas and operators see it."""

import functools
import os
import secrets
import socket


@functools.cache
def process_name() -> str:
    """
    Host, process id and a random part: `sweeper-1-4711-9f3a61`. Containers on the network of their host have its name,
    and each of them may have the process id 1.
    """
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
