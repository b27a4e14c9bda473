"""Traces, as a collector gets them: ticks, deliveries whose parent exists, and none where they are not wanted."""

import os
import subprocess
import sys

import redis

from tests.support.collector import CollectedSpan, Collector
from tests.support.harness import environment, once, reserve
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port

QUICK = {"webhooks__backoff_initial": "10ms", "webhooks__backoff_max": "50ms"}


def only(spans: list[CollectedSpan]) -> CollectedSpan:
    (span,) = spans
    return span


def begin(server: Server, receiver: Receiver, **endpoint: object) -> dict[str, str]:
    """The environment of a sweeperd whose endpoint is known already, so that it gets what expires from here on."""
    env = environment(server.url, endpoints=[{"name": "billing", "url": receiver.url, **endpoint}], **QUICK)
    assert once(env).code == 0
    return env


def test_a_delivery_is_a_child_of_its_tick_and_the_parent_of_what_the_receiver_does(
    server: Server, client: redis.Redis
) -> None:
    with Receiver(lambda _, before: Answer(200 if before else 503)) as receiver, Collector() as collector:
        env = begin(server, receiver)
        reserve(client, ["a"])
        done = once(env | collector.variables)
        requests = receiver.requests
    assert (done.code, done.errors) == (0, "")
    tick, delivery = only(collector.spans("tick")), only(collector.spans("deliver"))
    assert (tick.service, tick.parent_id, tick.error) == ("sweeperd", "", "")
    assert tick.attributes == {"sweeperd.shard": "default", "sweeperd.kind": "reservations", "sweeperd.expired": 1}
    assert (delivery.trace_id, delivery.parent_id) == (tick.trace_id, tick.span_id)
    assert delivery.attributes == {"sweeperd.endpoint": "billing", "messaging.batch.message_count": 1}
    assert [event["result"] for event in delivery.events] == ["HTTP 503", "HTTP 200"]
    assert [request.event["trace_id"] for request in requests] == [tick.trace_id] * 2
    traceparents = {request.headers["traceparent"] for request in requests}
    assert traceparents == {f"00-{delivery.trace_id}-{delivery.span_id}-01"}


def test_a_failed_delivery_and_a_failed_tick_say_why(server: Server, client: redis.Redis) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver, Collector() as collector:
        env = begin(server, receiver) | collector.variables
        reserve(client, ["a"])
        assert once(env).code == 3
        client.execute_command("XSETID", "sweeperd:events", f"{2**64 - 1}-{2**64 - 1}")  # no entry can follow it
        reserve(client, [f"r{number}" for number in range(11)])
        assert once(env).code == 1
    (failed,) = [span for span in collector.spans("tick") if span.error]
    assert failed.error.startswith("every entry failed: ")
    assert failed.attributes["sweeperd.error"] == 11
    assert {span.error for span in collector.spans("deliver")} == {"HTTP 500"}


def test_a_batch_has_a_link_to_each_further_tick(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver, Collector() as collector:
        env = begin(server, receiver, batch_size=10)
        for rid in ("a", "b", "c"):
            reserve(client, [rid])
            assert once(env | collector.variables | {"SWEEPERD_WEBHOOKS__ENDPOINTS": "[]"}).code == 0
        assert once(env | collector.variables).code == 0
        (request,) = receiver.requests
    ticks = [span for span in collector.spans("tick") if "sweeperd.expired" in span.attributes]
    delivery = only(collector.spans("deliver"))
    assert (delivery.parent_id, delivery.attributes["messaging.batch.message_count"]) == (ticks[0].span_id, 3)
    assert delivery.linked == (ticks[1].trace_id, ticks[2].trace_id)
    assert request.headers["traceparent"] == f"00-{ticks[0].trace_id}-{delivery.span_id}-01"


def test_what_is_not_sampled_says_so_to_the_receiver(server: Server, client: redis.Redis) -> None:
    never = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    with Receiver() as receiver, Collector() as collector:
        env = begin(server, receiver)
        reserve(client, ["a"])
        assert once(env | collector.variables | never).code == 0
        (request,) = receiver.requests
    assert collector.spans("tick") == []
    assert collector.spans("deliver") == []
    assert request.headers["traceparent"].startswith(f"00-{request.event['trace_id']}-")
    assert request.headers["traceparent"].endswith("-00")


def test_a_collector_that_is_away_costs_nothing_but_the_traces(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        env = begin(server, receiver)
        reserve(client, ["a"])
        done = once(env | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
        assert (done.code, done.report["delivered"]) == (0, 1)


def test_the_sdk_is_imported_only_if_a_collector_is_named() -> None:
    probe = """
import sys
from sweeperd import tracing
with tracing.tracing({}), tracing.tick("default", "reservations") as span:
    assert len(span.trace_id) == 32
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_without_the_extra_one_line_says_what_is_missing() -> None:
    probe = """
import logging, sys
logging.basicConfig(format="%(message)s %(install)s")
sys.modules["opentelemetry.sdk"] = sys.modules["opentelemetry.exporter"] = None
from sweeperd import tracing
with tracing.tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}), tracing.tick("a", "b") as span:
    assert len(span.trace_id) == 32
"""
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stderr.startswith("no traces: the extra is not installed sweeperd[otel]==")


def test_a_variable_that_cannot_be_used_costs_the_traces_alone() -> None:
    probe = """
import logging
logging.basicConfig(format="%(message)s: %(error)s")
from sweeperd import tracing
with tracing.tracing(), tracing.tick("a", "b") as span:
    assert len(span.trace_id) == 32
"""
    wrong = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_BSP_MAX_QUEUE_SIZE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | wrong, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n"), "max_queue_size" in done.stderr) == (0, 1, True)
