"""What docs/explanation/why.md says of Redis's own ways to expire something, on each server at hand."""

from collections.abc import Iterator

import pytest
import redis

from tests.support.harness import eventually
from tests.support.servers import Binary, Server

#: The first versions that expire single fields of a hash.
FIELDS_EXPIRE = {"Redis": (7, 4), "Valkey": (9,)}


@pytest.fixture
def noisy(own_server: Server) -> Iterator[redis.Redis]:
    """A server that publishes all key events."""
    with redis.Redis.from_url(own_server.url, protocol=2) as client:
        client.config_set("notify-keyspace-events", "EA")
        yield client


class KeyEvents:
    """The key events that a subscriber has been told so far."""

    def __init__(self, subscriber: "redis.client.PubSub") -> None:
        self._subscriber = subscriber
        self._told: list[tuple[bytes, bytes]] = []

    def tell_of(self, name: bytes, key: bytes) -> bool:
        """Whether an event of this name has come for this key."""
        while message := self._subscriber.get_message(timeout=0.01):
            self._told.append((message["channel"].rpartition(b":")[2], message["data"]))
        return (name, key) in self._told


@pytest.fixture
def events(noisy: redis.Redis) -> Iterator[KeyEvents]:
    """Those of `noisy` from now on."""
    with noisy.pubsub(ignore_subscribe_messages=True) as subscriber:
        subscriber.psubscribe("__keyevent@0__:*")
        eventually(lambda: noisy.pubsub_numpat() == 1)
        yield KeyEvents(subscriber)


def test_an_expired_key_tells_its_name_and_its_value_is_gone(noisy: redis.Redis, events: KeyEvents) -> None:
    noisy.hset("hold", mapping={"amount": 7})
    noisy.pexpire("hold", 20)
    eventually(lambda: events.tell_of(b"expired", b"hold"))
    assert noisy.hgetall("hold") == {}


def test_who_is_not_connected_never_hears_of_it(noisy: redis.Redis) -> None:
    noisy.set("hold", 7, px=20)
    eventually(lambda: noisy.info("stats")["expired_keys"] == 1)
    with noisy.pubsub() as late:
        late.psubscribe("__keyevent@0__:*")
        assert eventually(lambda: late.get_message(timeout=0.1))["type"] == "psubscribe"
        noisy.set("marker", 1)
        assert eventually(lambda: late.get_message(timeout=0.1))["data"] == b"marker"


def test_an_expired_field_is_gone_and_its_event_names_the_key(
    redis_binary: Binary, noisy: redis.Redis, events: KeyEvents
) -> None:
    if redis_binary.numbers < FIELDS_EXPIRE[redis_binary.name]:
        with pytest.raises(redis.ResponseError, match="unknown command"):
            noisy.hpexpire("holds", 20, "a")
        return
    noisy.hset("holds", mapping={"a": 7, "b": 8})
    noisy.hpexpire("holds", 20, "a")
    eventually(lambda: events.tell_of(b"hexpired", b"holds"))
    assert noisy.hgetall("holds") == {b"b": b"8"}
