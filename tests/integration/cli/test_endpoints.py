"""`sweeperd endpoints`: how each stands, pausing, resuming, trying one out."""

import base64
import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis
import standardwebhooks
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker
from sweeperd.ops.trial import BODY_SHOWN
from sweeperd.outbox import (
    CircuitStateStore,
    DeliveryRate,
    EndpointStateStore,
    Outbox,
    OutboxEntry,
    dead_letters,
    message,
)
from sweeperd.outbox.dead_letters import DeadLetterFilter
from sweeperd.store import Shard
from tests.integration.cli.conftest import HOSTILE, Run, expire, give_up
from tests.support.fixtures import full
from tests.support.harness import reserve, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port
from tests.support.streams import append

BOARD = "sweeperd:endpoints"
ENDPOINTS: list[dict[str, Any]] = [
    {"name": "billing", "url": "https://user:hush@billing.example.com:8443/hook?token=hush#hush"},
    {"name": "audit", "url": "http://audit.example.com/", "tenants": ["acme", "globex"]},
]


def listed(invoke: Run, **settings: Any) -> dict[str, dict[str, Any]]:
    result = invoke("endpoints", "list", "--json", **({"endpoints": ENDPOINTS} | settings))
    assert (result.exit_code, result.stderr) == (0, "")
    return {row["endpoint"]: row for row in json.loads(result.stdout)["endpoints"]}


# ---- list


def test_list_before_anything_was_delivered(invoke: Run) -> None:
    rows = listed(invoke)
    assert list(rows) == ["billing", "audit"]
    billing = rows["billing"]
    assert (billing["state"], billing["url"]) == ("stopped", "https://billing.example.com:8443/hook?…")
    assert (billing["configured"], billing["pending"], billing["replay"]) == (True, None, None)
    assert rows["audit"]["tenants"] == ["acme", "globex"]


