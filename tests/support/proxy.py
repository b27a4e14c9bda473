"""A TCP proxy that misbehaves: it cuts connections, stalls, lets bytes through in drips, or loses an answer."""

import contextlib
import enum
import functools
import random
import socket
import threading
import time


class Mode(enum.Enum):
    """What the proxy does with what passes through it."""

    PASS = enum.auto()
    #: Close the connection after a random number of bytes.
    CUT = enum.auto()
    #: Hold everything back.
    STALL = enum.auto()
    #: A few bytes at a time.
    DRIP = enum.auto()


class Proxy:
    """Listens on a free port of loopback and forwards to `port` while the `with` block lasts."""

    def __init__(self, port: int, seed: int = 7) -> None:
        self.mode = Mode.PASS
        self.cuts = 0
        #: The answer to the next request that holds these bytes is lost: the server has it done, and the client sees
        #: its connection close.
        self.loses: bytes | None = None
        #: New connections go to this port.
        self.target = port
        self._chance = random.Random(seed)
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                continue
            lost = threading.Event()
            for source, sink in ((client, server), (server, client)):
                forward = functools.partial(self._forward, asks=source is client)
                threading.Thread(target=forward, args=(source, sink, lost), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, lost: threading.Event, *, asks: bool) -> None:
        left = self._chance.randint(50, 60_000)
        with contextlib.suppress(OSError):
            while not self._closing.is_set() and (data := source.recv(65536)):
                if asks and self.loses is not None and self.loses in data:
                    self.loses = None
                    lost.set()
                elif lost.is_set() and not asks:
                    break
                while self.mode is Mode.STALL and not self._closing.wait(0.01):
                    pass
                if self.mode is Mode.DRIP:
                    for start in range(0, len(data), 512):
                        sink.sendall(data[start : start + 512])
                        time.sleep(0.001)
                elif self.mode is Mode.CUT and len(data) >= left:
                    self.cuts += 1
                    sink.sendall(data[:left])
                    break
                else:
                    sink.sendall(data)
                left -= len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
