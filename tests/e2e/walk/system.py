"""
A broken system: a backlog, an endpoint that is dead, one that answers 410, rows that cannot be decided, entries that
the index has lost, a budget that has drifted, a CLOSED one, hostile names.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.conftest import BINARIES
from tests.e2e.walk.operator import Operator
from tests.integration.conftest import HOSTILE
from tests.support.harness import Daemon, daemon, environment, reserve, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

#: The size of the backlog.
ENTRIES = int(os.environ.get("SWEEPERD_TEST_OPERATOR_ENTRIES", "5000"))
QUARANTINED, LOST, HOLDING = 20, 50, 2
#: What each reservation holds of its budgets, and by how much one budget has drifted.
AMOUNT, DRIFT = 5, 7
DRIFTED, CLOSED = "tenant:drifted", "tenant:closed"
HOUR = 3_600_000


@dataclass(frozen=True)
class System:
    """Redis, the receivers and the operator of a broken system."""

    server: Server
    client: redis.Redis
    receivers: dict[str, Receiver]
    operator: Operator
    directory: Path

    def daemon(self, **settings: str) -> contextlib.AbstractContextManager[Daemon]:
        """Run a daemon while the block lasts, with these settings besides."""
        changes = {f"SWEEPERD_{name.upper()}": value for name, value in settings.items()}
        return daemon(self.operator.env | changes, self.directory)


@contextlib.contextmanager
def broken_system(directory: Path) -> Iterator[System]:
    """All of it, without a daemon."""
    with (
        Server(BINARIES[0]) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
        Receiver() as well,
        Receiver(lambda *_: Answer(hang_up=True)) as dead,
        Receiver(lambda *_: Answer(410)) as gone,
    ):
        receivers = {"well": well, "dead": dead, "gone": gone}
        batch = {"batch_size": 500, "start": "beginning"}
        env = environment(
            server.url,
            config="/dev/null",
            sweep__interval="200ms",
            webhooks__attempts="1",
            webhooks__redelivery_initial="400ms",
            webhooks__redelivery_max="1h",
            webhooks__probe_max="30s",
            # No walk but those of the operator, and one of a second daemon.
            reconcile__interval="",
            endpoints=[{"name": name, "url": receiver.url, **batch} for name, receiver in receivers.items()],
        )
        break_everything(client)
        yield System(server, client, receivers, Operator(env), directory)


def break_everything(client: redis.Redis) -> None:
    """What is broken in Redis."""
    reserve(client, [f"late-{number}" for number in range(ENTRIES)], tenant="acme", amount=AMOUNT)
    reserve(client, [f"lost-{number}" for number in range(LOST)], amount=AMOUNT)
    client.zrem("reservation:ttl", *[f"lost-{number}" for number in range(LOST)])
    names = [HOSTILE, *(HOSTILE[:80] + b"%d" % number for number in range(1, QUARANTINED))]
    reserve(client, names, amount=AMOUNT)
    for name in names[1:]:
        client.hset(b"reservation:res_" + name, "state", HOSTILE)
    client.hset(b"reservation:res_" + names[0], "estimate_amount", "five")
    holding = [f"holding-{number}" for number in range(HOLDING)]
    for scope, ids in ((DRIFTED, holding), (CLOSED, ["settled"])):
        reserve(client, ids, overdue_by=-HOUR, scopes=[scope], amount=AMOUNT)
        for entry in ids:
            client.hset(f"reservation:res_{entry}", "created_at", server_time(client) - HOUR)
    client.hincrby(f"budget:{DRIFTED}:TOKENS", "reserved", DRIFT)
    client.hincrby(f"budget:{DRIFTED}:TOKENS", "remaining", -DRIFT)
    client.hset(f"budget:{CLOSED}:TOKENS", mapping={"status": "CLOSED", "reserved": 0})


def repair_rows(client: redis.Redis) -> None:
    """What makes the rows of the quarantine readable again."""
    for entry, _ in client.zscan_iter("sweeperd:quarantine"):
        client.hset(b"reservation:res_" + entry, mapping={"state": "ACTIVE", "estimate_amount": AMOUNT})


def once_so(read: Callable[[], Any], holds: Callable[[Any], object]) -> Callable[[], Any]:
    """A condition for `eventually`: what was read, where it is as wanted."""

    def condition() -> Any:
        found = read()
        return found if holds(found) else None

    return condition
