"""`kill -9` in the middle of a drain, again and again: nothing is lost, nothing is done twice."""

import random
import subprocess

import redis

from sweeperd.embedded import Server
from tests.receiver import Receiver
from tests.world import budget, command, environment, once, reserve

TOTAL = 20_000


def test_once_is_killed_again_and_again(server: Server, client: redis.Redis) -> None:
    chance = random.Random(20_000)
    with Receiver() as receiver:
        env = environment(
            server.url,
            endpoints=[{"name": "hook", "url": receiver.url}],
            webhooks__redelivery_initial="100ms",
        )
        once(env)
        reserve(client, [f"id {number}" for number in range(TOTAL)])
        kills = 0
        # Each run gets a little further. The later ones are killed while they deliver.
        while kills < 15:
            process = subprocess.Popen(command("--once", "--json", "--log-level", "error"), env=env)
            try:
                process.wait(chance.uniform(0.4, 3.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
            else:
                break
        # What the dead had in hand is taken over after they have been silent for a while, within one run.
        last = once(env, limit=300)
        assert last.code == 0, last.errors
        assert kills > 3

        events = client.xrange("sweeperd:events")
        ids = [fields[b"id"] for _, fields in events]
        assert len(ids) == len(set(ids)) == TOTAL
        told = {request.event["data"]["reservation_id"].encode() for request in receiver.requests}
        assert told == set(ids)
        assert len(receiver.event_ids) == TOTAL
        # At most what was in hand at each kill is told twice.
        assert len(receiver.requests) - TOTAL <= kills * 32
        assert client.xpending("sweeperd:events", "hook")["pending"] == 0
        assert client.zcard("reservation:ttl") == 0
        assert budget(client) == (0, 5 * TOTAL)
