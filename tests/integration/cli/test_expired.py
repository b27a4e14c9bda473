"""`sweeperd expired`: which events, in which order, in which form."""

import csv
import io
import json
import re
from typing import Any

import redis

from sweeperd.outbox import message
from sweeperd.outbox.replays import AHEAD_MS
from sweeperd.store import streams
from tests.e2e.terminal import Terminal
from tests.integration.cli.conftest import HOSTILE, Run, expire
from tests.support.harness import environment, reserve, server_time
from tests.support.servers import Server
from tests.support.streams import append, entries

EVENTS = "sweeperd:events"
T = 1_795_262_400_000  # 2026-11-21T12:00:00Z
AT = "2026-11-21T12:00:"
SPAN = ["--since", AT + "00Z", "--until", AT + "59Z"]


def add(client: redis.Redis, at_ms: int, reservation: str, entry: str = "", key: str = EVENTS, **fields: Any) -> None:
    """An event as expire.lua writes it, at a time of the test's own."""
    event = {
        "id": reservation,
        "tenant": "acme",
        "scope": "tenant:acme",
        "unit": "TOKENS",
        "amount": 5,
        "created_at": at_ms - 61_000,
        "expires_at": at_ms - 1500,
        "expired_at": at_ms,
        "grace_ms": 500,
        "extensions": 0,
        "missing": "[]",
        "trace_id": "f" * 32,
    }
    append(client, key, event | fields, entry or f"{at_ms}-1")


def ids(output: str) -> list[str]:
    return [json.loads(line)["data"]["reservation_id"] for line in output.splitlines()]


def test_what_expired_is_told_as_the_webhook_tells_it(invoke: Run, client: redis.Redis) -> None:
    reserve(client, ["one", b"\xff\x00"], amount=2**61)
    expire(client, ["one", b"\xff\x00"])
    result = invoke("expired", "--json")
    assert result.exit_code == 0
    bodies = [json.loads(line) for line in result.stdout.splitlines()]
    assert bodies == [
        json.loads(message(b"", fields).body) | {"shard": "default"} for _, fields in entries(client, EVENTS)
    ]
    assert bodies[0]["data"]["estimated_amount"] == 2**61


def test_the_span_is_half_open_and_about_the_expiry(invoke: Run, client: redis.Redis) -> None:
    for at in (-1, 0, 4999, 5000):
        add(client, T + at, f"at {at}")
    result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--json")
    assert ids(result.stdout) == ["at 0", "at 4999"]
    # In another time zone, and without one.
    for since, until in (("13:00:00+01:00", "13:00:05+01:00"), ("12:00:00", "12:00:05")):
        result = invoke("expired", "--since", f"2026-11-21T{since}", "--until", f"2026-11-21T{until}", "--json")
        assert ids(result.stdout) == ["at 0", "at 4999"]
    result = invoke("expired", "--since", AT + "00.001Z", "--until", AT + "05.001Z", "--json")
    assert ids(result.stdout) == ["at 4999", "at 5000"]


def test_a_clock_that_was_set_back(invoke: Run, client: redis.Redis) -> None:
    """Ids never go back, so they may be later than the expiry in the event."""
    add(client, T, "before")
    add(client, T - 20_000, "after", entry=f"{T}-7")
    add(client, T - 20_000, "far", entry=f"{T + AHEAD_MS}-7")
    result = invoke("expired", "--since", "2026-11-21T11:59:40Z", "--until", "2026-11-21T11:59:45Z", "--json")
    assert ids(result.stdout) == ["after"]


def test_a_clock_that_is_behind_the_stream(invoke: Run, client: redis.Redis) -> None:
    """Redis's clock was set back by an hour just now, so each new id is an hour ahead."""
    now = server_time(client)
    add(client, now + 3_600_000, "before")
    for number in range(3):
        add(client, now - 20_000, f"after {number}", entry=f"{now + 3_600_000}-{number + 2}")
    result = invoke("expired", "--since", "1m", "--json")
    assert ids(result.stdout) == ["after 0", "after 1", "after 2"]
    told = re.search("clock was set back: .* left out; --until (\\S+) includes them", result.stderr)
    assert told
    every = invoke("expired", "--since", "1m", "--until", told[1], "--json")
    assert ids(every.stdout) == ["before", "after 0", "after 1", "after 2"]


