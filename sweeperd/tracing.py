"""
Traces: a span for each tick, for each delivery and for each call of the ledger, through OpenTelemetry's API.

The daemon and `--once` send their spans by OTLP over HTTP if the extra `otel` (OpenTelemetry's SDK) is installed and
the standard variables name a collector (OTEL_EXPORTER_OTLP_ENDPOINT). Otherwise the API makes spans that do nothing.
The ledger is a library: its spans go to the tracing of the program that uses the ledger.

Sampling, batching, headers, certificates and the collector's address are OpenTelemetry's own variables (OTEL_*). Only
the default of the sampling is not: one tick in ten, with all its deliveries. A span that is sent costs 0.1 ms and more
of CPU time.
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

#: The variables that name a collector; one of them suffices.
_COLLECTOR = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: How long the last spans may take to be sent, seconds.
CLOSE_SECONDS = 3.0
#: A batch of events can be of many ticks. A span holds a limited number of links.
MOST_LINKS = 100
#: The part of all ticks that is sampled if OTEL_TRACES_SAMPLER is not set.
DEFAULT_RATIO = 0.1
_TRACE_ID = re.compile("[0-9a-f]{32}")

#: What a span can be marked with.
Value = str | int | float | bool


class Span:
    """
    A span that has not ended. `trace_id` is 32 hex digits, a random id if the span does nothing. `traceparent` (W3C)
    makes this span the parent of what a receiver does; empty if the span does nothing.
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
        """Set attributes."""
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """Note that something happened now."""
        self._span.add_event(name, attributes)

    def fail(self, reason: str) -> None:
        """Mark the span as failed."""
        self._span.set_status(Status(StatusCode.ERROR, reason))


class _Tracing:
    """
    The tracer of this process, and whether a tick is sampled. An event carries only the trace id of its tick, which
    another process may have made: the same sampler says the same about the same trace id.
    """

    def __init__(self, tracer: Tracer, is_sampled: Callable[[int], bool] = lambda _: True) -> None:
        self.tracer = tracer
        self._is_sampled = is_sampled
        #: Many events are of the same tick.
        self.tick_of = functools.lru_cache(maxsize=1024)(self._tick_of)

    def _tick_of(self, trace_id: str) -> SpanContext | None:
        """The tick of an event with this trace id; None if the event has none."""
        if not _TRACE_ID.fullmatch(trace_id):
            return None
        number = int(trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(number) else TraceFlags.DEFAULT)
        context = SpanContext(number, _tick_span(number), is_remote=True, trace_flags=flags)
        return context if context.is_valid else None


def _tick_span(trace_id: int) -> int:
    """
    The id of a tick's span: the first half of the trace's id, because a process that delivers an event knows only the
    trace id, and needs the id of the tick's span.
    """
    return trace_id >> 64


_NOTHING = _Tracing(trace.NoOpTracer())
_NO_SPAN: AbstractContextManager[Span] = contextlib.nullcontext(Span(trace.INVALID_SPAN))
_tracing = _NOTHING


@contextlib.contextmanager
def tracing(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """In the block, spans of ticks and deliveries are sent to the collector that the environment names, if any."""
    global _tracing  # noqa: PLW0603 - one for the process
    _tracing, close = _of_environment(environ)
    try:
        yield
    finally:
        # Without a collector that answers, closing would try again and again.
        closing = threading.Thread(target=close, name="tracing-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        _tracing = _NOTHING


@contextlib.contextmanager
def tick(shard: str, kind: str) -> Iterator[Span]:
    """The span of a tick: the root of a new trace, whose id the tick's events carry."""
    attributes = {"sweeperd.shard": shard, "sweeperd.kind": kind}
    with _tracing.tracer.start_as_current_span("tick", Context(), SpanKind.INTERNAL, attributes) as span:
        yield Span(span)


def delivery(endpoint: str, trace_ids: Sequence[str]) -> AbstractContextManager[Span]:
    """
    The span of a delivery of events with these trace ids, in order; an event without a trace has an empty one. The span
    is a child of the tick of the first event, and has a link to each other tick.
    """
    return _NO_SPAN if _tracing is _NOTHING else _delivery(endpoint, trace_ids)


@contextlib.contextmanager
def _delivery(endpoint: str, trace_ids: Sequence[str]) -> Iterator[Span]:
    first, *others = [_tracing.tick_of(trace_id) for trace_id in dict.fromkeys(trace_ids)] or [None]
    if first is not None and not first.trace_flags.sampled:
        # The receiver gets the id of the trace, and a span of its own.
        yield Span(NonRecordingSpan(SpanContext(first.trace_id, random.getrandbits(64) | 1, is_remote=False)))
        return
    context = Context() if first is None else trace.set_span_in_context(NonRecordingSpan(first), Context())
    links = [Link(other) for other in others[:MOST_LINKS] if other is not None]
    attributes: dict[str, str | int] = {"sweeperd.endpoint": endpoint, "messaging.batch.message_count": len(trace_ids)}
    start = _tracing.tracer.start_as_current_span
    with start("deliver", context, SpanKind.PRODUCER, attributes, links) as span:
        yield Span(span)


def ledger_call(operation: str) -> AbstractContextManager[trace.Span]:
    """The span of one call of the ledger, in the tracing of the program that uses it. An exception marks it failed."""
    attributes = {"db.system.name": "redis", "db.operation.name": operation}
    return _LEDGER.start_as_current_span(f"ledger {operation}", kind=SpanKind.CLIENT, attributes=attributes)


_LEDGER = trace.get_tracer("sweeperd.ledger", __version__)


def _of_environment(environ: Mapping[str, str]) -> tuple[_Tracing, Callable[[], None]]:
    """
    The tracing that these variables ask for, and what ends it. Raises no error: without traces sweeperd does all its
    work.
    """
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
    """Tracing by OpenTelemetry's SDK. Raises ImportError if it is not installed, ValueError on a wrong variable."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio  # noqa: PLC0415

    class Ids(IdGenerator):
        """Random ids, but the span of a tick has the id that `_tick_span` says."""

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
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the environment's own words go first
        resource = resource.merge(Resource({SERVICE_NAME: "sweeperd"}))
    sampler = None if environ.get("OTEL_TRACES_SAMPLER") else ParentBasedTraceIdRatio(DEFAULT_RATIO)
    provider = TracerProvider(sampler, resource, id_generator=Ids())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def is_sampled(trace_id: int) -> bool:
        return provider.sampler.should_sample(None, trace_id, "tick").decision is not Decision.DROP

    return _Tracing(provider.get_tracer("sweeperd", __version__), is_sampled), provider.shutdown
