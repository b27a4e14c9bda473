"""Tests shards in the settings."""

import json
from pathlib import Path

import pytest

from sweeperd.errors import ConfigError
from sweeperd.store import open_shards
from tests.support.fixtures import Load
from tests.unit.config.shared import ENDPOINT, NO_REDIS_URL, problems

SHARDS = """
[[shards]]
name = "eu"
url = "redis://eu/0"
[[shards]]
name = "us"
url = "rediss://us:6380/1"
prefix = "{us}:"
"""


def test_without_a_list_there_is_one_shard(config: Load) -> None:
    (shard,) = config("[redis]\nurl = 'redis://cache/3'\n[keys]\nprefix = 'x:'").all_shards
    assert (shard.name, shard.url.get_secret_value(), shard.prefix) == ("default", "redis://cache/3", "x:")


def test_many_shards(config: Load) -> None:
    settings = config(SHARDS + "[redis]\nsocket_timeout = '3s'")
    told = [(shard.name, shard.url.get_secret_value(), shard.prefix) for shard in settings.all_shards]
    assert told == [("eu", "redis://eu/0", ""), ("us", "rediss://us:6380/1", "{us}:")]
    shards = open_shards(settings)
    assert [(shard.name, shard.address, shard.keys.prefix) for shard in shards] == [
        ("eu", "redis://eu/0", b""),
        ("us", "rediss://us:6380/1", b"{us}:"),
    ]
    assert {shard.socket_timeout for shard in shards} == {3.0}, "the time-outs are for all of them"


def test_the_same_redis_with_another_prefix_is_another_shard(config: Load) -> None:
    shards = [{"name": name, "url": "redis://one/0", "prefix": name} for name in ("a", "b")]
    assert len(config("", {"SWEEPERD_SHARDS": json.dumps(shards)}).all_shards) == 2


@pytest.mark.parametrize("prefix", ["sweeperd:", "sweeperd:b:", "a:sweeperd:"])
def test_no_prefix_holds_the_beginning_of_sweeperds_own_keys(prefix: str, config: Load) -> None:
    """`uninstall` of the shard with the shorter prefix would remove the reservations of the other."""
    shards = [{"name": each, "url": "redis://one/0", "prefix": each} for each in ("a", prefix)]
    shards[1]["name"] = "b"
    with pytest.raises(ConfigError, match=r"shards\[1\]\.prefix: must not hold \"sweeperd:\""):
        config("", {"SWEEPERD_SHARDS": json.dumps(shards)})
    with pytest.raises(ConfigError, match=r"keys\.prefix: must not hold \"sweeperd:\""):
        config("", {"SWEEPERD_KEYS__PREFIX": prefix})


def test_an_event_is_known_by_its_shard(config: Load) -> None:
    """The same reservation id may be in use on two of them."""
    eu, us = open_shards(config(SHARDS))
    (alone,) = open_shards(config(""))
    (renamed, _) = open_shards(config(SHARDS.replace('"eu"', '"default"')))
    assert len({eu.origin, us.origin, alone.origin}) == 3
    assert renamed.origin == alone.origin, "the first of several can go on as before"


@pytest.mark.parametrize(
    ("toml", "key", "problem"),
    [
        ("[redis]\nurl = 'redis://x'\n" + SHARDS, "", "redis.url and [[shards]] cannot both be set"),
        ("[keys]\nprefix = ''\n" + SHARDS, "", "keys.prefix and [[shards]] cannot both be set"),
        (SHARDS.replace('"us"', '"eu"'), "", "two shards are named eu"),
        (SHARDS.replace('"us"', '"u s"'), "shards[1].name", "must be "),
        (SHARDS.replace('name = "us"', ""), "shards[1].name", "is missing"),
        (SHARDS.replace('url = "redis://eu/0"', ""), "shards[0].url", "is missing"),
        (SHARDS.replace("redis://eu", "http://eu"), "shards[0].url", NO_REDIS_URL),
        (SHARDS + "timeout = '5s'", "shards[1].timeout", "unknown key"),
        (
            SHARDS.replace("rediss://us:6380/1", "redis://eu/0").replace("{us}:", ""),
            "",
            "the shards eu and us have the same url and prefix",
        ),
        (
            SHARDS + "[webhooks]\nconcurrency = 1\n" + ENDPOINT,
            "",
            "webhooks.concurrency must be at least the number of shards, 2",
        ),
    ],
)
def test_shards_that_cannot_be(toml: str, key: str, problem: str, config: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    prefix = "".join(f"{part}: " for part in (tmp_path / "config.toml", key) if part)
    assert [line for line in problems(error) if line.startswith(prefix) and problem in line], str(error.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://eu", "redis://EU:6379/0"),
        ("redis://127.0.0.1:6380/1", "rediss://user:word@localhost:6380/1?socket_timeout=3"),
        ("redis+sentinel://a:26379,b/eu", "redis+sentinel://b,a/eu/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
    ],
)
def test_one_redis_in_two_spellings(one: str, other: str, config: Load) -> None:
    """As two shards, its events would have two ids each."""

    def load(first: str, second: str) -> None:
        shards = [{"name": name, "url": url} for name, url in (("a", first), ("b", second))]
        config("", {"SWEEPERD_SHARDS": json.dumps(shards)})

    with pytest.raises(ConfigError, match="the shards a and b have the same url and prefix"):
        load(one, other)
    load(one, other.replace("eu", "us").replace("EU", "US").replace("6380", "6381").replace(".sock", ".other"))


def test_concurrency_suffices_for_one_of_each(config: Load) -> None:
    toml = SHARDS + "[webhooks]\nconcurrency = 4\n" + ENDPOINT + ENDPOINT.replace("billing", "audit")
    assert config(toml).webhooks.concurrency == 4


def test_shards_from_the_environment(config: Load) -> None:
    shards = [{"name": "asia", "url": "redis://asia"}, {"name": "africa", "url": "redis://africa", "prefix": "p:"}]
    settings = config(SHARDS, {"SWEEPERD_SHARDS": json.dumps(shards)})
    assert [(shard.name, shard.prefix) for shard in settings.all_shards] == [("asia", ""), ("africa", "p:")]


def test_one_redis_in_the_environment_and_shards_in_the_file(config: Load) -> None:
    with pytest.raises(ConfigError, match=r"^environment: redis\.url and \[\[shards\]\] cannot both be set"):
        config(SHARDS, {"SWEEPERD_REDIS__URL": "redis://other"})
