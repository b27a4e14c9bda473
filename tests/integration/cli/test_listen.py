"""`sweeperd listen`: verifies what sweeperd sends, refuses all else, and prints both."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import jsonschema
import pytest
import redis
import requests
import standardwebhooks
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.webhook_keys import generate_pair, generate_shared
from tests.docs.generate import SCHEMAS
from tests.integration.conftest import Cli
from tests.support.harness import environment, once, reserve
from tests.support.servers import Server

SWEEPERD = [sys.executable, "-m", "sweeperd"]


@contextmanager
def listening(*options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The URL of a receiver, and its process."""
    process = subprocess.Popen(
        [*SWEEPERD, "listen", "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        words = process.stderr.readline().split()
        keys = sum(option in ("--secret", "--key") for option in options)
        assert words[4:6] != ["verifying", "with"] or words[6:] == [str(keys), "key" if keys == 1 else "keys"]
        yield words[3].rstrip(","), process
    finally:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("asymmetric", [False, True])
def test_what_sweeperd_sends_is_verified(asymmetric: bool, server: Server, client: redis.Redis, tmp_path: Path) -> None:
    private, public = generate_pair() if asymmetric else (generate_shared(), "")
    (tmp_path / "secret").write_text(f" {private}\n")
    known = ["--key", public] if asymmetric else ["--secret", f"file:{tmp_path / 'secret'}"]
    with listening("--json", *known) as (url, process):
        env = environment(server.url, endpoints=[{"name": "r", "url": url, "secrets": [private]}])
        assert once(env).code == 0
        reserve(client, ["a"])
        assert once(env).report["delivered"] == 1
        document = json.loads(line(process))
        jsonschema.validate(document, json.loads((SCHEMAS / "listen.schema.json").read_text()))
        assert (document["verified"], document["problem"], document["status"]) == (True, "", 204)
        assert document["body"]["data"]["reservation_id"] == "a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_what_is_not_signed_as_it_should_be_gets_401() -> None:
    secret, body = generate_shared(), b'{"a": 1}'
    with listening("--json", "--secret", secret, "--secret", generate_shared()) as (url, process):

        def post(
            body: bytes = body, at: float = 0, headers: Mapping[str, str] = MappingProxyType({})
        ) -> tuple[int, bool, str, bool]:
            moment = datetime.fromtimestamp(int(time.time() + at), UTC)
            signature = standardwebhooks.Webhook(secret).sign("evt_1", moment, '{"a": 1}')
            stamp = str(int(moment.timestamp()))
            signed = {"webhook-id": "evt_1", "webhook-timestamp": stamp, "webhook-signature": signature}
            status = requests.post(url, data=body, headers=signed | dict(headers), timeout=10).status_code
            document = json.loads(line(process))
            return status, document["verified"], document["problem"], document["again"]

        assert post() == (204, True, "", False)
        for status, verified, problem, _ in (
            post(b'{"a": 2}'),
            post(at=-400),
            post(at=400),
            post(headers={"webhook-timestamp": "soon"}),
            post(headers={"webhook-signature": ""}),
            post(headers={"webhook-signature": "v1,!! v2,aaaa v1"}),
        ):
            assert (status, verified, bool(problem)) == (401, False, True)
        assert post() == (204, True, "", True)


def test_status_delay_and_plain_lines() -> None:
    with listening("--status", "503", "--delay", "300ms") as (url, process):
        began = time.monotonic()
        assert requests.post(url, data=b"no \x1b JSON", timeout=10).status_code == 503
        assert time.monotonic() - began >= 0.3
        assert "not checked, 503" in line(process)
        assert line(process) == "no \\x1b JSON\n"
        assert requests.post(url, headers={"Content-Length": str(10**9)}, timeout=10).status_code == 413


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_it_ends_when_nobody_reads_its_output(options: tuple[str, ...]) -> None:
    with listening(*options) as (url, process):
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        # It may end before its answer is sent. The sender tries again in either case.
        with contextlib.suppress(requests.ConnectionError):
            assert requests.post(url, data=b"{}", timeout=10).status_code == 503
        assert process.wait(20) == 1
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--secret", "whsec_!"], "not base64"),
        (["--secret", "file:missing"], "cannot be read"),
        (["--secret", ""], "cannot be empty"),
        (["--key", "xx"], "begins with whpk_"),
        (["--key", "whsec_aaaa"], "begins with whpk_"),
        (["--key", "whpk_aa"], "32 bytes"),
        (["--key", "whpk_" + "A" * 44], "32 bytes"),
        (["--key", "whpk_!"], "not base64"),
        (["--port", "65536"], "--port"),
    ],
)
def test_bad_options(options: list[str], problem: str) -> None:
    nowhere = ["--host", "192.0.2.1"]  # so that it cannot stay if the option is taken
    result = CliRunner().invoke(main, ["listen", *nowhere, *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr
    assert options[0] in result.stderr


def test_a_port_that_is_taken(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli("listen", {}, "--port", str(taken.getsockname()[1])).exit_code == 1


@pytest.mark.parametrize("host", ["x" * 70, "\udcff"])
def test_what_cannot_be_a_host_name(cli: Cli, host: str) -> None:
    refused = cli("listen", {}, "--host", host, "--port", "0")
    assert (refused.exit_code, "cannot be used" in refused.stderr) == (1, True), refused.output
