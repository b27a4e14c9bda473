"""The servers that the tests run on."""

import os

from sweeperd.store import embedded
from sweeperd.store.embedded import Binary, Server, free_port

__all__ = ["VARIABLE", "Binary", "Server", "binaries", "free_port"]

#: Paths of further redis-server and valkey-server programs, separated as in PATH.
VARIABLE = "SWEEPERD_TEST_SERVERS"


def binaries() -> list[Binary]:
    """The programs at hand and those in SWEEPERD_TEST_SERVERS, one for each version, the newest Redis first."""
    return embedded.binaries([path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path])
