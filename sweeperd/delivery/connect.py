"""Opens TCP connections to receivers by name: resolving and connecting share one deadline."""

import contextlib
import errno
import ipaddress
import itertools
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3.util.connection

#: How long one address may take before the next one is tried as well, seconds (RFC 8305), and the least.
STAGGER, LEAST_STAGGER = 0.25, 0.01
#: How many addresses of a name are tried at most: each takes a file descriptor, and the name's owner sets the number.
MOST_ADDRESSES = 32
#: How many names are resolved at a time, each in its own thread.
MOST_LOOKUPS = 32
#: How long a result is kept that came after everybody had given up, seconds.
LATE_RESULT_KEPT = 60.0

#: What socket.getaddrinfo returns: family, type, protocol, canonical name, address.
Address = tuple[int, int, int, str, Any]


class OutOfTime(TimeoutError):
    """A deadline has passed. The text names the phase, for the reason of an attempt."""


def open_socket(host: str, port: int, options: Iterable[tuple[Any, ...]], deadline: float) -> socket.socket:
    """
    A connection whose time-out is what is left until the deadline (monotonic). `options`: for `setsockopt`. Raises
    OutOfTime, OSError, UnicodeError if no name server could know the name.
    """
    sock = connect_to(RESOLVER.resolve(host, port, deadline), options, deadline)
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    return sock


@dataclass(slots=True, eq=False)
class _Lookup:
    """A call of getaddrinfo. `result` None: it runs."""

    waiting: int = 0
    result: Sequence[Address] | Exception | None = None
    ended_at: float = math.inf


class Resolver:
    """
    Resolves names in helper threads: getaddrinfo cannot be interrupted, and a name server may take longer than a
    delivery. Callers that ask for the same name share a thread. A result that comes after the last caller gave up is
    kept for a minute, so a delivery succeeds however long the name server takes. Threads may share a resolver.
    """

    def __init__(self, most: int = MOST_LOOKUPS) -> None:
        self._most = most
        self._running = 0
        self._lookups: dict[tuple[str, int], _Lookup] = {}
        self._changed = threading.Condition()

    def resolve(self, host: str, port: int, deadline: float) -> Sequence[Address]:
        """Raises OutOfTime, OSError, UnicodeError."""
        family = urllib3.util.connection.allowed_gai_family()
        if _is_address(host):
            return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        with self._changed:
            if not self._wait(lambda: self._known(host, port) is not None or self._running < self._most, deadline):
                raise OutOfTime(f"the host's name was not resolved in time: {self._most} other lookups are stuck")
            lookup = self._known(host, port) or self._begin(host, port, family)
            lookup.waiting += 1
            ended = self._wait(lambda: lookup.result is not None, deadline)
            lookup.waiting -= 1
        if not ended:
            raise OutOfTime("the host's name was not resolved in time")
        if isinstance(lookup.result, Exception):
            raise lookup.result
        return lookup.result or []

    def _known(self, host: str, port: int) -> _Lookup | None:
        """The lookup that runs, or whose result is kept."""
        lookup = self._lookups.get((host, port))
        return lookup if lookup and time.monotonic() - lookup.ended_at < LATE_RESULT_KEPT else None

    def _begin(self, host: str, port: int, family: int) -> _Lookup:
        lookup = _Lookup()
        thread = threading.Thread(target=self._run, args=(lookup, host, port, family), name="resolve", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread could be started to resolve the host's name") from error
        self._lookups[host, port] = lookup
        self._running += 1
        return lookup

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        return self._changed.wait_for(condition, max(0.0, deadline - time.monotonic()))

    def _run(self, lookup: _Lookup, host: str, port: int, family: int) -> None:
        result: Sequence[Address] | Exception
        try:
            result = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        except Exception as error:  # raised again in the threads that wait for it
            result = error
        with self._changed:
            lookup.result, lookup.ended_at = result, time.monotonic()
            self._running -= 1
            if lookup.waiting or isinstance(result, Exception):
                del self._lookups[host, port]
            self._changed.notify_all()


RESOLVER = Resolver()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def connect_to(addresses: Sequence[Address], options: Iterable[tuple[Any, ...]], deadline: float) -> socket.socket:
    """
    A connection to the address that takes one first. Each address is tried a moment after the one before, or as soon as
    that one has failed, and the earlier ones go on meanwhile (RFC 8305): a dead address costs a moment and no attempt.
    Raises OutOfTime, OSError.
    """
    left = deque(_by_turns(addresses)[:MOST_ADDRESSES])
    pause = (deadline - time.monotonic()) / (len(left) + 1)
    pause = max(LEAST_STAGGER, min(pause, STAGGER))
    trying: dict[int, socket.socket] = {}
    poll = select.poll()
    next_at = 0.0
    error = OSError(errno.EADDRNOTAVAIL, "the host's name has no address")
    try:
        while left or trying:
            now = time.monotonic()
            if now >= deadline:
                raise OutOfTime("no connection in time")
            if left and now >= next_at:
                next_at = now + pause
                try:
                    sock = _begin(left.popleft(), options)
                except OSError as refused:
                    error, next_at = refused, now
                    continue
                trying[sock.fileno()] = sock
                poll.register(sock, select.POLLOUT)
            until = min(deadline, next_at) if left else deadline
            for number, _ in poll.poll(max(0, math.ceil((until - time.monotonic()) * 1000))):
                poll.unregister(number)
                sock = trying.pop(number)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    return sock
                sock.close()
                error, next_at = OSError(code, os.strerror(code)), 0.0
        raise error
    finally:
        for sock in trying.values():
            sock.close()


def _by_turns(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 by turns, beginning with the family that the system prefers."""
    preferred = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    return [one for pair in itertools.zip_longest(preferred, others) for one in pair if one is not None]


def _begin(address: Address, options: Iterable[tuple[Any, ...]]) -> socket.socket:
    """A socket that connects. Raises OSError."""
    family, kind, protocol, _, place = address
    sock = socket.socket(family, kind, protocol)
    try:
        for option in options:
            sock.setsockopt(*option)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock
