"""
Traces: a span for each tick, for each delivery and for each call of the ledger.

The daemon and `--once` send theirs where the extra `otel` is installed and the standard variables name a collector
(OTEL_EXPORTER_OTLP_ENDPOINT). The ledger is a library: its spans go to the tracing of the program that uses it. Where
there is none of that, nothing of OpenTelemetry is imported, and a span does nothing.
"""

import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sweeperd import __version__

log = logging.getLogger(__name__)

#: What names a collector; one of them suffices.
_COLLECTOR = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: How long the last spans may take to be sent, seconds.
CLOSE_SECONDS = 3.0

#: What a span can be marked with.
Value = str | int | float | bool


class Span(Protocol):
    """
    A span that has not ended. `trace_id` is 32 hex digits. `traceparent` (W3C) makes this span the parent of what a
    receiver does; empty where there is no such span.
    """

    @property
    def trace_id(self) -> str: ...

    @property
    def traceparent(self) -> str: ...

    def mark(self, attributes: Mapping[str, Value]) -> None:
        """Set attributes."""

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """Note that something happened now."""

    def fail(self, reason: str) -> None:
        """Mark it as failed."""


class Tracer(Protocol):
    """Makes spans, and ends each with its block."""

    def tick(self, shard: str, kind: str) -> AbstractContextManager[Span]:
        """A tick: the root of a new trace, which the tick's events carry on."""

    def delivery(self, endpoint: str, trace_ids: Sequence[str]) -> AbstractContextManager[Span]:
        """The delivery of events with these trace ids, in order; an event without one has an empty one."""

    def close(self) -> None:
        """Send what has not been sent, for CLOSE_SECONDS at most."""


class _Nothing:
    """The span and the tracer where there is no tracing."""

    traceparent = ""

    @property
    def trace_id(self) -> str:
        return secrets.token_hex(16)

    def mark(self, attributes: Mapping[str, Value]) -> None:
        pass

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def tick(self, shard: str, kind: str) -> AbstractContextManager[Span]:  # noqa: ARG002
        return _NO_SPAN

    def delivery(self, endpoint: str, trace_ids: Sequence[str]) -> AbstractContextManager[Span]:  # noqa: ARG002
        return _NO_SPAN

    def close(self) -> None:
        pass


_NOTHING = _Nothing()
_NO_SPAN: AbstractContextManager[Span] = contextlib.nullcontext(_NOTHING)
_tracer: Tracer = _NOTHING


@contextlib.contextmanager
def tracing(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """In the block, spans of ticks and deliveries are sent to the collector that the environment names, if any."""
    global _tracer  # noqa: PLW0603  one for the process, as in OpenTelemetry
    _tracer = _of_environment(environ)
    try:
        yield
    finally:
        _tracer.close()
        _tracer = _NOTHING


def tick(shard: str, kind: str) -> AbstractContextManager[Span]:
    """The span of a tick: the root of a new trace, whose id the tick's events carry."""
    return _tracer.tick(shard, kind)


def delivery(endpoint: str, trace_ids: Sequence[str]) -> AbstractContextManager[Span]:
    """
    The span of a delivery of events with these trace ids, in order; an empty one is an event without. It is a child of
    the tick of the first event, and has a link to each other tick.
    """
    return _tracer.delivery(endpoint, trace_ids)


def ledger_call(operation: str) -> AbstractContextManager[object]:
    """The span of one call of the ledger, in the tracing of the program that uses it. An exception marks it failed."""
    start = _ledger_spans()
    return contextlib.nullcontext() if start is None else start(operation)


@functools.cache
def _ledger_spans() -> Callable[[str], AbstractContextManager[object]] | None:
    try:
        # The API alone: the program may have no SDK, or another one than that of the extra.
        from opentelemetry import trace  # noqa: PLC0415  only if it is installed
    except ImportError:
        return None
    tracer = trace.get_tracer("sweeperd.ledger", __version__)

    def start(operation: str) -> AbstractContextManager[object]:
        attributes = {"db.system.name": "redis", "db.operation.name": operation}
        return tracer.start_as_current_span(f"ledger {operation}", kind=trace.SpanKind.CLIENT, attributes=attributes)

    return start


def _of_environment(environ: Mapping[str, str]) -> Tracer:
    """The tracer that these variables ask for. Raises no error: without traces sweeperd does all its work."""
    if not any(environ.get(name) for name in _COLLECTOR) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return _NOTHING
    if "none" in environ.get("OTEL_TRACES_EXPORTER", ""):
        return _NOTHING
    try:
        from sweeperd.otel import OpenTelemetryTracer  # noqa: PLC0415  only where it is wanted
    except ImportError:
        log.warning("no traces: the extra is not installed", extra={"install": f"sweeperd[otel]=={__version__}"})
        return _NOTHING
    try:
        return OpenTelemetryTracer(CLOSE_SECONDS)
    except ValueError as error:
        log.warning("no traces: an OTEL_ variable cannot be used", extra={"error": str(error)})
        return _NOTHING
