"""The log of attempts: every failure, a sample of the successes, bounded, and no delivery waits for it."""

import json
from collections import Counter

import pytest
import redis

from sweeperd.delivery.attempt_log import SUCCESS_EVERY_MS, AttemptLog
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.metrics import Metrics
from sweeperd.outbox import OutboxEntry
from sweeperd.outbox.attempts import Attempt, attempts_with, read_attempts
from sweeperd.outbox.masking import ANSWER
from sweeperd.store import Shard
from sweeperd.store.lease import process_name
from tests.support.deliveries import Deliver, Delivery, expire, settled
from tests.support.fixtures import full
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver, Request

KEY = "sweeperd:attempts:hook"
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="


def attempts(shard: Shard) -> list[Attempt]:
    """The newest first."""
    return [each.attempt for each in read_attempts(shard, "hook", 10_000)]


def dropped(delivery: Delivery) -> float:
    return delivery.sample("sweeperd_webhook_dropped_attempts_total")


def test_a_success(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    with Receiver(lambda *_: Answer(201, body=b"thanks")) as receiver, deliver(receiver.url) as delivery:
        (entry,) = expire(client, "one")
        (attempt,) = eventually(lambda: attempts(shard))
        settled(delivery)
        (request,) = receiver.requests
        assert dropped(delivery) == 0
    assert 0 <= server_time(client) - attempt.at_ms < 20_000
    assert attempt == Attempt(
        attempt.at_ms,
        request.event_id,
        b"one",
        entry,
        entry,
        1,
        1,
        1,
        "delivered",
        "HTTP 201",
        attempt.milliseconds,
        "thanks",
        process_name(),
        request.event_id,
    )


def test_every_failure_with_its_number_and_a_sample_of_the_successes(
    client: redis.Redis, shard: Shard, deliver: Deliver
) -> None:
    names = [f"r{number}" for number in range(60)]

    def behaviour(request: Request, before: int) -> Answer:
        poor = request.event["data"]["reservation_id"] in ("r7", "r30")
        return Answer(503, body=b"busy") if poor and before < 3 else Answer()

    with Receiver(behaviour) as receiver, deliver(receiver.url, 4, attempts=2) as delivery:
        started = server_time(client)
        expire(client, *names)
        eventually(lambda: delivery.attempts("delivered") == len(names))
        settled(delivery)
        eventually(lambda: len([each for each in attempts(shard) if each.result == "failed"]) == 6)
        took = server_time(client) - started
    found = attempts(shard)
    failures = [each for each in found if each.result == "failed"]
    assert Counter(each.reservation for each in failures) == {b"r7": 3, b"r30": 3}
    of_one = sorted(
        (each.hand_over, each.attempt, each.reason, each.answer) for each in failures[::1] if each.reservation == b"r7"
    )
    assert of_one == [(1, 1, "HTTP 503", "busy"), (1, 2, "HTTP 503", "busy"), (2, 1, "HTTP 503", "busy")]
    successes = [each for each in found if each.result == "delivered"]
    # Those after a failure are recorded as well.
    assert {b"r7", b"r30"} <= {each.reservation for each in successes}
    assert len(successes) <= took / SUCCESS_EVERY_MS + 3


def test_a_batch_is_one_attempt(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver, deliver(receiver.url, 1, {"batch_size": 10}) as delivery:
        entries = expire(client, *(f"r{number}" for number in range(10)))
        attempt = eventually(lambda: attempts(shard))[-1]
        assert delivery.attempts("failed") >= 1
    first = json.loads(receiver.requests[0].body)[0]
    assert (attempt.events, attempt.first, attempt.last) == (10, entries[0], entries[9])
    assert (attempt.event_id, attempt.reservation) == (first["event_id"], b"r0")
    assert [each.attempt for each in attempts_with(shard, ["hook"], entries[4])][-1] == attempt
    assert not attempts_with(shard, ["hook"], b"1-1")


def test_an_answer_that_repeats_secrets(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    def echo(request: Request, _: int) -> Answer:
        headers = "; ".join(request.headers.values())
        return Answer(400, body=f"{SECRET} {request.path} {headers}".encode() + b"\xff" * 1000)

    endpoint = {"secrets": [SECRET], "headers": {"X-Key": "hush-hush"}}
    with Receiver(echo) as receiver:
        url = receiver.url.replace("//", "//user:password@") + "?token=in-the-query"
        with deliver(url, 1, endpoint):
            expire(client, "one")
            attempt = eventually(lambda: attempts(shard))[-1]
        request = receiver.requests[0]
    assert len(attempt.answer) == ANSWER
    stored = repr(client.xrange(KEY)).encode()
    signature = request.headers["webhook-signature"]
    for secret in (SECRET, "hush-hush", "in-the-query", request.headers["Authorization"], signature):
        assert secret.encode() not in stored
    assert attempt.answer.startswith("*** /hook?*** ")


def test_the_log_is_bounded(client: redis.Redis, shard: Shard) -> None:
    metrics = Metrics()
    log = AttemptLog(shard, "hook", 20, metrics.webhooks.dropped_attempts.labels("hook"))
    entries = [OutboxEntry.of(b"1-1", 1, {b"id": b"one"})]
    for _ in range(30):
        for _ in range(25):  # five more than are kept
            log.record(entries, "evt_1", "evt_1", DeliveryResult(Result.FAILED, "HTTP 500"))
        log.write()
    # Redis removes whole nodes of a stream, 100 entries at most.
    assert 20 <= client.xlen(KEY) <= 20 + 100
    assert metrics.registry.get_sample_value("sweeperd_webhook_dropped_attempts_total", {"endpoint": "hook"}) == 30 * 5


def test_none_is_kept(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver() as receiver, deliver(receiver.url, kept=0) as delivery:
        expire(client, "one")
        eventually(lambda: delivery.attempts("delivered") == 1)
        settled(delivery)
    assert not client.exists(KEY)


def test_a_full_redis_drops_attempts_and_delivers(own_shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    client = own_shard.client
    with Receiver(lambda _, before: Answer(500 if before == 0 else 200)) as receiver:
        delivery = Delivery(own_shard, receiver.url, 2, {}, backoff_initial="10ms")
        expire(client, *(f"r{number}" for number in range(10)))
        with full(own_shard):
            delivery.dispatcher.start()
            eventually(lambda: delivery.attempts("delivered") == 10)
            eventually(lambda: dropped(delivery) >= 20)
            settled(delivery)
            assert not client.exists(KEY)
            assert len([each for each in caplog.records if each.message == "attempts are not recorded"]) == 1
        expire(client, "later")
        eventually(lambda: client.exists(KEY))
        delivery.stop.set()
        assert delivery.dispatcher.join()


def test_the_time_that_it_took_is_kept_in_milliseconds(shard: Shard) -> None:
    log = AttemptLog(shard, "hook", 20, Metrics().webhooks.dropped_attempts.labels("hook"))
    log.record(
        [OutboxEntry.of(b"1-1", 1, {})], "evt_1", "evt_1", DeliveryResult(Result.FAILED, "HTTP 500", seconds=1.2345)
    )
    log.write()
    assert [each.milliseconds for each in attempts(shard)] == [1234]
