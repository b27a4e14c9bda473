"""A daemon and a receiver whose TLS does not fit: one clear reason, nothing is lost, and a reload mends it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support.authority import Authority
from tests.support.harness import Daemon, daemon, environment, eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

IDS = [f"r{number}" for number in range(30)]
QUICK = """
[sweep]
interval = "100ms"
[webhooks]
attempts = 1
backoff_initial = "10ms"
redelivery_initial = "200ms"
redelivery_max = "500ms"
probe_max = "200ms"
[[webhooks.endpoints]]
name = "odd"
"""


@contextmanager
def sweeping(server: Server, directory: Path, *lines: str) -> Iterator[Daemon]:
    """A daemon whose only endpoint has these settings."""
    config = directory / "config.toml"
    config.write_text(QUICK + "\n".join(lines))
    with daemon(environment(server.url) | {"SWEEPERD_CONFIG": str(config)}, directory) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
        yield running


def failed(running: Daemon, client: redis.Redis, receiver: Receiver, reason: str) -> None:
    """Every event waits, and all failures have this reason."""
    reserve(client, IDS)
    eventually(lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="failed") >= 6)
    eventually(lambda: running.logged("the endpoint fails; its events wait"))
    assert {line["reason"] for line in running.logged("not delivered")} == {reason}
    assert not receiver.requests


def delivered(running: Daemon, client: redis.Redis) -> None:
    eventually(lambda: running.metric("sweeperd_webhook_events_total", endpoint="odd", result="delivered") == len(IDS))
    eventually(lambda: client.xpending("sweeperd:events", "odd")["pending"] == 0)
    assert client.xlen("sweeperd:dead-letters") == 0


def test_certificates_that_are_replaced_take_effect_with_a_reload(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """First a wrong CA, then a client certificate of a wrong CA; the paths stay the same."""
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    for authority in (ours, other):
        authority.ca()
        authority.client()
    files = ("ca.pem", "client.pem", "client-key.pem")
    for name in files:
        shutil.copy(tmp_path / "other" / name, tmp_path)
    with Receiver(tls=ours.server(demands=True)) as receiver:
        lines = [f'url = "{receiver.url}"', "batch_size = 10", 'ca = "ca.pem"']
        lines += ['client_cert = "client.pem"', 'client_key = "client-key.pem"']
        with sweeping(server, tmp_path, *lines) as running:
            failed(
                running, client, receiver, "TLS: the receiver's certificate is not signed by a CA that is trusted here"
            )
            shutil.copy(tmp_path / "ours" / "ca.pem", tmp_path)
            running.reload()
            distrusted = "TLS: the receiver does not trust the CA of the client certificate"
            eventually(lambda: running.logged("not delivered")[-1]["reason"] == distrusted)
            for name in files:
                shutil.copy(tmp_path / "ours" / name, tmp_path)
            eventually(lambda: running.logged("reloaded"))
            running.reload()
            delivered(running, client)
            assert all(isinstance(request.event, list) for request in receiver.requests)
    assert str(tmp_path / "ours") not in (text := "".join(map(str, running.lines())))
    assert "PRIVATE KEY" not in text
