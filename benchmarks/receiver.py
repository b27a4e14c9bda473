"""
Receives webhooks at next to no cost, in its own process: it answers each request with 204 after a fixed time and counts
the ids. It understands only the HTTP that sweeperd sends.
"""

import multiprocessing
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_END, _LENGTH, _ID = b"\r\n\r\n", b"\r\nContent-Length: ", b"\r\nwebhook-id: "
#: Stands in a body once for each event.
_EVENT = b'"event_id":'


@dataclass
class Tally:
    """What came since it was last asked to begin anew. Times are of the monotonic clock, in seconds."""

    requests: int = 0
    #: How many different requests came, by their webhook id.
    distinct: int = 0
    #: The events in these; a body without any counts as one.
    events: int = 0
    #: When the first request came, and when the last one was answered.
    first: float = 0.0
    last: float = 0.0
    #: CPU time of the receiver, seconds.
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Events a second, from the first request to the last answer."""
        return self.events / (self.last - self.first)


class Receiver:
    """Listens on a free port of loopback while the `with` block lasts. `delay`: from request to answer, seconds."""

    def __init__(self, delay: float = 0.02) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_serve, args=(self._listener, delay, theirs), daemon=True)

    def tally(self) -> Tally:
        """What came so far."""
        self._pipe.send("tally")
        tally = self._pipe.recv()
        assert isinstance(tally, Tally)
        return tally

    def begin(self) -> None:
        """Count anew."""
        self._pipe.send("begin")
        self._pipe.recv()

    def __enter__(self) -> "Receiver":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._listener.close()


@dataclass
class _Loop:
    """The receiver's own side."""

    listener: socket.socket
    delay: float
    pipe: Connection
    tally: Tally = field(default_factory=Tally)
    ids: set[bytes] = field(default_factory=set)
    #: What has come over a connection and is no whole request yet.
    begun: dict[int, bytes] = field(default_factory=dict)
    connections: dict[int, socket.socket] = field(default_factory=dict)
    #: When to answer, and whom. All wait for as long, so the first to come is the first to go.
    due: deque[tuple[float, socket.socket]] = field(default_factory=deque)
    cpu_before: float = 0.0

    def run(self) -> None:
        """Serve forever."""
        self.listener.setblocking(False)
        with select.epoll() as events:
            for known in (self.listener, self.pipe):
                events.register(known.fileno(), select.EPOLLIN)
            while True:
                wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
                # epoll itself waits for whole milliseconds, and would answer up to one too late.
                select.select([events], [], [], wait)
                for number, _ in events.poll(0):
                    self._take(number, events)
                now = time.monotonic()
                while self.due and self.due[0][0] <= now:
                    self._answer(self.due.popleft()[1])

    def _take(self, number: int, events: select.epoll) -> None:
        if number == self.listener.fileno():
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[connection.fileno()] = connection
            self.begun[connection.fileno()] = b""
            events.register(connection.fileno(), select.EPOLLIN)
        elif number == self.pipe.fileno():
            self._tell()
        else:
            self._read(number)

    def _read(self, number: int) -> None:
        connection = self.connections[number]
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            del self.connections[number], self.begun[number]
            connection.close()
            return
        data = self.begun[number] + data
        end = data.find(_END)
        at = data.find(_LENGTH, 0, end)
        if end < 0 or len(data) < end + len(_END) + int(data[at + len(_LENGTH) : data.index(b"\r", at + 2)]):
            self.begun[number] = data
            return
        self.begun[number] = b""
        now = time.monotonic()
        self.tally.first = self.tally.first or now
        self.tally.requests += 1
        at = data.index(_ID) + len(_ID)
        webhook_id = data[at : data.index(b"\r", at)]
        if webhook_id not in self.ids:
            self.ids.add(webhook_id)
            self.tally.events += max(1, data.count(_EVENT, end))
        self.due.append((now + self.delay, connection))

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.send(ANSWER)
        except OSError:
            return  # the sender is gone
        self.tally.last = time.monotonic()

    def _tell(self) -> None:
        if self.pipe.recv() == "begin":
            self.ids.clear()
            self.tally = Tally()
            self.cpu_before = time.process_time()
        self.tally.distinct = len(self.ids)
        self.tally.cpu = time.process_time() - self.cpu_before
        self.pipe.send(self.tally)


def _serve(listener: socket.socket, delay: float, pipe: Connection) -> None:
    _Loop(listener, delay, pipe).run()
