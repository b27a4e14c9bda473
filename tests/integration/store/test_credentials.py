"""A Redis whose password changes under traffic, and a command that prints it."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import AsyncLedger, Ledger
from sweeperd.store import Shard
from sweeperd.store.connect import sentinels_of
from tests.support.harness import eventually
from tests.support.rotation import USER, Rotation
from tests.support.servers import Server

ALL = ["on", "~*", "&*", "+@all"]
MINUTE = timedelta(minutes=1)


def shard(server: Server, **settings: str) -> Shard:
    return Shard(RedisSettings.model_validate({"url": server.url} | settings))


def test_open_connections_authenticate_anew_before_the_end(own_server: Server, tmp_path: Path) -> None:
    """Each password lives for 2 s. No call fails, and no connection is older than that."""
    with redis.Redis.from_url(own_server.url) as admin:
        rotation = Rotation([admin], tmp_path, ALL, lifetime=2)
        ledger = Ledger.from_url(own_server.url, user=USER, password=rotation.command)
        failed, stop, calls = list[Exception](), threading.Event(), [0, 0, 0]

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    ledger.reserve("a", ["s"], "TOKENS", 0, ttl=MINUTE, idempotency_key=f"{number} {calls[number]}")
                except Exception as error:
                    failed.append(error)
                calls[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        with ledger, rotation.turning(0.7):
            ledger.open_budget("s", "TOKENS", 10)
            for thread in threads:
                thread.start()
            try:
                eventually(lambda: rotation.oldest() > 3 or rotation.runs >= 4 or failed, limit=60)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        assert (failed, rotation.oldest()) == ([], pytest.approx(1, abs=2))
        assert min(calls) > 10


def test_the_command_runs_again_at_once_if_redis_refuses(own_server: Server, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_server.url) as admin:
        rotation = Rotation([admin], tmp_path, ALL)
        used = shard(own_server, user=USER, password=rotation.command)
        for turns in range(1, 4):
            assert used.client.get("x") is None
            assert rotation.runs == turns
            rotation.turn()
            assert used.client.get("x") is None, "an open connection stays"
            rotation.disconnect()
        assert used.client.get("x") is None
        other = shard(own_server, user=USER, password=rotation.command)
        assert other.client.get("x") is None
        assert rotation.runs == 4, "the process has one secret"
        admin.execute_command("ACL", "SETUSER", USER, "resetpass")
        rotation.disconnect()
        before = time.monotonic()
        for _ in range(20):
            with pytest.raises(redis.AuthenticationError):
                other.client.get("x")
        assert other.password_refused
        assert rotation.runs - 4 <= 2 + (time.monotonic() - before), "not in a loop"
        used.close()
        other.close()


def test_the_async_ledger(own_server: Server, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_server.url) as admin:
        rotation = Rotation([admin], tmp_path, ALL, lifetime=3)

        async def work() -> None:
            async with AsyncLedger.from_url(own_server.url, user=USER, password=rotation.command) as ledger:
                await ledger.open_budget("s", "TOKENS", 10)
                with rotation.turning(1.2):
                    while rotation.runs < 3:
                        await asyncio.gather(*(ledger.budget("s", "TOKENS") for _ in range(5)))
                rotation.turn()
                rotation.disconnect()
                # asyncio may not have read yet that it was closed, and the command may have run less than a second ago.
                found, until = None, time.monotonic() + 60
                while found is None and time.monotonic() < until:
                    with suppress(RedisUnavailable):
                        found = await ledger.budget("s", "TOKENS")
                assert found
                assert found.remaining == 10

        asyncio.run(work())


def test_a_url_that_a_command_prints(own_server: Server, tmp_path: Path) -> None:
    place = own_server.url.removeprefix("redis://")
    (tmp_path / "url").write_text(f"redis://{USER}:first@{place}\n")
    with redis.Redis.from_url(own_server.url) as admin:
        admin.execute_command("ACL", "SETUSER", USER, "reset", ">first", *ALL)
        with Ledger.from_url(f"exec:cat {tmp_path}/url") as ledger:
            ledger.open_budget("s", "TOKENS", 10)
            admin.execute_command("ACL", "SETUSER", USER, "resetpass", ">second")
            (tmp_path / "url").write_text(f"redis://{USER}:second@{place}\n")
            admin.execute_command("CLIENT", "KILL", "USER", USER)
            assert ledger.budget("s", "TOKENS").remaining == 10


def test_a_failing_command_is_trouble_of_redis(own_server: Server, tmp_path: Path) -> None:
    with shard(own_server, password="exec:false hush").client as client:
        with pytest.raises(redis.ConnectionError, match="no credentials: false failed with exit code 1") as error:
            client.get("x")
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("redis://u:p@127.0.0.1:1/0", False),
        ("redis+cluster://u:p@127.0.0.1:1", False),
        ("redis+sentinel://u:p@127.0.0.1:1/s?sentinel_username=a&sentinel_password=b", True),
    ],
)
def test_settings_go_before_the_url_and_are_not_for_sentinels(url: str, asked: bool) -> None:
    used = Shard(RedisSettings.model_validate({"url": url, "user": "user", "password": "password"}), "{a}:")
    options: dict[str, Any] = used.client.connection_pool.connection_kwargs
    assert not {"username", "password"} & options.keys()
    assert options["credential_provider"].get_credentials() == ("user", "password")
    found = [each.connection_pool.connection_kwargs for each in sentinels_of(used.client)]
    assert [(each["username"], each["password"], each["credential_provider"]) for each in found] == (
        [("a", "b", None)] * asked
    )


@pytest.mark.parametrize(
    ("url", "settings", "login"),
    [
        ("redis://127.0.0.1", {"password": "p"}, ("p",)),
        ("redis://u:q@127.0.0.1", {"password": "p"}, ("u", "p")),
        ("redis://u:q@127.0.0.1", {"user": "v"}, ("v", "q")),
        ("redis://127.0.0.1", {"user": "v"}, ("v", "")),
        ("exec:echo redis://127.0.0.1", {}, ()),
        ("exec:echo redis://u:q@127.0.0.1", {"password": "exec:echo p"}, ("u", "p")),
    ],
)
def test_where_user_and_password_come_from(url: str, settings: dict[str, str], login: tuple[str, ...]) -> None:
    used = Shard(RedisSettings.model_validate({"url": url} | settings))
    assert used.client.connection_pool.connection_kwargs["credential_provider"].get_credentials() == login
