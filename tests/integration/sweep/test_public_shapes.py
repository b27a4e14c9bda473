"""The layouts that others publish, made anew in small, are configured from the documents alone and swept exactly."""

import json
from typing import Any

import pytest

from sweeperd.store import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Outcome
from tests.lua.kinds.world import settings_of
from tests.support.builders import make_sweeper

#: In seconds: what is overdue, and what is not.
PAST, FUTURE = 1_700_000_000.25, 4_000_000_000.75
CONNECT = {
    "name": "connect",
    "index": "deadlines",
    "entry": "json",
    "key": "sess:{id}",
    "retention": "0s",
    "event": ["passport.user", "cookie.originalMaxAge"],
}
KOMBU = {
    "name": "unacked",
    "index": "unacked_index",
    "entry": "member",
    "member": "{tag}",
    "unit": "s",
    "grace": "1h",
    "give_back": ["HDEL unacked {tag}", "LPUSH again {tag}"],
    "event": ["tag"],
}
SIDEKIQ = {"name": "job", "index": "schedule", "entry": "member", "member": "{job}", "unit": "s", "event": ["job"]}
BULLMQ = {
    "name": "delayed",
    "index": "bull:mail:deadlines",
    "key": "bull:mail:{id}",
    "retention": "0s",
    "give_back": ["RPUSH due {name}"],
    "event": ["name", "data"],
}
JOB = json.dumps({"class": "HardJob", "args": [1, "a|b"], "jid": "b4a577edbccf1d805744efa9", "retry": True})


def fill(client: Any, name: str) -> tuple[str, str, dict[str, str]]:
    """Write an overdue entry and one that is not due: their ids, and the data of the first one's event."""
    if name == "connect-redis":
        session = {"cookie": {"originalMaxAge": 1800000, "expires": "2023-11-14T22:13:20.250Z", "httpOnly": True}}
        for entry in ("s1", "s2"):
            client.set(f"sess:{entry}", json.dumps(session | {"passport": {"user": "ada"}}))
        client.zadd("deadlines", {"s1": int(PAST * 1000), "s2": int(FUTURE * 1000)})
        return "s1", "s2", {"passport.user": "ada", "cookie.originalMaxAge": "1800000"}
    if name == "kombu":
        client.hset("unacked", mapping={"t1": "[{}]", "t2": "[{}]"})
        client.zadd("unacked_index", {"t1": PAST, "t2": FUTURE})
        return "t1", "t2", {"tag": "t1"}
    if name == "bullmq":
        for entry, moment in (("1", PAST), ("2", FUTURE)):
            client.hset(f"bull:mail:{entry}", mapping={"name": "send", "data": "{}", "timestamp": 1, "delay": 2})
            client.zadd("bull:mail:deadlines", {entry: int(moment * 1000)})
        return "1", "2", {"name": "send", "data": "{}"}
    client.zadd("schedule", {JOB: PAST, JOB.replace("b4a5", "c4a5"): FUTURE})
    return JOB, JOB.replace("b4a5", "c4a5"), {"job": JOB}


#: The examples have the others of the table in docs/reference/kinds.md.
SHAPES = {"connect-redis": CONNECT, "kombu": KOMBU, "sidekiq": SIDEKIQ, "bullmq": BULLMQ}


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_swept_exactly(shard: Shard, client: Any, name: str) -> None:
    due, later, data = fill(client, name)
    (kind,) = kinds_of(settings_of(SHAPES[name], reservations=False), shard).values()
    before = client.zscore(kind.index, later)
    sweeper = make_sweeper(shard, kind)
    backlog = sweeper.backlog()
    assert (backlog.due, backlog.far_ahead, backlog.alive) == (1, 0, 2)
    assert 0 < backlog.oldest_due_seconds < 10**9
    report = sweeper.tick()
    assert {outcome: count for outcome, count in report.counts.items() if count} == {Outcome.EXPIRED: 1}
    assert client.zrange(kind.index, 0, -1, withscores=True) == [(later.encode(), before)]
    ((_, event),) = client.xrange("sweeperd:events")
    assert event[b"id"] == due.encode()
    assert event[b"expires_at"] == b"%d" % (PAST * 1000)
    found = {key[5:].decode(): value.decode() for key, value in event.items() if key.startswith(b"data.")}
    assert found == data
    assert client.exists(*([kind.entry_key(b"s1")] if kind.form != "member" else ["none"])) == 0
    assert not sweeper.tick().candidates, "nothing is due any more, and nothing is taken twice"
    if name == "bullmq":
        assert (client.keys("bull:mail:1"), client.lrange("due", 0, -1)) == ([], [b"send"])
    if name == "kombu":
        assert (client.hkeys("unacked"), client.lrange("again", 0, -1)) == ([b"t2"], [b"t1"])


def test_scores_far_in_the_future_are_told_by_their_unit(shard: Shard, client: Any) -> None:
    (kind,) = kinds_of(settings_of(SIDEKIQ, reservations=False), shard).values()
    client.zadd("schedule", {"a": PAST * 1000})
    backlog = make_sweeper(shard, kind).backlog()
    assert (backlog.due, backlog.far_ahead) == (0, 1)
