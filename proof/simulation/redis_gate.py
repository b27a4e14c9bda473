"""
The servers of the simulation: fakeredis behind a gate that every command passes, alone and in order.

A command that was sent is run by the server after a delay, whatever becomes of the client meanwhile; the reply wakes
the client. The gate may cut a connection before a command is run or after it (the reply is lost), refuse a command, or
stand still. A blocking read waits in virtual time. The simulation cannot show what fakeredis does otherwise than Redis.
"""

import copy
import hashlib
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
from fakeredis import FakeRedisConnection, FakeServer
from fakeredis._helpers import SimpleError
from fakeredis._socket import FakeSocket
from hiredis import Reader

from proof.simulation import kernel as kernels
from proof.simulation.kernel import Host
from proof.simulation.replay import Recorder

#: A command takes the server so long, and the way there takes up to so long, seconds.
WORK, WAY = 30e-6, 600e-6
#: Lua's garbage is collected once in so many scripts.
COLLECT_EVERY = 500
#: How much of each argument the trace shows, bytes.
SHOWN = 160

Command = list[bytes]


def error(text: str) -> Exception:
    """The error reply as redis-py raises it."""
    parser: Any = redis.connection.DefaultParser(socket_read_size=1024)
    found: Exception = parser.parse_error(text)
    return found


class Refusals:
    """What the gate refuses at the moment: command -> the error's text. `scripts`: the same by the script's name."""

    def __init__(self) -> None:
        self.commands: dict[bytes, str] = {}
        self.scripts: dict[str, str] = {}


class SimulatedServer:
    """One Redis."""

    def __init__(self, name: str, seed: int, names: dict[bytes, str]) -> None:
        self.name = name
        self.random = random.Random(f"{seed} {name}")
        self.fake = FakeServer(version=(7, 0))
        self.connections: list[Connection] = []
        self.blocked: list[Connection] = []
        self.run_id = 1
        #: How much the server's clock is ahead, seconds.
        self.skew = 0.0
        #: How likely a connection is cut before a command is run, and after it.
        self.cut_before = self.cut_after = 0.0
        #: Until then no connection can be made, and until then no command is run; monotonic.
        self.down_until = self.stands_until = 0.0
        self.refusals = Refusals()
        #: SHA1 -> name of the script.
        self.names = names
        #: Called after each command that may have written.
        self.observers: list[Callable[[SimulatedServer], None]] = []
        self.commands = 0
        #: The data that a fail-over will put back.
        self.copied: Any = None
        self.trace = Trace()
        #: Every command and its reply, if wanted.
        self.recorder: Recorder | None = None

    @property
    def data(self) -> Any:
        """The keys."""
        kernels.KERNEL.server_skew = self.skew
        return self.fake.dbs[0]

    def value(self, key: bytes) -> Any:
        """The value of a key, None if there is no key."""
        item = self.data.get(key)
        return None if item is None else item.value

    def cut_all(self) -> None:
        """As a restart, or a proxy that ends: every connection ends."""
        for connection in list(self.connections):
            connection.cut()

    def forget(self, host: Host) -> None:
        """A process has died: its connections end."""
        for connection in list(self.connections):
            if connection.owner is host:
                connection.disconnect()

    def flush_scripts(self) -> None:
        """As SCRIPT FLUSH."""
        self.fake.script_cache.clear()
        self._record("flush")

    def _record(self, event: str) -> None:
        if self.recorder:
            self.recorder.event(kernels.KERNEL.server_time(), self.name, event)

    def copy_data(self) -> Any:
        """All data, as a replica has them."""
        self._record("copy")
        return {key: (copy.deepcopy(item.value), item.expireat) for key, item in self.data.items()}

    def fail_over(self, data: Any) -> None:
        """The replica with this data becomes the server: what was written since the copy is lost."""
        self.data._dict.clear()
        self.data._expiry_heap.clear()
        from fakeredis._core._database import Item  # noqa: PLC0415 - fakeredis has no public way

        for key, (value, expireat) in data.items():
            item = Item(value)
            item.expireat = expireat
            self.data[key] = item
        self._record("fail-over")
        self.run_id += 1
        self.flush_scripts()
        self.cut_all()

    def refusal(self, command: Command) -> str:
        """Why the gate refuses this command; empty if it does not."""
        name = command[0].upper()
        if name in (b"EVALSHA", b"EVAL") and self.refusals.scripts:
            sha = command[1].lower() if name == b"EVALSHA" else hashlib.sha1(command[1]).hexdigest().encode()
            if text := self.refusals.scripts.get(self.names.get(sha, "")):
                return text
        return self.refusals.commands.get(name, "")

    def after(self, command: Command) -> None:
        """A command has been run: wake blocked readers, tell the observers."""
        if command[0].upper() in (b"EVALSHA", b"EVAL", b"XADD", b"XGROUP", b"DEL", b"XTRIM", b"XACK"):
            for observe in self.observers:
                observe(self)
            for connection in self.blocked[:]:
                connection.try_again()


