"""Servers that answer with bytes which no HTTP library would write."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """
    A server that has each connection served in a thread of its own, until the other side ends it. Yields its URL.
    """

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection)
            except OSError:
                return  # the sender had enough

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=run, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def raw_server(*answers: bytes) -> Iterator[tuple[str, list[socket.socket]]]:
    """
    A server that gives these answers byte for byte, the last of them again and again. Yields its URL and the
    connections that were made to it.
    """
    connections: list[socket.socket] = []
    left = list(answers)

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        with connection.makefile("rb") as lines:
            while line := lines.readline():
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    line = lines.readline()
                lines.read(length)
                connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    with listening(serve) as url:
        yield url, connections
