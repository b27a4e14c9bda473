"""The host's clock is hours off: nothing expires early, nothing late, and receivers accept what they get."""

import shutil
from pathlib import Path

import pytest
import redis
from standardwebhooks import Webhook

from tests.support.harness import daemon, environment, eventually, reserve, server_time
from tests.support.receiver import Receiver
from tests.support.servers import Server

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
@pytest.mark.parametrize("skew", ["+2h", "-2h"])
def test_the_host_is_two_hours_off(skew: str, server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver() as receiver:
        env = environment(
            server.url,
            sweep__interval="100ms",
            endpoints=[{"name": "hook", "url": receiver.url, "secrets": [SECRET]}],
        )
        # A host whose clock is wrong still counts seconds like any other: only the wall clock is off.
        env |= {
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        with daemon(env, tmp_path, wrapper=["faketime", "-f", skew]) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["not for an hour"], overdue_by=-3_600_000)
            reserve(client, ["in grace"], overdue_by=-3_600_000, grace=7_200_000)
            reserve(client, ["soon"], overdue_by=-1500)
            receiver.wait_for(lambda requests: len(requests) == 1)
            sweeps = running.metric("sweeperd_sweeps_total", result="ok")
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") > sweeps + 3)
            request = receiver.requests[0]
            assert request.event["data"]["reservation_id"] == "soon"
            assert client.hget("reservation:res_not for an hour", "state") == b"ACTIVE"
            assert client.hget("reservation:res_in grace", "state") == b"ACTIVE"
            row = client.hgetall("reservation:res_soon")
            assert 0 < int(row[b"expired_at"]) - int(row[b"expires_at"]) < 3000
            assert abs(int(row[b"expired_at"]) - server_time(client)) < 30_000
            # The signed time is Redis's, so a receiver whose own clock is right does not refuse it.
            Webhook(SECRET).verify(request.body, request.headers)
