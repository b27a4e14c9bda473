"""The questions of the pages about entries: one at a time on a shard, and nothing is changed."""

import threading

import redis

from sweeperd.config import Settings
from sweeperd.ops.entry_pages import EntryPages
from sweeperd.store import Shard
from tests.support.harness import reserve
from tests.support.servers import Server


def test_one_question_at_a_time_on_a_shard(own_server: Server) -> None:
    settings = Settings.model_validate({"redis": {"url": own_server.url, "socket_timeout": "30s"}})
    shard = Shard(settings.redis)
    pages, outcomes = EntryPages(settings, [shard], patience=0.1), list[str]()

    def ask() -> None:
        try:
            outcomes.append(str(pages.answer("search", {"q": "a"})["down"]))
        except TimeoutError:
            outcomes.append("refused")

    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("CLIENT", "PAUSE", 600)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["[]", "refused"]
    assert pages.answer("search", {"q": "a"})["down"] == []
    shard.close()


def test_a_look_changes_nothing(shard: Shard, client: redis.Redis) -> None:
    reserve(client, ["r1"])
    client.zadd("sweeperd:quarantine", {"q": 1})
    client.xadd("sweeperd:events", {"id": "r1", "expired_at": 1})
    before = {key: client.dump(key) for key in client.keys("*")}
    pages = EntryPages(Settings(), [shard])
    for page in ("search", "entry", "expired", "dead-letters", "quarantine"):
        assert pages.answer(page, {"q": "r1", "id": "r1"})["down"] == []
    assert {key: client.dump(key) for key in client.keys("*")} == before
