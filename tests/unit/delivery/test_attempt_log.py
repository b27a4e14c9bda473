"""The log of attempts while Redis cannot be reached."""

from dataclasses import replace

import pytest

from sweeperd.config import RedisSettings
from sweeperd.delivery.attempt_log import AttemptLog
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.metrics import Metrics
from sweeperd.outbox import OutboxEntry
from sweeperd.store import Shard
from tests.support.servers import free_port


def test_what_cannot_be_written_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is raised, because no delivery waits for the log."""
    shard = Shard(RedisSettings.model_validate({"url": f"redis://127.0.0.1:{free_port()}"}))
    metrics = Metrics()
    log = AttemptLog(shard, "hook", 20, metrics.webhooks.dropped_attempts.labels("hook"))
    entries = [OutboxEntry.of(b"1-1", 1, {b"id": b"one"})]
    for _ in range(2):
        for _ in range(3):
            log.record(entries, "evt_1", "evt_1", DeliveryResult(Result.FAILED, "HTTP 500"))
        log.write()
    dropped = metrics.registry.get_sample_value("sweeperd_webhook_dropped_attempts_total", {"endpoint": "hook"})
    assert dropped == 6
    assert [each.message for each in caplog.records] == ["attempts are not recorded"], "said once"


def test_only_what_is_recorded_is_masked_and_only_once() -> None:
    shard = Shard(RedisSettings.model_validate({"url": f"redis://127.0.0.1:{free_port()}"}))
    log = AttemptLog(shard, "hook", 20, Metrics().webhooks.dropped_attempts.labels("hook"))
    entries, masked = [OutboxEntry.of(b"1-1", 1, {b"id": b"one"})], list[str]()

    def result(result: Result, at_ms: int) -> DeliveryResult:
        name = f"{result} at {at_ms}"
        return DeliveryResult(result, "", at_ms=at_ms, mask_answer=lambda: masked.append(name) or name)

    for at_ms in (1000, 1001, 1099, 1100):
        log.record(entries, "evt_1", "evt_1", result(Result.DELIVERED, at_ms))
    log.record(entries, "evt_1", "evt_1", replace(result(Result.FAILED, 1102), earlier=(result(Result.FAILED, 1101),)))
    log.write()
    assert masked == ["delivered at 1000", "delivered at 1100", "failed at 1101", "failed at 1102"]
