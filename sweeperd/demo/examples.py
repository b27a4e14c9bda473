"""The examples of kinds that `sweeperd demo --kind` shows: what is written, and what should be left at the end."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long an entry of the demo lives, ms.
SHORT, LONG = 1_500, 600_000


@dataclass(frozen=True)
class Example:
    """One example. The steps are what its service does, each with a line for the screen."""

    folder: str
    #: The class of writer.py, made with a client of Redis.
    writer: str
    steps: tuple[tuple[str, Callable[[Any], object]], ...]
    #: The ids that expire.
    expiring: frozenset[str]
    #: What to show before and after: a line for the screen -> how to read it, and what it should be at the end.
    books: Mapping[str, tuple[Callable[[Any], object], object]]

    @property
    def directory(self) -> Path:
        """Where its files are: in the package, or next to it in a checkout. Raises FileNotFoundError."""
        package = Path(__file__).parents[1]
        for folder in (package / "examples" / self.folder, package.parent / "examples" / self.folder):
            if (folder / "config.toml").is_file():
                return folder
        raise FileNotFoundError(f"the files of the example are missing: examples/{self.folder} of the sources")

    def service(self, client: Any) -> Any:
        """The writer of the example."""
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
