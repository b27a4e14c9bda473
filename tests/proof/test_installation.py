"""When the rehearsal of `python -m proof.installation` refuses to begin. All else needs an installation."""

import os
import subprocess
import sys

import pytest
import redis

from tests.support.servers import Server

#: Nobody listens there.
NOBODY = "http://127.0.0.1:9"


def rehearse(server: Server, *options: str, key: str = "secret") -> "subprocess.CompletedProcess[str]":
    urls = ("--runtime", NOBODY, "--admin", NOBODY, "--redis", server.url)
    env = os.environ | {"CYCLES_ADMIN_KEY": key}
    line = [sys.executable, "-m", "proof.installation", *urls, *options]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_it_begins_in_no_redis_with_tenants_of_others(server: Server, client: redis.Redis) -> None:
    client.sadd("tenants", "rehearsal-0abc12-lease", "acme")
    done = rehearse(server)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the Redis has 1 tenants that no rehearsal made" in done.stderr
    client.srem("tenants", "acme")
    for options in ((), ("--beside-tenants",)):
        done = rehearse(server, *options)
        assert done.returncode == 2
        assert "no rehearsal: HTTPConnectionPool" in done.stderr, "it went on to ask the services"
    assert client.keys() == [b"tenants"]


def test_it_needs_the_admin_key(server: Server) -> None:
    done = rehearse(server, key="")
    assert (done.returncode, "set CYCLES_ADMIN_KEY" in done.stderr) == (2, True)