def test_pages(invoke: Run, client: redis.Redis) -> None:
    for count in (streams.PAGE, streams.PAGE + 1):
        client.delete(EVENTS)
        for number in range(count):
            add(client, T + number, str(number))
        result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--json")
        assert ids(result.stdout) == [str(number) for number in range(count)]


def test_one_tenant(invoke: Run, client: redis.Redis) -> None:
    now = server_time(client)
    for number, tenant in enumerate([b"acme", b"acme corp", b"\xff", b"acme"]):
        add(client, now - 100 + number, str(number), tenant=tenant)
    assert ids(invoke("expired", "--tenant", "acme", "--json").stdout) == ["0", "3"]
    assert ids(invoke("expired", "--tenant", "\\xff", "--json").stdout) == ["2"]
    assert ids(invoke("expired", "--tenant", "\udcff", "--json").stdout) == ["2"]
    assert invoke("expired", "--tenant", "nobody", "--json").stdout == ""


def test_a_replay_is_no_expiry(invoke: Run, client: redis.Redis) -> None:
    add(client, server_time(client) - 5, "one")
    add(client, server_time(client), "one", only_for="billing")
    assert ids(invoke("expired", "--json").stdout) == ["one"]


def test_shards_are_merged_in_order_of_time(invoke: Run, server: Server, client: redis.Redis) -> None:
    for number in range(10):
        add(client, T + number, str(number), key=f"{'ab'[number % 3 == 0]}:{EVENTS}")
    shards = [{"name": name, "url": server.url, "prefix": f"{name}:"} for name in "ab"]
    result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--json", shards=shards)
    assert result.exit_code == 0
    assert ids(result.stdout) == [str(number) for number in range(10)]
    assert [json.loads(line)["shard"] for line in result.stdout.splitlines()] == list("baabaabaab")
    result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--json", "--shard", "b", shards=shards)
    assert ids(result.stdout) == ["0", "3", "6", "9"]


# ---- a gap in what is kept is reported


def test_a_span_that_begins_before_the_oldest_event_says_so(invoke: Run, client: redis.Redis) -> None:
    for number in range(10):
        add(client, T + number, str(number))
    client.xtrim(EVENTS, maxlen=3, approximate=False)
    result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--json")
    assert (result.exit_code, ids(result.stdout)) == (0, ["7", "8", "9"])
    end = "is of 2026-11-21T12:00:00.007Z; what expired before is not shown\n"
    assert (result.stderr.count("\n"), result.stderr.endswith(end)) == (1, True)
    assert invoke("expired", "--since", AT + "00.007Z", "--until", AT + "05Z").stderr == ""
    client.xtrim(EVENTS, maxlen=0, approximate=False)
    result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z")
    assert result.stderr.count("\n") == 1


def test_the_oldest_event_has_the_time_of_its_expiry_while_ids_are_ahead_of_the_clock(
    invoke: Run, client: redis.Redis
) -> None:
    ahead = server_time(client) + 3_600_000
    for number in range(3):
        add(client, T + number, str(number), entry=f"{ahead + number}-0")
    client.xtrim(EVENTS, maxlen=2, approximate=False)
    assert "is of 2026-11-21T12:00:00.001Z; what" in invoke("expired", *SPAN).stderr
    assert invoke("expired", "--since", AT + "00.001Z", "--until", AT + "05Z").stderr == ""


def test_a_stream_that_was_never_trimmed_has_no_hole(invoke: Run, client: redis.Redis) -> None:
    add(client, T, "one")
    result = invoke("expired", "--since", "2026-01-01", "--until", AT + "05Z", "--json")
    assert ids(result.stdout) == ["one"]
    if "entries-added" in client.xinfo_stream(EVENTS):  # Redis 6.2 does not know
        assert result.stderr == ""


def test_no_stream(invoke: Run) -> None:
    result = invoke("expired")
    assert (result.exit_code, result.stdout.count("\n"), "no event stream" in result.stderr) == (0, 1, True)


def test_a_span_that_ends_in_the_future_says_so(invoke: Run, client: redis.Redis) -> None:
    add(client, server_time(client), "one")
    result = invoke("expired", "--until", "2990-01-01", "--json")
    assert ids(result.stdout) == ["one"]
    assert "--until" in result.stderr


# ---- forms


def hostile(client: redis.Redis) -> None:
    now = server_time(client) - 1000
    for number, name in enumerate(HOSTILE):
        missing = json.dumps([name])
        add(client, now + number, name, tenant=name, scope=name, unit=name, missing=missing, trace_id=name)


