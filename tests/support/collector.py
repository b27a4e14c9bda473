"""An OTLP collector for the tests: takes traces over HTTP and reads them with the protocol's own package."""

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class CollectedSpan:
    """One span as it came in; ids are hex, `parent_id` is empty at the root of a trace."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    linked: tuple[str, ...]
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    #: The reason where it failed.
    error: str


class Collector:
    """Listens on a free port of loopback while the `with` block lasts."""

    def __init__(self) -> None:
        self._spans: list[CollectedSpan] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def variables(self) -> dict[str, str]:
        """What a process's environment needs so that it sends all its spans here, without long waits."""
        address = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        }

    def spans(self, name: str) -> list[CollectedSpan]:
        """The spans of this name so far."""
        with self._lock:
            return [span for span in self._spans if span.name == name]

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(collector) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                spans = _parsed(body)
                with collector._lock:
                    collector._spans.extend(spans)
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _parsed(body: bytes) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            str(_values(resource.resource.attributes)["service.name"]),
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            tuple(link.trace_id.hex() for link in span.links),
            _values(span.attributes),
            [_values(event.attributes) for event in span.events],
            span.status.message,
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    def value(attribute: KeyValue) -> Any:
        return getattr(attribute.value, str(attribute.value.WhichOneof("value")))

    return {attribute.key: value(attribute) for attribute in attributes}
