"""`sweeperd --once`: what it prints, what it leaves, how it ends."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import command, environment, eventually, once, reserve, run
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port

KEYS = {
    "candidates", "expired", "skipped", "in_grace", "not_due", "not_found", "quarantined", "deferred", "held",
    "errors", "delivered", "undelivered", "dead_lettered", "duration_seconds",
}  # fmt: skip


def test_nothing_to_do(server: Server) -> None:
    done = once(environment(server.url))
    assert done.code == 0
    assert set(done.report) == KEYS
    assert not any(value for name, value in done.report.items() if name != "duration_seconds")
    assert done.errors == ""


def test_what_listens_there_is_not_redis() -> None:
    with Receiver() as other:
        done = once(environment(other.url.replace("http", "redis").rpartition("/")[0] + "/0"))
    assert done.code == 1
    assert "Traceback" not in done.errors
    assert "127.0.0.1" in done.errors


def test_default_grace_is_for_those_without_their_own(server: Server, client: redis.Redis) -> None:
    reserve(client, ["own", "none"], overdue_by=1000)
    client.hdel("reservation:res_none", "grace_ms")
    done = once(environment(server.url, sweep__grace="1h"))
    assert (done.report["in_grace"], done.report["expired"]) == (1, 1)


def test_many_in_grace_and_many_that_error_do_not_hide_one_that_is_overdue(server: Server, client: redis.Redis) -> None:
    reserve(client, [f"grace-{n}" for n in range(500)], overdue_by=-3_600_000, grace=7_200_000)
    # The user may not touch these: the script call errors, the entry stays.
    reserve(client, [f"broken-{n}" for n in range(120)], overdue_by=2_000_000)
    client.acl_setuser(
        "limited",
        enabled=True,
        nopass=True,
        categories=["+@all"],
        keys=["reservation:res_grace-*", "reservation:res_last", "reservation:ttl", "budget:*", "sweeperd:*"],
    )
    reserve(client, ["last"], overdue_by=60_000)
    try:
        limited = server.url.replace("redis://", "redis://limited:any@")
        done = once(environment(limited, sweep__batch_size=100))
    finally:
        client.acl_deluser("limited")
    assert done.report["errors"] == 120
    assert done.report["in_grace"] == 500
    assert done.report["expired"] == 1
    assert done.code == 1
    assert client.hget("reservation:res_last", "state") == b"EXPIRED"


def test_events_that_wait_are_exit_code_3_and_the_next_run_delivers_them(server: Server, client: redis.Redis) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver:
        env = environment(
            server.url,
            endpoints=[{"name": "hook", "url": receiver.url}],
            webhooks__attempts=1,
            webhooks__redelivery_initial="100ms",
        )
        once(env)  # the endpoint exists from here on
        reserve(client, ["a", "b"])
        done = once(env)
        assert done.code == 3
        assert (done.report["expired"], done.report["delivered"], done.report["undelivered"]) == (2, 0, 2)
        again = once(env, "--exit-zero-on-pending")
        assert (again.code, again.report["undelivered"]) == (0, 2)

        receiver.behaviour = lambda *_: Answer(204)

        def delivered() -> bool:
            return once(env).code == 0

        eventually(delivered)
    assert client.xpending("sweeperd:events", "hook")["pending"] == 0


def test_progress_and_summary_on_a_terminal(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    reserve(client, [str(number) for number in range(300)])
    typescript = tmp_path / "typescript"
    subprocess.run(
        ["script", "-qec", " ".join(command("--once")), str(typescript)],
        env=environment(server.url) | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=30,
    )
    shown = typescript.read_text()
    assert "Sweeping" in shown
    assert "300 entries in" in shown
    assert "300 expired" in shown
    assert '"candidates"' not in shown


def test_the_books_are_in_the_log(server: Server, client: redis.Redis) -> None:
    reserve(client, ["seen"])
    client.hset("reservation:res_odd", "state", "BROKEN")
    client.zadd("reservation:ttl", {"odd": 1, "orphan": 2})
    done = run(["--once"], environment(server.url))
    assert done.returncode == 0
    lines = {}
    for line in map(json.loads, done.stderr.splitlines()):
        # What needs an operator has its own line; other entries of one outcome share a line.
        for told in line.get("reservations", [line]):
            if "reservation_id" in told:
                lines[told["reservation_id"]] = line | told
    assert lines["seen"]["outcome"] == "expired"
    assert lines["seen"]["tenant"] == "acme"
    assert len(lines["seen"]["trace_id"]) == 32
    assert lines["odd"]["outcome"] == "quarantined"
    assert lines["odd"]["reason"] == "INVALID_STATE"
    assert lines["orphan"]["outcome"] == "not_found"


def written(path: Path) -> dict[str, float]:
    """Every sample that a run has left with --metrics-file, by name and labels."""
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no temporary file stays"
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_the_metrics_of_a_run_are_left_for_node_exporter(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "textfile" / "sweeperd.prom"
    path.parent.mkdir()
    with Receiver() as receiver:
        env = environment(server.url, endpoints=[{"name": "hook", "url": receiver.url}])
        assert once(env, "--metrics-file", str(path)).code == 0
        reserve(client, ["one", "two"])
        reserve(client, ["grace"], overdue_by=-60_000, grace=120_000)
        inode = path.stat().st_ino
        assert once(env, "--metrics-file", str(path)).code == 0
        samples = written(path)
    assert path.stat().st_ino != inode, "another file has taken its place"
    assert samples["sweeperd_candidates_total['default', 'expired', 'reservations']"] == 2
    assert samples["sweeperd_candidates_total['default', 'in_grace', 'reservations']"] == 1
    assert samples["sweeperd_expired_total['acme', 'reservations']"] == 2
    assert samples["sweeperd_sweeps_total['default', 'ok', 'reservations']"] == 1
    assert samples["sweeperd_webhook_attempts_total['delivered', 'hook']"] == 2
    assert samples["sweeperd_webhook_pending_events['hook']"] == 0
    assert samples["sweeperd_due_entries['default', 'reservations']"] == 1, "what is left when it has ended"
    assert samples["sweeperd_redis_up['default']"] == 1
    # node_exporter has these itself, and refuses a file that has them too.
    assert not any(name.startswith(("process_", "python_")) for name in samples)


def test_redis_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "textfile" / "sweeperd.prom"
    path.parent.mkdir()
    unreachable = environment(f"redis://127.0.0.1:{free_port()}/0")
    done = once(unreachable, "--exit-zero-on-pending", "--metrics-file", str(path))
    assert (done.code, done.report) == (1, {})
    (line,) = done.errors.splitlines()
    assert "127.0.0.1" in line
    samples = written(path)
    assert samples["sweeperd_redis_up['default']"] == 0
    assert samples["sweeperd_sweeps_total['default', 'error', 'reservations']"] == 1


def test_a_place_for_metrics_that_is_not_there_stops_no_sweep(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    reserve(client, ["one"])
    line = ["--once", "--json", "--log-level", "error", "--metrics-file", str(tmp_path / "x" / "a.prom")]
    done = run(line, environment(server.url))
    assert (done.returncode, json.loads(done.stdout)["expired"]) == (1, 1)
    assert f"{tmp_path}/x/a.prom" in json.loads(done.stderr)["message"]
    assert client.xlen("sweeperd:events") == 1


@pytest.mark.parametrize("refused", ["xack", "max_rate"])
def test_a_run_ends_and_fails_where_redis_refuses_its_deliveries(own_server: Server, refused: str) -> None:
    with Receiver() as receiver, redis.Redis.from_url(own_server.url) as client:
        env = environment(own_server.url, endpoints=[{"name": "hook", "url": receiver.url, "max_rate": 10}])
        assert once(env).code == 0
        client.xadd("sweeperd:events", {"id": "one", "tenant": "acme"})
        if refused == "xack":
            client.acl_setuser("default", enabled=True, nopass=True, commands=["-xack"])
        else:
            client.delete("sweeperd:pace")
            client.set("sweeperd:pace", "text")
        done = once(env, "--exit-zero-on-pending", limit=60)
        assert (done.code, done.report["undelivered"]) == (1, 1), done.errors
        assert "delivery waits for redis: hook: " in done.errors


def test_the_delivery_limit_leaves_the_rest_waiting(server: Server, client: redis.Redis) -> None:
    """A receiver that is slow keeps a run from its end, and so the next run from its sweep."""
    ids = [f"r{number}" for number in range(40)]
    reserve(client, ids)
    with Receiver(lambda *_: Answer(delay=0.5)) as receiver:
        env = environment(server.url, endpoints=[{"name": "hook", "url": receiver.url}], webhooks__concurrency=1)
        limited = once(env, "--delivery-limit", "2s")
        assert (limited.code, limited.report["expired"]) == (3, 40)
        assert limited.report["delivered"] + limited.report["undelivered"] == 40
        assert 1 <= limited.report["delivered"] < 40
        assert limited.report["dead_lettered"] == 0
        receiver.behaviour = lambda *_: Answer()
        rest = once(env, "--delivery-limit", "1h")
    assert (rest.code, rest.report["delivered"]) == (0, limited.report["undelivered"])
    assert receiver.distinct == len(receiver.requests) == 40, "what waits is neither lost nor sent twice"


class Pushed(NamedTuple):
    """One request to a Pushgateway."""

    path: str
    samples: dict[str, float]


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[Pushed]]]:
    """The URL of a server that takes what is pushed, and what it has taken."""
    taken: list[Pushed] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            families = text_string_to_metric_families(body)
            taken.append(Pushed(self.path, {s.name: s.value for family in families for s in family.samples}))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
        thread.join(10)


def test_the_metrics_of_a_run_are_pushed(
    server: Server, client: redis.Redis, gateway: tuple[str, list[Pushed]]
) -> None:
    reserve(client, ["one", "two"])
    url, taken = gateway
    arguments = ("--once", "--log-level", "error", "--metrics-push", url)
    assert run(arguments, environment(server.url)).returncode == 0
    ((path, samples),) = taken
    assert path == "/metrics/job/sweeperd"
    assert samples["sweeperd_expired_total"] == 2


@pytest.mark.parametrize(
    "url",
    ["http://user:hush@gateway", "http://user:hush@127.0.0.1:nine", "http://[user:hush@gateway", "http://h/?k=hush x"],
)
def test_a_gateways_url_that_cannot_be_used_is_not_shown(url: str, server: Server) -> None:
    done = run(["--once", "--metrics-push", url], environment(server.url))
    assert done.returncode == 1
    assert "URL" in json.loads(done.stderr.splitlines()[-1])["message"]
    assert "hush" not in done.stderr


def test_a_gateway_that_does_not_answer_fails_the_run(server: Server, client: redis.Redis) -> None:
    reserve(client, ["one"])
    line = ["--once", "--log-level", "error", "--metrics-push", f"http://127.0.0.1:{free_port()}"]
    done = run(line, environment(server.url))
    assert done.returncode == 1
    assert "Connection refused" in json.loads(done.stderr.splitlines()[-1])["message"]
    assert client.xlen("sweeperd:events") == 1, "the sweep was done"
