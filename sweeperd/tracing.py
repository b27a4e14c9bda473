"""
Traces ticks, deliveries and calls of the ledger with OpenTelemetry.

The daemon and `--once` export spans by OTLP over HTTP if the extra `otel` (OpenTelemetry's SDK) is installed and the
standard variables name a collector (OTEL_EXPORTER_OTLP_ENDPOINT). Otherwise spans are no-ops. The ledger is a library,
so its spans go to the tracing of the program that uses it.

OpenTelemetry's own variables (OTEL_*) configure everything. Only the default sampling differs: one tick in ten, with
all its deliveries, because an exported span costs 0.1 ms of CPU time or more.
"""

import contextlib
import functools
import logging
import os
import random
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer

from sweeperd import __version__

log = logging.getLogger(__name__)

#: The variables that name a collector. One of them is enough.
_COLLECTOR = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: How long to wait for the last spans to be exported, seconds.
CLOSE_SECONDS = 3.0
#: The most links of a span. A batch may have events of many ticks.
MOST_LINKS = 100
#: The share of ticks to sample if OTEL_TRACES_SAMPLER is not set.
DEFAULT_RATIO = 0.1
_TRACE_ID = re.compile("[0-9a-f]{32}")

#: An attribute of a span.
Value = str | int | float | bool


class Span:
    """
    A span that has not ended. `trace_id` is 32 hex digits, random for a no-op span. `traceparent` (W3C) makes this span
    the parent of the receiver's spans; empty for a no-op span.
    """

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = ""
        if context.is_valid:
            self.trace_id = trace.format_trace_id(context.trace_id)
            flags = "01" if context.trace_flags.sampled else "00"
            self.traceparent = f"00-{self.trace_id}-{trace.format_span_id(context.span_id)}-{flags}"
        else:
            self.trace_id = secrets.token_hex(16)

    def mark(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        self._span.add_event(name, attributes)

    def fail(self, reason: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        self._span.end()


class _Tracing:
    """
    The tracer of this process and its sampling. An event carries only the trace id of its tick, possibly of another
    process. Every process makes the same sampling decision for the same trace id.
    """

    def __init__(self, tracer: Tracer, is_sampled: Callable[[int], bool] = lambda _: True) -> None:
        self.tracer = tracer
        self._is_sampled = is_sampled
        #: Cached, because many events share a tick.
        self.tick_of = functools.lru_cache(maxsize=1024)(self._tick_of)

    def _tick_of(self, trace_id: str) -> SpanContext | None:
        """The tick with this trace id; None if the id is missing or invalid."""
        if not _TRACE_ID.fullmatch(trace_id):
            return None
        number = int(trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(number) else TraceFlags.DEFAULT)
        context = SpanContext(number, _tick_span(number), is_remote=True, trace_flags=flags)
        return context if context.is_valid else None


def _tick_span(trace_id: int) -> int:
    """
    The id of a tick's span: the first half of its trace id, so that a process that delivers an event can derive it.
    """
    return trace_id >> 64


_NOTHING = _Tracing(trace.NoOpTracer())
_NO_SPAN = Span(trace.INVALID_SPAN)
_tracing = _NOTHING


@contextlib.contextmanager
def tracing(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Export spans to the collector that the environment names, if any, during the block."""
    global _tracing  # noqa: PLW0603 - one for the process
    _tracing, close = _of_environment(environ)
    try:
        yield
    finally:
        # Without a responding collector, closing would keep retrying.
        closing = threading.Thread(target=close, name="tracing-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        _tracing = _NOTHING


@contextlib.contextmanager
def tick(shard: str, kind: str) -> Iterator[Span]:
    """The span of a tick, the root of a new trace. The tick's events carry its trace id."""
    attributes = {"sweeperd.shard": shard, "sweeperd.kind": kind}
    with _tracing.tracer.start_as_current_span("tick", Context(), SpanKind.INTERNAL, attributes) as span:
        yield Span(span)


def delivery(endpoint: str, trace_ids: Sequence[str]) -> Span:
    """
    The span of a delivery of events with these trace ids, empty for an event without one. It is a child of the first
    event's tick, and links to the other ticks. The caller ends it.
    """
    if _tracing is _NOTHING:
        return _NO_SPAN
    first, *others = [_tracing.tick_of(trace_id) for trace_id in dict.fromkeys(trace_ids)] or [None]
    if first is not None and not first.trace_flags.sampled:
        # Passes the trace id to the receiver with a new span id.
        return Span(NonRecordingSpan(SpanContext(first.trace_id, random.getrandbits(64) | 1, is_remote=False)))
    context = Context() if first is None else trace.set_span_in_context(NonRecordingSpan(first), Context())
    links = [Link(other) for other in others[:MOST_LINKS] if other is not None]
    attributes: dict[str, str | int] = {"sweeperd.endpoint": endpoint, "messaging.batch.message_count": len(trace_ids)}
    # Not the current span: one thread may begin a delivery, and another one end it after a quick retry.
    return Span(_tracing.tracer.start_span("deliver", context, SpanKind.PRODUCER, attributes, links))


def ledger_call(operation: str) -> AbstractContextManager[trace.Span]:
    """The span of one ledger call, in the tracing of the calling program. An exception marks it as failed."""
    attributes = {"db.system.name": "redis", "db.operation.name": operation}
    return _LEDGER.start_as_current_span(f"ledger {operation}", kind=SpanKind.CLIENT, attributes=attributes)


_LEDGER = trace.get_tracer("sweeperd.ledger", __version__)


def _of_environment(environ: Mapping[str, str]) -> tuple[_Tracing, Callable[[], None]]:
    """The tracing configured by these variables, and how to close it. Never raises, because traces are optional."""
    nothing = _NOTHING, lambda: None
    if not any(environ.get(name) for name in _COLLECTOR) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return nothing
    if "none" in environ.get("OTEL_TRACES_EXPORTER", ""):
        return nothing
    try:
        return _sdk(environ)
    except ImportError:
        log.warning("no traces: the extra is not installed", extra={"install": f"sweeperd[otel]=={__version__}"})
    except ValueError as error:
        log.warning("no traces: an OTEL_ variable cannot be used", extra={"error": str(error)})
    return nothing


def _sdk(environ: Mapping[str, str]) -> tuple[_Tracing, Callable[[], None]]:
    """Tracing with OpenTelemetry's SDK. Raises ImportError if it is missing, ValueError for an invalid variable."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio  # noqa: PLC0415

    class Ids(IdGenerator):
        """Random ids, except that `_tick_span` derives the id of a tick's span."""

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

    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the environment takes precedence
        resource = resource.merge(Resource({SERVICE_NAME: "sweeperd"}))
    sampler = None if environ.get("OTEL_TRACES_SAMPLER") else ParentBasedTraceIdRatio(DEFAULT_RATIO)
    provider = TracerProvider(sampler, resource, id_generator=Ids())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def is_sampled(trace_id: int) -> bool:
        return provider.sampler.should_sample(None, trace_id, "tick").decision is not Decision.DROP

    return _Tracing(provider.get_tracer("sweeperd", __version__), is_sampled), provider.shutdown
