"""The other end of NOTIFY_SOCKET: what a service manager hears."""

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

#: A message, as its lines: `{"READY": "1", "STATUS": "..."}`.
Message = dict[str, str]


class Manager:
    """A socket that hears; `address` is what NOTIFY_SOCKET has to be."""

    def __init__(self, ear: socket.socket, address: str) -> None:
        self._ear = ear
        self.address = address
        self.heard: list[Message] = []

    def listen(self) -> list[Message]:
        """Take what has been said by now; returns everything that has ever been said."""
        self._ear.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(dict(line.split("=", 1) for line in self._ear.recv(65536).decode().splitlines()))
        return self.heard

    def said(self, name: str) -> list[str]:
        """All values of this variable, in order."""
        return [message[name] for message in self.listen() if name in message]


@contextlib.contextmanager
def manager(directory: Path, *, abstract: bool = False) -> Iterator[Manager]:
    """Listens while the block lasts."""
    name = f"sweeperd-{secrets.token_hex(8)}" if abstract else str(directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind("\0" + name if abstract else name)
        yield Manager(ear, "@" + name if abstract else name)
