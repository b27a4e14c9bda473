"""What a daemon costs that has nothing to do."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

import redis

from benchmarks.lab import Lab
from benchmarks.process import cpu_seconds
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server
from sweeperd.store.keys import Keys
from tests.support.harness import daemon, environment

#: Nothing is due, so nobody calls it.
ENDPOINT = {"name": "silent", "url": "http://127.0.0.1:9/"}
#: How long it settles after its start, seconds.
SETTLE = 3.0
#: What comes so soon after the lease was taken belongs to the tick, seconds: an idle one takes a few ms.
TICK = 0.1
_END = b"the end of the measurement"


@dataclass
class Heard:
    """What Redis was told, as MONITOR shows it."""

    #: What a client sent, and what scripts called, by name.
    sent: Counter[str] = field(default_factory=Counter)
    called: Counter[str] = field(default_factory=Counter)
    #: When a client sent something, and when one of them took the lease of the sweep, seconds on Redis's clock.
    sent_at: list[float] = field(default_factory=list)
    tick_at: list[float] = field(default_factory=list)

    def listen(self, client: redis.Redis, ready: threading.Event) -> None:
        """Take in all until somebody echoes the end."""
        lease = Keys().lease("sweep").decode()
        with client.monitor() as monitor:
            ready.set()
            for heard in monitor.listen():
                name, _, arguments = heard["command"].partition(" ")
                if arguments.encode() == _END:
                    return
                if heard["client_type"] == "lua":
                    self.called[name.lower()] += 1
                    continue
                self.sent[name.lower()] += 1
                self.sent_at.append(heard["time"])
                if name == "SET" and arguments.startswith(lease):
                    self.tick_at.append(heard["time"])

    def commands_of_a_tick(self) -> float:
        """The median, of the ticks."""
        return median(sum(at <= one < at + TICK for one in self.sent_at) for at in self.tick_at)


def measure(lab: Lab) -> Sample:
    """A daemon with the default settings, one shard and one endpoint, watched for a while."""
    seconds = lab.size("seconds", 30, 12)
    with lab.server() as server, daemon(environment(server.url, endpoints=[ENDPOINT]), lab.directory) as running:
        time.sleep(SETTLE)
        before, started = cpu_seconds(running.process.pid), time.monotonic()
        heard = listen(server, seconds)
        used = cpu_seconds(running.process.pid) - before
        elapsed = time.monotonic() - started
        running.terminate()
    ticks = len(heard.tick_at)
    return Sample(
        {"cpu_percent": 100 * used / elapsed, "tick_commands": heard.commands_of_a_tick()},
        {
            "commands_per_tick": heard.sent.total() / ticks,
            "script_commands_per_tick": heard.called.total() / ticks,
            **{f"{name}_per_tick": count / ticks for name, count in sorted(heard.sent.items())},
        },
    )


def listen(server: Server, seconds: float) -> Heard:
    """All that Redis is told within so many seconds."""
    heard, ready = Heard(), threading.Event()
    with redis.Redis.from_url(server.url, protocol=2) as client, redis.Redis.from_url(server.url) as other:
        other.ping()
        thread = threading.Thread(target=heard.listen, args=(client, ready))
        thread.start()
        ready.wait()
        time.sleep(seconds)
        other.echo(_END.decode())
        thread.join()
    return heard


ROW = Row(
    "idle",
    "an idle daemon, one shard and one endpoint",
    "",
    {
        "cpu_percent": Goal("at_most", 0.5, "% of a core"),
        "tick_commands": Goal("at_most", 9, "Redis commands of a tick"),
    },
    measure,
)
