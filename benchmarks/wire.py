"""Talks to Redis over a bare socket as fast as possible: requests are encoded beforehand, replies only counted."""

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from sweeperd.store.scripts import Call, Script

#: The longest wait for a reply, seconds.
PATIENCE = 60.0


def encode(*words: bytes | str | int) -> bytes:
    """One command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def encode_calls(script: Script, calls: Iterable[Call]) -> bytes:
    """Runs of a script that the server knows."""
    return b"".join(encode("EVALSHA", script.sha, len(call.keys), *call.keys, *call.args) for call in calls)


class Wire:
    """A connection. Replies are counted by a marker that each of them holds once."""

    def __init__(self, url: str, marker: bytes) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._marker = marker
        self._rest = b""
        #: The replies so far.
        self.counted = 0

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def await_replies(self, count: int) -> None:
        """
        Wait until this many replies have come since it was opened. Raises RuntimeError at an error, TimeoutError at
        silence.
        """
        while self.counted < count:
            received = self._socket.recv(1 << 16)
            if not received:
                raise RuntimeError("Redis closed the connection")
            if received.startswith(b"-") or b"\r\n-" in received:
                raise RuntimeError(f"Redis refused: {received[received.index(b'-') :][:200]!r}")
            text = self._rest + received
            self.counted += text.count(self._marker)
            # A marker may come in two pieces; what is kept is too short to hold a whole one, which would count twice.
            self._rest = text[max(0, len(text) - len(self._marker) + 1) :]

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
