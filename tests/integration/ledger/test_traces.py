"""The spans of the ledger's calls, in the tracing of the program that uses it."""

import subprocess
import sys

from tests.support.servers import Server

#: A program that has tracing of its own; it is a process, since OpenTelemetry is set up once for each.
PROGRAM = """
import sys
from datetime import timedelta
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sweeperd.ledger import InsufficientBudget, Ledger

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with Ledger.from_url(sys.argv[1]) as ledger, trace.get_tracer("shop").start_as_current_span("order") as order:
    ledger.open_budget("acme", "TOKENS", 10)
    for amount in (10, 1):
        try:
            ledger.reserve("acme", ["acme"], "TOKENS", amount, ttl=timedelta(minutes=1), idempotency_key=str(amount))
        except InsufficientBudget:
            pass
for span in spans.get_finished_spans():
    parent = span.parent and span.parent.span_id == order.get_span_context().span_id
    print(span.name, span.attributes.get("db.system.name"), span.status.status_code.name, bool(parent))
"""


def test_each_call_is_a_span_of_the_program(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "ledger open_budget redis UNSET True",
        "ledger reserve redis UNSET True",
        "ledger reserve redis UNSET True",
        "order None UNSET False",
    ]


#: A program without OpenTelemetry's SDK, as one that depends on fastapi.
BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from sweeperd.ledger import Ledger
with Ledger.from_url(sys.argv[1]) as ledger:
    print(ledger.open_budget("acme", "TOKENS", 10).remaining)
"""


def test_the_api_alone_is_enough(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, server.url], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("10\n", "")
