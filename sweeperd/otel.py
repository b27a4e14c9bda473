"""
Spans of ticks and deliveries by OpenTelemetry: the one module that imports its SDK, which the extra `otel` installs.

Sampling, batching, headers, certificates and the collector's address are OpenTelemetry's own variables (OTEL_*). Only
the default of the sampling is not its own: one tick in ten, with all its deliveries. A span costs 0.1 ms and more of
CPU time, and a delivery without one costs less than 1 ms.
"""

import contextlib
import functools
import os
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sweeperd import __version__

#: A batch of events can be of many ticks. A span holds a limited number of links.
MOST_LINKS = 100
#: The part of all ticks that is sampled where OTEL_TRACES_SAMPLER is not set.
DEFAULT_RATIO = 0.1
_TRACE_ID = re.compile("[0-9a-f]{32}")
_UNSAMPLED, _SAMPLED = TraceFlags(TraceFlags.DEFAULT), TraceFlags(TraceFlags.SAMPLED)


class OpenTelemetryTracer:
    """Sends spans by OTLP over HTTP to the collector that the environment names."""

    def __init__(self, close_seconds: float) -> None:
        self._close_seconds = close_seconds
        sampler = None if os.environ.get("OTEL_TRACES_SAMPLER") else ParentBasedTraceIdRatio(DEFAULT_RATIO)
        self._provider = TracerProvider(sampler, _resource(), id_generator=_Ids())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("sweeperd", __version__)
        #: Many events are of the same tick.
        self._tick_of = functools.lru_cache(maxsize=1024)(self._tick)

    @contextlib.contextmanager
    def tick(self, shard: str, kind: str) -> Iterator["OpenTelemetrySpan"]:
        attributes = {"sweeperd.shard": shard, "sweeperd.kind": kind}
        with self._tracer.start_as_current_span("tick", Context(), SpanKind.INTERNAL, attributes) as span:
            yield OpenTelemetrySpan(span)

    @contextlib.contextmanager
    def delivery(self, endpoint: str, trace_ids: Sequence[str]) -> Iterator["OpenTelemetrySpan | UnsampledSpan"]:
        # In the order of the events, each once.
        first, *others = [self._tick_of(trace_id) for trace_id in dict.fromkeys(trace_ids)] or [None]
        if first is not None and not first.trace_flags.sampled:
            yield UnsampledSpan(trace_ids[0])
            return
        context = Context() if first is None else trace.set_span_in_context(NonRecordingSpan(first), Context())
        links = [Link(other) for other in others[:MOST_LINKS] if other is not None]
        attributes: dict[str, str | int] = {
            "sweeperd.endpoint": endpoint,
            "messaging.batch.message_count": len(trace_ids),
        }
        with self._tracer.start_as_current_span("deliver", context, SpanKind.PRODUCER, attributes, links) as span:
            yield OpenTelemetrySpan(span)

    def close(self) -> None:
        # Without a collector that answers it would try again and again.
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(self._close_seconds)

    def _tick(self, trace_id: str) -> SpanContext | None:
        """
        The tick that an event with this trace id is of, None where the event has none. The tick was perhaps another
        process's; whether it was sampled is what the same sampler says of the same trace id.
        """
        if not _TRACE_ID.fullmatch(trace_id):
            return None
        number = int(trace_id, 16)
        decision = self._provider.sampler.should_sample(None, number, "tick").decision
        flags = _UNSAMPLED if decision is Decision.DROP else _SAMPLED
        context = SpanContext(number, _tick_span(number), is_remote=True, trace_flags=flags)
        return context if context.is_valid else None


class OpenTelemetrySpan:
    """One span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.trace_id = trace.format_trace_id(context.trace_id)
        flags = "01" if context.trace_flags.sampled else "00"
        self.traceparent = f"00-{self.trace_id}-{trace.format_span_id(context.span_id)}-{flags}"

    def mark(self, attributes: Mapping[str, str | int | float | bool]) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, str | int | float | bool]) -> None:
        self._span.add_event(name, attributes)

    def fail(self, reason: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, reason))


class UnsampledSpan:
    """A span of a trace that is not sampled: its id, which the receiver gets, and nothing else."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.traceparent = f"00-{trace_id}-{random.getrandbits(64) | 1:016x}-00"

    def mark(self, attributes: Mapping[str, str | int | float | bool]) -> None:
        pass

    def event(self, name: str, attributes: Mapping[str, str | int | float | bool]) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass


class _Ids(IdGenerator):
    """
    Random ids, but the span of a tick has the first half of its trace's id: an event carries only the trace id, and the
    process that delivers the event needs the id of the tick's span.
    """

    def __init__(self) -> None:
        self._new = threading.local()

    def generate_trace_id(self) -> int:
        self._new.trace_id = trace_id = random.getrandbits(128) | 1 << 64 | 1
        return trace_id

    def generate_span_id(self) -> int:
        trace_id = self._new.__dict__.pop("trace_id", None)
        return random.getrandbits(64) | 1 if trace_id is None else _tick_span(trace_id)

    def is_trace_id_random(self) -> bool:
        return True


def _tick_span(trace_id: int) -> int:
    """The id of the tick's span."""
    return trace_id >> 64


def _resource() -> Resource:
    """What the spans say about the process; the environment's own words go first."""
    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "sweeperd"}))
    return resource