class Trace:
    """The commands of a run: a digest of all, the last ones as text, and a file if wanted."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.last: deque[str] = deque(maxlen=40)
        self.file: Any = None

    def add(self, line: str) -> None:
        self.digest.update(line.encode() + b"\n")
        self.last.append(line)
        if self.file:
            self.file.write(line + "\n")


def shown(command: Command, names: dict[bytes, str]) -> str:
    """A command in one line."""
    words = list(command)
    if words[0].upper() == b"EVALSHA" and words[1].lower() in names:
        words[1] = names[words[1].lower()].encode()
    elif words[0].upper() == b"EVAL":
        words[1] = names.get(hashlib.sha1(words[1]).hexdigest().encode(), "?").encode()
    return b" ".join(word[:SHOWN] for word in words).decode("ascii", "backslashreplace").replace("\n", "\\n")


class GateSocket(FakeSocket):
    """fakeredis's side of a connection, which keeps each reply for the gate."""

    def put_response(self, msg: Any) -> None:
        self.last_reply = msg

    def _lua_redis_pcall(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        """The error as text, as every Redis gives it; fakeredis gives an object of Python."""
        try:
            return self._lua_redis_call(lua_runtime, expected_globals, op, *args)
        except SimpleError as error:
            return lua_runtime.table_from({b"err": error.value.encode()})


class Connection(FakeRedisConnection):
    """redis-py's side of a connection: what was sent waits in `queue`, what was answered in `replies`."""

    numbers = 0

    def __init__(self, *args: Any, simulated: SimulatedServer, **kwargs: Any) -> None:
        super().__init__(*args, server=simulated.fake, **kwargs)
        self.simulated = simulated
        Connection.numbers += 1
        #: redis-py keeps connections in sets: their order must not depend on addresses.
        self.number = Connection.numbers
        current = kernels.KERNEL.current
        self.owner: Host = current.host if current else kernels.KERNEL.world
        self.queue: deque[Command] = deque()
        self.replies: deque[Any] = deque()
        self.broken = False
        self.reading: Any = None
        self.blocked_until: float | None = None
        self.reader = Reader()
        #: What a blocked read saw of its stream when it last looked.
        self.seen: Any = ()
        #: Counts the sockets: a server event for an earlier one is void.
        self.epoch = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __del__(self) -> None:
        """Nothing: when Python collects a connection must not matter."""

    def _connect(self) -> Any:
        kernels.KERNEL.pause(self.simulated.random.uniform(0, WAY))
        if kernels.KERNEL.now < self.simulated.down_until:
            raise redis.ConnectionError("Connection refused.")
        self.queue.clear()
        self.replies.clear()
        self.reader = Reader()
        self.broken, self.blocked_until = False, None
        self.epoch += 1
        self.simulated.connections.append(self)
        return GateSocket(self.simulated.fake, db=self.db, client_class=redis.Redis, client_info=self._client_info)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """What was sent already is run or lost, as the seed says. A blocking read does not block."""
        sock = self._sock
        if sock is None:
            return
        self._sock = None
        if sock is not None and self in self.simulated.connections:
            self.simulated.connections.remove(self)
        if self in self.simulated.blocked:
            self.simulated.blocked.remove(self)
        waiting, self.queue = self.queue, deque()
        while waiting and self.blocked_until is None and not self.broken and self.simulated.random.random() < 0.5:
            command = waiting.popleft()
            self._run(sock, command if _block_ms(command) is None else _without_block(command))
        self.replies.clear()
        self.blocked_until = None
        self.epoch += 1

    def cut(self) -> None:
        """The connection ends: the client notices at its next step, the server does no more for it."""
        self.broken = True
        self.queue.clear()
        if self in self.simulated.connections:
            self.simulated.connections.remove(self)
        if self in self.simulated.blocked:
            self.simulated.blocked.remove(self)
        self.blocked_until = None
        self._wake()

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            self.connect_check_health(check_health=False)
        if self.broken:
            self.disconnect()
            raise redis.ConnectionError("Connection reset by peer")
        for part in [command] if isinstance(command, bytes) else command:
            self.reader.feed(part)
        idle = not self.queue
        while (sent := self.reader.gets()) is not False:
            self.queue.append([word if isinstance(word, bytes) else str(word).encode() for word in sent])
        if idle and self.blocked_until is None:
            self._schedule(self.simulated.random.uniform(0, WAY))

    def can_read(self, timeout: float | None = 0) -> bool:
        return self.broken or bool(self.replies)

    def read_response(self, disable_decoding: bool = False, **kwargs: Any) -> Any:
        kernel = kernels.KERNEL
        limit = kwargs.get("timeout") or self.socket_timeout
        end = None if limit is None else kernel.now + float(limit)
        while not self.replies:
            if not self._sock:
                raise redis.ConnectionError("Connection closed by server.")
            if self.broken:
                self.disconnect()
                raise redis.ConnectionError("Connection closed by server.")
            if end is not None and kernel.now >= end:
                self.disconnect()
                raise redis.TimeoutError(f"Timeout reading from {self.simulated.name}")
            self.reading = kernel.current
            kernel.pause(None if end is None else end - kernel.now)
            self.reading = None
        reply = self.replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply if disable_decoding else self._decode(reply)

    def try_again(self) -> None:
        """A blocked read looks again."""
        if self.queue and self.blocked_until is not None:
            command = self.queue[0]
            stream = self.simulated.value(command[command.index(b"STREAMS") + 1])
            seen = None if stream is None else (stream.last_id, len(stream._groups))
            if seen == self.seen and kernels.KERNEL.now < self.blocked_until:
                return
            self.seen = seen
            reply = self._answer(self._sock, _without_block(command))
            if reply or kernels.KERNEL.now >= self.blocked_until:
                self.queue.popleft()
                self.blocked_until = None
                self.simulated.blocked.remove(self)
                self._trace(command)
                self._deliver(reply)
                if self.queue:
                    self._schedule(WORK)

    def _schedule(self, seconds: float) -> None:
        epoch = self.epoch
        kernels.KERNEL.after(seconds, lambda: self._serve() if self.epoch == epoch and not self.broken else None)

    def _serve(self) -> None:
        """The server takes the next command of this connection."""
        kernel, server = kernels.KERNEL, self.simulated
        if not self.queue or self.blocked_until is not None:
            return
        if kernel.now < server.stands_until:
            self._schedule(server.stands_until - kernel.now + server.random.uniform(0, WAY))
            return
        if server.cut_before and server.random.random() < server.cut_before:
            self.cut()
            return
        command = self.queue[0]
        if (block := _block_ms(command)) is not None:
            self.blocked_until = kernel.now + block / 1000
            self.seen = ()
            server.blocked.append(self)
            epoch = self.epoch
            kernel.at(self.blocked_until, lambda: self.try_again() if self.epoch == epoch else None)
            self.try_again()
            return
        self.queue.popleft()
        reply = self._run(self._sock, command)
        if server.cut_after and server.random.random() < server.cut_after:
            self.cut()
            return
        self._deliver(reply)
        if self.queue:
            self._schedule(WORK)

    def _run(self, sock: Any, command: Command) -> Any:
        """In the hub's time, and without a switch to another thread."""
        kernel = kernels.KERNEL
        current, kernel.current = kernel.current, None
        try:
            return self._run_now(sock, command)
        finally:
            kernel.current = current

    def _run_now(self, sock: Any, command: Command) -> Any:
        self._trace(command)
        if refused := self.simulated.refusal(command):
            return error(refused)
        reply = self._answer(sock, command)
        self.simulated.after(command)
        return reply

    def _answer(self, sock: Any, command: Command) -> Any:
        kernels.KERNEL.server_skew = self.simulated.skew
        if command[0].upper() == b"INFO":
            return b"# Server\r\nredis_version:7.0.0\r\nrun_id:%040d\r\n" % self.simulated.run_id
        sock.last_reply = None
        sock._process_command(list(command))
        if recorder := self.simulated.recorder:
            at = kernels.KERNEL.server_time()
            recorder.command(at, self.simulated.name, self.number, command, sock.last_reply)
        return sock.last_reply

    def _deliver(self, reply: Any) -> None:
        self.replies.append(reply)
        self._wake()

    def _wake(self) -> None:
        if self.reading is not None:
            kernels.KERNEL.wake(self.reading)

    def _trace(self, command: Command) -> None:
        server = self.simulated
        server.commands += 1
        line = f"{kernels.KERNEL.now:.6f} {server.name} {self.owner.name}#{self.number} {shown(command, server.names)}"
        server.trace.add(line)


def _block_ms(command: Command) -> int | None:
    """How long a read blocks, ms; None if it does not."""
    if command[0].upper() not in (b"XREAD", b"XREADGROUP"):
        return None
    words = [word.upper() for word in command[: command.index(b"STREAMS")]]
    return int(command[words.index(b"BLOCK") + 1]) if b"BLOCK" in words else None


def _without_block(command: Command) -> Command:
    words = [word.upper() for word in command[: command.index(b"STREAMS")]]
    place = words.index(b"BLOCK")
    return [*command[:place], *command[place + 2 :]]


class LuaRuntime:
    """fakeredis's Lua, with each script compiled once, and without a collection of garbage after each call."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._compiled: dict[Any, Any] = {}
        self._calls = 0

    def execute(self, script: Any) -> Any:
        if script == "collectgarbage()":
            self._calls += 1
            return self._real.execute(script) if self._calls % COLLECT_EVERY == 0 else None
        if script not in self._compiled:
            self._compiled[script] = self._real.compile(script)
        return self._compiled[script]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def connector(servers: dict[int, SimulatedServer]) -> Callable[..., redis.Redis]:
    """In place of `sweeperd.store.connect.connect`: the server is chosen by the port of the address."""

    def connect(
        _address: Any, url: str, _key: bytes, options: Mapping[str, Any], on_connect: Callable[[Any], None]
    ) -> redis.Redis:
        pool: Any = redis.ConnectionPool(
            connection_class=Connection,
            simulated=servers[urlsplit(url).port or 0],
            redis_connect_func=on_connect,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            **{**options, "client_name": None, "driver_info": None},
        )
        return redis.Redis(connection_pool=pool)

    return connect