def no_control(text: str) -> bool:
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_hostile_names_as_tab_separated_lines(invoke: Run, client: redis.Redis) -> None:
    hostile(client)
    output = invoke("expired").stdout
    head, *lines = output.split("\n")[:-1]
    assert len(lines) == len(HOSTILE)
    assert all(line.count("\t") == head.count("\t") for line in lines)
    assert no_control(output.replace("\t", ""))
    assert lines[2].split("\t")[1] == HOSTILE[2], "whole"


def test_hostile_names_as_json_lines(invoke: Run, client: redis.Redis) -> None:
    hostile(client)
    output = invoke("expired", "--format", "jsonl").stdout
    assert [json.loads(line)["tenant_id"] for line in output.splitlines()] == HOSTILE
    assert no_control(output)


def test_hostile_names_as_csv(invoke: Run, client: redis.Redis) -> None:
    hostile(client)
    output = invoke("expired", "--format", "csv").stdout
    head, *rows = csv.reader(io.StringIO(output))
    assert len(rows) == len(HOSTILE)
    assert {len(row) for row in rows} == {len(head)}
    assert no_control(output)
    tenants = [row[head.index("tenant")] for row in rows]
    assert tenants[0] == "a\\x1b[2J\\x1b]0;owned\\x07b\\r\\n\\t\\x00c"
    assert tenants[1:4] == [HOSTILE[1], HOSTILE[2], "'" + HOSTILE[3]]
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


def test_a_terminal_gets_csv_without_escape_codes(server: Server, client: redis.Redis) -> None:
    add(client, server_time(client) - 100, "r1")
    with Terminal(environment(server.url), ["expired", "--format", "csv"]) as terminal:
        assert terminal.end() == 0
    assert (b"\x1b" in terminal.seen, b"r1" in terminal.seen) == (False, True)


def test_no_spreadsheet_takes_a_name_for_a_formula(invoke: Run, client: redis.Redis) -> None:
    names = [f"{sign}1+1" for sign in "=+-@\uff1d\uff0b\uff0d\uff20"]
    for number, name in enumerate(names):
        add(client, server_time(client) - 100 + number, name)
    rows = csv.DictReader(io.StringIO(invoke("expired", "--format", "csv").stdout))
    assert [row["reservation"] for row in rows] == [f"'{name}" for name in names]


def test_all_columns(invoke: Run, client: redis.Redis) -> None:
    add(client, T + 123, "r1", missing='["tenant:b", "tenant:c"]')
    (row,) = csv.DictReader(
        io.StringIO(invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--format", "csv").stdout)
    )
    event_id = row.pop("event_id")
    assert re.fullmatch("evt_[0-9a-f]{32}", event_id)
    assert row == {
        "expired_at": AT + "00.123Z",
        "tenant": "acme",
        "reservation": "r1",
        "amount": "5",
        "unit": "TOKENS",
        "lag": "1.000s",
        "scope": "tenant:acme",
        "missing_budgets": "tenant:b, tenant:c",
        "trace_id": "f" * 32,
        "shard": "default",
        "kind": "reservations",
    }


def test_an_event_that_somebody_wrote_by_hand(invoke: Run, client: redis.Redis) -> None:
    client.xadd(EVENTS, {"colour": "red"}, id=f"{T}-0")
    client.xadd(EVENTS, {"id": "r", "expired_at": "soon", "expires_at": "9" * 30}, id=f"{T}-1")
    for form in ("table", "jsonl", "csv"):
        result = invoke("expired", "--since", AT + "00Z", "--until", AT + "05Z", "--format", form)
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) == (2 if form == "jsonl" else 3)


def test_count_and_limit(invoke: Run, client: redis.Redis) -> None:
    for number in range(5):
        add(client, T + number, f"r{number}", tenant="acme" if number % 2 else "globex")
    counted = invoke("expired", "--count", *SPAN)
    assert (counted.exit_code, counted.stdout) == (0, "5\n")
    assert invoke("expired", "--count", "--tenant", "acme", *SPAN).stdout == "2\n"
    assert json.loads(invoke("expired", "--count", "--json", *SPAN).stdout)["count"] == 5
    limited = invoke("expired", "--json", "--limit", "3", *SPAN)
    assert ids(limited.stdout) == ["r0", "r1", "r2"]
    assert "--limit" in limited.stderr
    assert "--limit" not in invoke("expired", "--json", "--limit", "5", *SPAN).stderr
