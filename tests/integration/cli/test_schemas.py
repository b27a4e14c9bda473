"""What the commands print with `--json` fits its schema in docs/schemas, and each of its fields is in there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
from referencing import Registry, Resource

from sweeperd.config import RedisSettings
from sweeperd.store import Shard
from tests.integration.cli.conftest import Run, give_up
from tests.support.harness import reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"

#: Schema, and commands whose output it describes; those that change something come last.
COMMANDS = [
    ("acl", ["acl"]),
    ("actions", ["actions"]),
    ("check", ["check"]),
    ("check", ["check", "--sample", "100"]),
    ("dry-run", ["--once", "--dry-run"]),
    ("status", ["status"]),
    *(("show", ["show", name]) for name in ("late", "broken-1", "open")),
    ("quarantine-list", ["quarantine", "list"]),
    ("dead-letters-list", ["dead-letters", "list"]),
    ("endpoints-list", ["endpoints", "list"]),
    ("endpoints-attempts", ["endpoints", "attempts", "billing"]),
    ("endpoints-test", ["endpoints", "test", "billing"]),
    ("expired", ["expired"]),
    ("expired-count", ["expired", "--count"]),
    ("ledger-show", ["ledger", "show", "tenant:acme:TOKENS"]),
    ("reconcile", ["reconcile"]),
    ("reconcile", ["reconcile", "--last"]),
    ("replay", ["replay", "--endpoint", "billing", "--since", "1h", "--detach", "--yes"]),
    ("replay", ["replay", "--endpoint", "billing", "--cancel", "--yes"]),
    ("endpoints-change", ["endpoints", "pause", "billing", "--yes"]),
    ("endpoints-change", ["endpoints", "resume", "billing", "--yes"]),
    ("endpoints-skip", ["endpoints", "skip", "billing", "evt_1", "--yes"]),
    ("quarantine-change", ["quarantine", "requeue", "broken-1", "--yes"]),
    ("quarantine-change", ["quarantine", "dismiss", "broken-1", "--yes"]),
    ("quarantine-adopt", ["quarantine", "adopt", "broken-1", "--yes"]),
    ("dead-letters-change", ["dead-letters", "drop", "{letter}", "--yes"]),
    ("dead-letters-change", ["dead-letters", "replay", "--all", "--yes"]),
    ("reconcile", ["reconcile", "--repair", "--yes"]),
    ("repair-budget", ["reconcile", "--repair-budget", "tenant:acme:TOKENS", "--yes"]),
    ("endpoints-drop", ["endpoints", "drop", "billing", "--before", "0s", "--yes"]),
    ("uninstall", ["uninstall", "--yes"]),
]


def strict(schema: Any) -> Any:
    """The schema for tests: an object has no field that the schema does not name."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if {"type", "properties"} <= schema.keys() else {}
    return closed | {key: strict(value) for key, value in schema.items()}


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def check(name: str, document: Any) -> None:
    webhook = Resource.from_contents(strict(schema("webhook")))
    registry: Registry[Any] = Registry().with_resource("webhook.schema.json", webhook)
    jsonschema.Draft202012Validator(strict(schema(name)), registry=registry).validate(document)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def printed(invoke: Run, server: Server, client: redis.Redis, receiver: Receiver) -> Callable[..., Any]:
    """
    Runs a command with `--json` on a system with events, dead letters and quarantined rows, and returns the documents
    that it prints, one a line.
    """
    endpoints = [{"name": "billing", "url": receiver.url, "tenants": ["acme"], "secrets": ["whsec_c2VjcmV0"]}]
    give_up(Shard(RedisSettings.model_validate({"url": server.url})), ["dead-1", "dead-2"])
    reserve(client, ["late", "broken-1", "broken-2"])
    reserve(client, ["open"], overdue_by=-60_000)
    for broken in ("broken-1", "broken-2"):
        client.hset(f"reservation:res_{broken}", "estimate_amount", "x")

    client.zrem("reservation:ttl", "open")
    client.zadd("reservation:ttl", {"no reservation": 4_000_000_000_000})

    def run(*arguments: str) -> Any:
        result = invoke(*arguments, "--json", endpoints=endpoints)
        try:
            documents = [json.loads(result.stdout)]  # one document may have several lines
        except json.JSONDecodeError:
            documents = [json.loads(line) for line in result.stdout.splitlines()]
        assert documents, result.stderr
        return documents

    for report in run("--once"):
        check("once", report)
    return run


def test_each_document_fits(printed: Callable[..., Any], receiver: Receiver, client: redis.Redis) -> None:
    letters: Any = client.xrange("sweeperd:dead-letters")
    for name, arguments in COMMANDS:
        for document in printed(*(each.format(letter=letters[0][0].decode()) for each in arguments)):
            check(name, document)
    types = {request.event["event_type"] for request in receiver.requests}
    assert {"reservation.expired"} < types
    for request in receiver.requests:
        check("webhook", request.event)


def test_a_field_that_the_schema_does_not_name_is_noticed() -> None:
    report = dict.fromkeys(schema("once")["properties"], 0)
    check("once", report)
    with pytest.raises(jsonschema.ValidationError):
        check("once", report | {"surprise": 1})


def test_each_schema_is_held_to_what_is_printed() -> None:
    # test_kind_tools.py holds the one of a kind's walk, test_kind_held.py that of `kinds accept`, test_index.py that of
    # `index`; tests/unit/cli those of `config` and `listen`.
    others = {"once", "webhook", "kinds-accept", "index", "config", "config-print", "listen"}
    held = {name for name, _ in COMMANDS} | others
    assert {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()} == held


def test_a_line_of_expired_is_the_body_of_a_webhook_and_the_shard() -> None:
    line, body = schema("expired"), schema("webhook")
    assert line["properties"].pop("shard")
    line["required"].remove("shard")
    for key in ("title", "description"):
        del line[key], body[key]
    assert line == body
