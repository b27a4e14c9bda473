"""Demonstrates sweeperd: tenants forget their reservations, and the real daemon returns the budget."""

import base64
import contextlib
import logging
import os
import queue
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import redis

from sweeperd import __version__
from sweeperd.config import Settings
from sweeperd.demo.books import Evidence, conclude
from sweeperd.demo.engine import interrupted, perform
from sweeperd.demo.screen import Screen, give_up
from sweeperd.demo.story import BUDGETS, DUE, EXPIRED, PLANS, WEBHOOK, News, Play, unit
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Ledger
from sweeperd.logs import CHATTY, TextFormatter
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.store.embedded import any_redis
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Outcome


class DaemonLog(logging.Handler):
    """Captures the daemon's log: turns decisions into news, and keeps warnings and errors."""

    def __init__(self, news: "queue.SimpleQueue[News]") -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self._news = news
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the daemon's threads."""
        about = vars(record)
        match about.get("outcome"):
            case Outcome.IN_GRACE:
                for told in about["reservations"]:
                    self._news.put(News(DUE, told["reservation_id"]))
            case Outcome.EXPIRED:
                for told in about.get("reservations", [about]):
                    self._news.put(News(EXPIRED, told["reservation_id"], told["lag_ms"]))
            case _ if record.levelno >= logging.ERROR:
                self.errors.append(self.format(record))
            case _ if record.levelno >= logging.WARNING:
                self.warnings.append(self.format(record))

    def __enter__(self) -> "DaemonLog":
        root, ours = logging.getLogger(), logging.getLogger("sweeperd")
        self._before = root.handlers[:], ours.level
        root.handlers[:] = [self]
        ours.setLevel(logging.DEBUG)  # entries in grace are logged at this level
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().handlers[:], level = self._before
        logging.getLogger("sweeperd").setLevel(level)


def run_demo(echo: Callable[[str], None]) -> int:
    """Run the demo within half a minute. Returns the exit code, 0 if all books balance."""
    screen = Screen(echo)
    try:
        from sweeperd.demo.receiver import Receiver  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        return give_up(echo, f"the demo needs the package {error.name}: pip install 'sweeperd[demo]'")
    _introduce(screen)
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    with stop_on_signals(last=True, again=False) as stop, contextlib.ExitStack() as stack:
        try:
            server, url = stack.enter_context(any_redis())
        except RuntimeError as error:
            return give_up(echo, str(error))
        receiver = stack.enter_context(Receiver(secret, lambda name: news.put(News(WEBHOOK, name))))
        log = stack.enter_context(DaemonLog(news))
        stack.enter_context(_no_proxy())
        settings = _settings(url, receiver.url, secret)
        shard = stack.enter_context(contextlib.closing(Shard(settings.redis)))
        names = iter([plan.name.encode() for plan in PLANS])  # readable, unlike uuids
        ledger = Ledger(shard, new_id=lambda: next(names))
        screen.fact("runs on", f"{server}, for this demo only")
        every = settings.sweep.interval.total_seconds()
        screen.fact("sweeperd", f"{__version__}, the real daemon, sweeping every {every} s")
        screen.fact("receiver", f"{receiver.url}, verifying with standardwebhooks")
        screen.title("What happens")
        try:
            for scope, amount in BUDGETS.items():
                ledger.open_budget(scope, unit(scope), amount)
            play = Play(screen, ledger, news)

            def over() -> bool:
                return play.step() and play.expiring <= receiver.verified.keys() and not _indexed(shard)

            problems = perform(settings, over, stop, screen)
            books = [ledger.budget(scope, unit(scope)) for scope in BUDGETS]
            hashes: dict[str, Any] = {
                name: shard.client.hgetall(shard.keys.reservation(name.encode())) for name in play.expected
            }
            left = _indexed(shard)
        except (redis.RedisError, RedisUnavailable) as error:
            # Ctrl-C in a terminal also ends the redis-server.
            if not stop.number:
                return give_up(echo, f"the demo's Redis failed: {error}")
    if stop.number:
        return interrupted(stop, echo)
    states = {name: hash_.get(b"state", b"(gone)").decode() for name, hash_ in hashes.items()}
    evidence = Evidence(
        books, play.charged, play.expected, states, receiver.verified, receiver.refused, left, [*problems, *log.errors]
    )
    return conclude(screen, evidence, log.warnings, play.longest_lag_ms)


def _indexed(shard: Shard) -> int:
    return int(shard.client.zcard(shard.keys.reservation_index))


def _settings(redis_url: str, receiver_url: str, secret: str) -> Settings:
    return Settings.model_validate(
        {
            # Longer than the daemon's blocking reads, and short enough for LIMIT.
            "redis": {"url": redis_url, "connect_timeout": "2s", "socket_timeout": "2s"},
            "sweep": {"interval": "500ms"},
            "webhooks": {"endpoints": [{"name": "demo", "url": receiver_url, "secrets": [secret]}]},
            "http": {"listen": ""},
            "shutdown_grace": "3s",
        }
    )


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
    """Keep a proxy in the environment away from the receiver on loopback."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "127.0.0.1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = before


def _introduce(screen: Screen) -> None:
    screen.title("sweeperd: forgotten reservations return their budget, exactly once")
    screen.echo(
        "\n  Three tenants reserve budget before they work. Some commit what they used,"
        "\n  some release it. Most crash, and what they hold would stay locked forever."
        "\n  When deadline and grace have passed, sweeperd returns the budget and sends a"
        "\n  signed webhook.\n"
    )