def test_list_and_status_tell_that_the_relay_waits(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state stays the same: nothing has failed."""
    monkeypatch.setenv("SWEEPERD_CYCLES__ENABLED", "true")

    def told(command: str) -> tuple[str, str]:
        document = json.loads(invoke(*command.split(), "--json").stdout)
        (row,) = document["endpoints"] if "endpoints" in document else document["shards"][0]["endpoints"]
        return row["state"], row["warning"]

    for waiting in ("", "1795507205123"):
        client.hset(shard.keys.relay.decode(), "waiting", waiting)
        assert told("endpoints list") == told("status")
        state, warning = told("status")
        assert (state, "dispatcher" in warning) == ("stopped", bool(waiting))
    for command in (["endpoints", "list"], ["status"]):
        assert warning in invoke(*command).stdout


def test_list_tells_what_waits_and_why(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, board = Outbox(shard, "test"), EndpointStateStore(shard)
    stream.groups.ensure("audit")
    give_up(shard, ["a", "b"])
    give_up(shard, ["c"], endpoint="old")
    reserve(client, ["d"])
    expire(client, ["d"])
    stream.read("audit", 1)
    board.pause("billing", "moving house")
    board.mute("audit", 600)
    rows = listed(invoke)
    assert list(rows) == ["billing", "audit", "old"]
    assert (rows["billing"]["pending"], rows["billing"]["dead_letters"]) == (2, 2)
    assert (rows["audit"]["pending"], rows["audit"]["dead_letters"]) == (4, 0)
    assert rows["audit"]["oldest_pending_seconds"] >= rows["billing"]["oldest_pending_seconds"] > 0
    assert (rows["billing"]["state"], rows["billing"]["paused_reason"]) == ("paused", "moving house")
    assert (rows["audit"]["paused_at"], rows["audit"]["state"]) == (None, "muted")
    assert (rows["old"]["configured"], rows["old"]["dead_letters"]) == (False, 1)
    result = invoke("endpoints", "list", endpoints=ENDPOINTS)
    head, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    table = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert re.fullmatch("paused since 20.+Z: moving house", table["billing"]["state"])
    assert re.fullmatch("muted until 20.+Z", table["audit"]["state"])
    assert table["old"]["state"] == "not in the configuration"
    assert table["audit"]["tenants"] == "acme, globex"
    assert "hush" not in result.output + json.dumps(rows)
    assert re.fullmatch(r"[0-9.]+ s", table["audit"]["oldest"])
    monkeypatch.setattr("sweeperd.outbox.dead_letters.COUNTED", 1)
    monkeypatch.setattr("sweeperd.outbox.dead_letters.COUNT_PAGE", 1)
    assert not listed(invoke)["billing"]["dead_letters_counted"]
    assert "\t1+\t" in invoke("endpoints", "list", endpoints=ENDPOINTS).stdout
    few = invoke("endpoints", "list", "--limit", "1", "--json")
    assert [row["endpoint"] for row in json.loads(few.stdout)["endpoints"]] == ["billing"], "it is paused"
    assert (json.loads(few.stdout)["truncated"], "2 more endpoints" in few.stderr) == (True, True)


def test_what_stands_on_the_board_and_cannot_be_read(invoke: Run, client: redis.Redis) -> None:
    client.hset(BOARD, "billing", "nonsense")
    assert listed(invoke)["billing"]["state"] == "paused"
    assert "unknown time" in invoke("endpoints", "list", endpoints=ENDPOINTS).stdout


# ---- pause and resume


def test_pause_and_resume(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    board = EndpointStateStore(shard)

    def told(*arguments: str) -> dict[str, Any]:
        result = invoke("endpoints", *arguments, "--json", endpoints=ENDPOINTS)
        document = json.loads(result.stdout)
        assert (result.exit_code, result.stderr, document["endpoint"], document["down"]) == (0, "", "billing", [])
        (row,) = document["shards"]
        return dict(row)

    paused = told("pause", "billing", "--reason", "moving house", "--yes")
    state = board.read("billing")
    assert (paused["changed"], paused["paused"], paused["reason"], state.reason) == (True, True, *["moving house"] * 2)
    assert state.paused_at == pytest.approx(server_time(client), abs=60_000)
    assert not board.read("audit").paused
    assert not told("pause", "billing", "--reason", "other", "--yes")["changed"]
    assert board.read("billing") == state
    again = invoke("endpoints", "pause", "billing", endpoints=ENDPOINTS)
    assert (again.exit_code, "moving house" in again.stdout) == (0, True)
    resumed = told("resume", "billing", "--yes")
    assert (resumed["changed"], resumed["paused"], resumed["was"]["paused_at"]) == (True, False, paused["paused_at"])
    assert not client.exists(BOARD)
    assert not told("resume", "billing")["changed"]
    assert "paused" in invoke("endpoints", "resume", "billing", endpoints=ENDPOINTS).stdout


def test_resume_ends_a_mute(invoke: Run, shard: Shard) -> None:
    EndpointStateStore(shard).mute("billing", 600)
    result = invoke("endpoints", "resume", "billing", "--yes", endpoints=ENDPOINTS)
    assert "muted" in result.stdout
    assert EndpointStateStore(shard).read("billing").muted_until == 0


def test_on_every_shard(invoke: Run, server: Server, client: redis.Redis) -> None:
    shards = [{"name": name, "url": server.url, "prefix": f"{name}:"} for name in "ab"]
    assert invoke("endpoints", "pause", "audit", "--yes", endpoints=ENDPOINTS, shards=shards).exit_code == 0
    assert client.hexists(f"a:{BOARD}", "audit")
    assert client.hexists(f"b:{BOARD}", "audit")
    options = ["--yes", "--shard", "b"]
    assert invoke("endpoints", "resume", "audit", *options, endpoints=ENDPOINTS, shards=shards).exit_code == 0
    assert client.hexists(f"a:{BOARD}", "audit")
    assert not client.exists(f"b:{BOARD}")


@pytest.mark.every_redis
def test_a_full_redis_takes_a_pause(invoke: Run, own_shard: Shard, own_server: Server) -> None:
    store = EndpointStateStore(own_shard)
    store.pause("audit", "gone")
    with full(own_shard):
        for arguments in (("pause", "billing"), ("resume", "audit")):
            result = invoke("endpoints", *arguments, "--yes", url=own_server.url, endpoints=ENDPOINTS)
            assert result.exit_code == 0
    assert store.read("billing").paused
    assert not store.read("audit").paused


# ---- skip


def taken(shard: Shard) -> tuple[Outbox, OutboxEntry]:
    """A process that has taken the only event for `billing`, and the event."""
    outbox = Outbox(shard, "test")
    outbox.groups.ensure("billing")
    reserve(shard.client, ["a"])
    expire(shard.client, ["a"])
    (entry,) = outbox.read("billing", 10)
    return outbox, entry


@pytest.mark.parametrize("by", ["event_id", "stream_id"])
def test_skip_makes_one_pending_event_a_dead_letter(by: str, invoke: Run, shard: Shard, client: redis.Redis) -> None:
    outbox = Outbox(shard, "test")
    outbox.groups.ensure("billing")
    reserve(client, ["a", "b", "c"])
    expire(client, ["a", "b", "c"])
    entries = outbox.read("billing", 10)
    wanted = entries[1]
    event = message(shard.origin, wanted.fields).event_id if by == "event_id" else wanted.id.decode()
    result = invoke("endpoints", "skip", "billing", event, "--yes", "--json", endpoints=ENDPOINTS)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["skipped"] == [{"shard": "default", "stream_id": wanted.id.decode()}]
    assert [pending.id for pending in outbox.pending("billing")] == [entries[0].id, entries[2].id]
    (letter,) = dead_letters.read(shard, DeadLetterFilter())
    assert (letter.reason, letter.endpoint, letter.attempts) == ("an operator skipped it", "billing", 1)
    again = invoke("endpoints", "skip", "billing", event, "--yes", endpoints=ENDPOINTS)
    assert (again.exit_code, f"{event} cannot be skipped for billing: " in again.stderr) == (1, True)


def test_skip_makes_no_dead_letter_of_an_event_that_the_endpoint_does_not_want(
    invoke: Run, shard: Shard, client: redis.Redis
) -> None:
    """A process took it and died before it acknowledged it: a replay of the letter would send it."""
    outbox, unwanted = taken(shard)
    only = [{"name": "billing", "url": "http://127.0.0.1:9/", "tenants": ["hooli"]}]
    result = invoke("endpoints", "skip", "billing", unwanted.id.decode(), "--yes", endpoints=only)
    assert (result.exit_code, "or billing does not want it; `sweeperd show` tells" in result.stderr) == (1, True)
    assert [pending.id for pending in outbox.pending("billing")] == [unwanted.id]
    assert not client.exists("sweeperd:dead-letters")


def test_skip_finds_the_wanted_one_of_an_event_that_is_pending_twice(
    invoke: Run, shard: Shard, client: redis.Redis
) -> None:
    """Letters of two endpoints were replayed: the group of each has both."""
    outbox, first = taken(shard)
    outbox.acknowledge("billing", [first.id])
    for endpoint in ("audit", "billing"):
        append(client, "sweeperd:events", first.fields | {b"only_for": endpoint.encode()})
    others, own = outbox.read("billing", 10)
    event = message(shard.origin, first.fields).event_id
    result = invoke("endpoints", "skip", "billing", event, "--yes", "--json", endpoints=ENDPOINTS)
    assert json.loads(result.stdout)["skipped"] == [{"shard": "default", "stream_id": own.id.decode()}]
    assert [pending.id for pending in outbox.pending("billing")] == [others.id]


def test_skip_without_an_id_changes_nothing(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    """A variable of the shell was empty. A trimmed event has no event id."""
    outbox, trimmed = taken(shard)
    client.xdel("sweeperd:events", trimmed.id)
    assert invoke("endpoints", "skip", "billing", "", "--yes", endpoints=ENDPOINTS).exit_code == 2
    assert [pending.id for pending in outbox.pending("billing")] == [trimmed.id]
    assert not client.exists("sweeperd:dead-letters")
    assert invoke("endpoints", "skip", "billing", trimmed.id.decode(), "--yes", endpoints=ENDPOINTS).exit_code == 0


def test_skip_before_anything_was_delivered(invoke: Run) -> None:
    result = invoke("endpoints", "skip", "billing", "evt_x", "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, result.stdout) == (1, "")


# ---- test


SECRETS = ["whsec_" + base64.b64encode(b"k" * 24).decode(), "old-secret"]


def test_a_test_event(invoke: Run, client: redis.Redis) -> None:
    headers = {"X-Served-By": "web-1", "x-served-by": "proxy"}  # the same header twice
    with Receiver(lambda *_: Answer(202, headers, b"thanks")) as receiver:
        endpoint = {"name": "billing", "url": receiver.url, "secrets": SECRETS}
        result = invoke("endpoints", "test", "billing", "--json", endpoints=[endpoint])
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    (request,) = receiver.requests
    # It is signed as an event is, and no receiver takes it for one.
    assert standardwebhooks.Webhook(SECRETS[0]).verify(request.body, request.headers) == request.event
    assert request.event["event_type"] == request.headers["X-Cycles-Event-Type"] == "system.webhook_test"
    assert request.event["event_id"] == request.event_id == told["event_id"]
    assert request.event_id.startswith("evt_test_")
    assert "reservation_id" not in request.event["data"]
    assert request.event["tenant_id"] == "__system__"
    assert told["request"]["body"].encode() == request.body
    assert (told["delivered"], told["result"], told["response"]["status"]) == (True, "HTTP 202", 202)
    assert told["response"]["headers"]["X-Served-By"] == "web-1, proxy"
    assert told["response"]["body"] == "thanks"
    assert 0 < told["seconds"] < 10
    # Nothing in Redis changes.
    assert client.keys() == []


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1] * 5), (3, [3, 2]), (100, [5])], ids=["single", "batches", "one batch"]
)
@pytest.mark.parametrize("form", ["event", "cloudevents"])
def test_many_test_events(form: str, batch_size: int, sizes: list[int], invoke: Run) -> None:
    with Receiver() as receiver:
        endpoint = {"name": "billing", "url": receiver.url, "batch_size": batch_size, "format": form}
        endpoint |= {"secrets": SECRETS}
        result = invoke("endpoints", "test", "billing", "--count", "5", "--json", endpoints=[endpoint])
    document = json.loads(result.stdout)
    assert (document["requests"], document["accepted"]) == (len(sizes), 5)
    bodies = [json.loads(request.body) for request in receiver.requests]
    batches = [body if batch_size > 1 else [body] for body in bodies]
    assert [len(batch) for batch in batches] == sizes
    events = [event for batch in batches for event in batch]
    assert len({event["id" if form == "cloudevents" else "event_id"] for event in events}) == 5
    for request in receiver.requests:
        standardwebhooks.Webhook(SECRETS[0]).verify(request.body, request.headers)
        assert ("cloudevents" in request.headers["Content-Type"]) == (form == "cloudevents")
    if form == "cloudevents":
        parsed = JSONFormat().read(CloudEvent, json.dumps(events[0]))
        data: Any = parsed.get_data()
        assert (parsed.get_type(), data["details"]["test"]) == ("system.webhook_test", True)
    else:
        assert {event["event_type"] for event in events} == {"system.webhook_test"}


def test_many_test_events_end_with_the_first_failure(invoke: Run) -> None:
    with Receiver() as receiver:
        receiver.behaviour = lambda *_: Answer(200 if len(receiver.requests) < 3 else 503)
        endpoint = {"name": "billing", "url": receiver.url, "batch_size": 2}
        result = invoke("endpoints", "test", "billing", "--count", "100", endpoints=[endpoint])
    assert (result.exit_code, len(receiver.requests)) == (1, 3)
    assert "4 events accepted" in result.stdout
    assert "HTTP 503" in result.stderr


def test_its_output_for_people(invoke: Run) -> None:
    with Receiver(lambda *_: Answer(200, {}, b"a\x1b[2Jb")) as receiver:
        result = invoke("endpoints", "test", "billing", endpoints=[{"name": "billing", "url": receiver.url}])
    lines = result.stdout.splitlines()
    assert lines[0] == f"POST {receiver.url}"
    assert "X-Cycles-Event-Type: system.webhook_test" in lines
    assert any(re.fullmatch(r"HTTP 200 after \d+ ms", line) for line in lines)
    assert lines[-1] == "a\\x1b[2Jb"


def test_no_secret_is_shown(invoke: Run) -> None:
    """Not what is sent, and not what an answer repeats of it."""

    def echo(request: Any, _before: int) -> Answer:
        secret = "; ".join(f"{name}={value}" for name, value in request.headers.items())
        return Answer(200, {"X-Echo": secret}, f"{secret} {request.path} old-secret".encode())

    with Receiver(echo) as receiver:
        url = receiver.url.replace("http://", "http://user:pass-word@") + "?token=tok-en"
        headers = {"X-Api-Key": "api-key-1", "Cookie": "cookie-1"}
        endpoint = {"name": "billing", "url": url, "secrets": SECRETS, "headers": headers}
        outputs = [
            invoke("endpoints", "test", "billing", *form, endpoints=[endpoint]).output for form in ([], ["--json"])
        ]
    for output, request in zip(outputs, receiver.requests, strict=True):
        assert "X-Cycles-Signature" in output
        basic = base64.b64encode(b"user:pass-word").decode()
        for secret in (*SECRETS, "pass-word", "tok-en", "api-key-1", "cookie-1", basic):
            assert secret not in output
        signatures = [*request.headers["webhook-signature"].split(), request.headers["X-Cycles-Signature"]]
        for signature in signatures:
            assert signature not in output
            assert signature[:12] + ("…" if output.startswith("POST") else "\\u2026") in output
    signed = hmac.digest(b"k" * 24, receiver.requests[0].body, hashlib.sha256).hex()
    assert signatures
    assert signed not in outputs[0]


def test_a_long_and_hostile_answer(invoke: Run) -> None:
    answers = iter(
        [Answer(500, {}, b"\xff\x00" * 10_000), Answer(200, {"Content-Encoding": "gzip"}, b"\x1f\x8b not gzip")]
    )
    with Receiver(lambda *_: next(answers)) as receiver:
        endpoint = {"name": "billing", "url": receiver.url}
        result = invoke("endpoints", "test", "billing", "--json", endpoints=[endpoint])
        assert (result.exit_code, "HTTP 500" in result.stderr) == (1, True)
        assert len(json.loads(result.stdout)["response"]["body"]) == BODY_SHOWN
        result = invoke("endpoints", "test", "billing", "--json", endpoints=[endpoint])
        assert json.loads(result.stdout)["response"]["body"] == "(gzip, not shown)"


def test_nobody_answers(invoke: Run) -> None:
    endpoint = {"name": "billing", "url": f"http://user:hush@127.0.0.1:{free_port()}/"}
    result = invoke("endpoints", "test", "billing", "--json", endpoints=[endpoint])
    assert (result.exit_code, "Connection refused" in result.stderr) == (1, True)
    told = json.loads(result.stdout)
    assert (told["delivered"], told["response"]["status"], told["response"]["body"]) == (False, None, "")
    assert "hush" not in result.output


def test_a_410_to_a_test_pauses_nobody(invoke: Run, client: redis.Redis) -> None:
    with Receiver(lambda *_: Answer(410)) as receiver:
        result = invoke("endpoints", "test", "billing", endpoints=[{"name": "billing", "url": receiver.url}])
    assert result.exit_code == 1
    assert client.keys() == []


@pytest.mark.parametrize(("status", "closes"), [(204, True), (503, False)])
def test_a_2xx_to_a_test_closes_an_open_circuit(status: int, closes: bool, invoke: Run, shard: Shard) -> None:
    """Of that endpoint alone; another response leaves it open."""
    circuits, circuit = CircuitStateStore(shard), CircuitBreaker(30.0, 3600.0)
    for _ in range(FAILURES_TO_OPEN):
        circuit.failed(b"1-1", "HTTP 500")
    for endpoint in ("billing", "audit"):
        circuits.write(endpoint, circuit.note("a process", shard.clock.now_ms(), DeliveryRate()))
    with Receiver(lambda *_: Answer(status)) as receiver:
        result = invoke("endpoints", "test", "billing", endpoints=[{"name": "billing", "url": receiver.url}])
    assert result.exit_code == (0 if closes else 1)
    closed = [shard.client.hexists("sweeperd:circuits", name) for name in ("billing", "audit")]
    assert closed == [closes, False], "each process obeys it within seconds"


def test_one_shard_that_lives_is_enough(invoke: Run, server: Server) -> None:
    shards = [{"name": "dead", "url": f"redis://127.0.0.1:{free_port()}"}, {"name": "live", "url": server.url}]
    with Receiver() as receiver:
        endpoint = {"name": "billing", "url": receiver.url}
        result = invoke("endpoints", "test", "billing", shards=shards, endpoints=[endpoint])
    assert (result.exit_code, len(receiver.requests)) == (0, 1)
    assert result.stderr.startswith("sweeperd: shard dead: ")


# ---- bad input


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str, invoke: Run, shard: Shard, client: redis.Redis) -> None:
    client.xadd("sweeperd:dead-letters", {"event": "1-0", "endpoint": name, "reason": name, "attempts": "1"})
    client.hset(BOARD, "audit", json.dumps({"paused_at": 1, "reason": name}))
    endpoints = [{"name": "audit", "url": "http://127.0.0.1:1/", "tenants": [name]}]
    for form in ([], ["--json"]):
        result = invoke("endpoints", "list", *form, endpoints=endpoints)
        assert result.exit_code == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", result.output)
    rows = json.loads(result.stdout)["endpoints"]
    assert (rows[0]["paused_reason"], rows[0]["tenants"], rows[1]["endpoint"]) == (name, [name], name)
    result = invoke("endpoints", "pause", "audit", "--yes", endpoints=endpoints)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", result.output)


# ---- keys


def test_keygen_prints_a_shared_secret(invoke: Run) -> None:
    secret = invoke("endpoints", "keygen", "--symmetric").stdout.strip()
    other = json.loads(invoke("endpoints", "keygen", "--symmetric", "--json").stdout)["secret"]
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert other != secret, "a new one each time"


@pytest.mark.parametrize("options", [(), ("--symmetric",)])
def test_keygen_writes_a_file_for_its_owner_alone(options: tuple[str, ...], invoke: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.secret"
    done = invoke("endpoints", "keygen", *options, "--out", str(path))
    assert done.exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().strip()
    assert secret.startswith("whsec_" if options else "whsk_")
    assert secret not in done.output
    assert done.stdout[:5] == ("" if options else "whpk_")
    assert str(path) in done.stderr
    again = invoke("endpoints", "keygen", *options, "--out", str(path))
    assert (again.exit_code, path.read_text().strip()) == (2, secret), "a key in use is not lost"
    assert invoke("endpoints", "keygen", *options, "--out", str(tmp_path / "no" / "folder")).exit_code == 1
    told = json.loads(invoke("endpoints", "keygen", *options, "--json", "--out", str(tmp_path / "other")).stdout)
    assert told.keys() == ({"file"} if options else {"file", "public_key"})


def test_keygen_prints_a_pair_that_the_settings_take(invoke: Run, tmp_path: Path) -> None:
    private, public = invoke("endpoints", "keygen").stdout.split()
    pair = json.loads(invoke("endpoints", "keygen", "--json").stdout)
    assert [private[:5], public[:5]] == ["whsk_", "whpk_"]
    assert pair.keys() == {"private_key", "public_key"}
    assert pair["private_key"] != private, "a new one each time"
    (tmp_path / "key").write_text(private)
    endpoints = [
        {"name": "plain", "url": "http://hook/", "secrets": ["text"]},
        {"name": "file", "url": "http://hook/", "secrets": [f"file:{tmp_path / 'key'}", "text"]},
        {"name": "other", "url": "http://hook/", "secrets": [pair["private_key"]]},
    ]

    def keys(*names: str) -> list[dict[str, str]]:
        document = json.loads(invoke("endpoints", "keys", *names, endpoints=endpoints).stdout)
        assert document.keys() == {"keys"}
        return list(document["keys"])

    assert len(keys()) == 2
    (key,) = keys("file")
    assert key["x"] == base64.urlsafe_b64encode(base64.b64decode(public.removeprefix("whpk_"))).decode().rstrip("=")
    assert keys("plain") == []
    assert invoke("endpoints", "keys", "nobody", endpoints=endpoints).exit_code == 2
