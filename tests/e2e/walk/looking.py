"""What the operator sees; nothing is changed here."""

import json

from sweeperd.cli.output import printable
from tests.e2e.walk.system import AMOUNT, CLOSED, DRIFT, DRIFTED, ENTRIES, HOLDING, LOST, QUARANTINED, System, once_so
from tests.support.harness import SCOPES, eventually

#: The keys of `--once --json`.
ONCE = {
    *("candidates", "expired", "skipped", "in_grace", "not_due", "not_found", "quarantined", "held", "errors"),
    *("deferred", "delivered", "undelivered", "dead_lettered", "duration_seconds"),
}
#: Commands that print a table and, but for the last, one JSON document.
TABLES = [
    ["status"],
    ["endpoints", "list"],
    ["quarantine", "list"],
    ["dead-letters", "list"],
    ["actions"],
    ["expired", "--limit", "10"],
]


def nothing_runs_and_that_is_named(system: System) -> None:
    ended = system.operator.done("status")
    assert "no process sweeps" in ended.err
    assert "no process delivers" in ended.err
    assert system.operator.status()["due"]["overdue"] >= ENTRIES
    # A wrong prefix is named too.
    wrong = {"SWEEPERD_KEYS__PREFIX": "{wrong}:"}
    for command in ("status", "check"):
        ended = system.operator.run(command, **wrong)
        assert "the database or the prefix may be wrong" in ended.out + ended.err


def the_backlog_goes(system: System) -> None:
    operator = system.operator
    limit = 60 + ENTRIES / 500
    swept = eventually(once_so(operator.status, lambda each: not each["due"]["entries"]), limit)
    assert swept["rate"] > 0
    eventually(lambda: operator.status()["quarantined"] == QUARANTINED)
    # A rate is known once two counts have been noted, which a short backlog may not take.
    well = eventually(
        once_so(lambda: operator.endpoint("well"), lambda each: not each["pending"] and each["rate"]), limit
    )
    assert (well["rate"] > 0, well["rate_window_seconds"] > 0, well["empty_in_seconds"]) == (True, True, 0.0)


def the_endpoints_are_as_they_are(system: System) -> None:
    operator = system.operator
    eventually(lambda: operator.states() == {"well": "delivering", "dead": "open", "gone": "paused"}, limit=60)
    listed = {each["endpoint"]: each["state"] for each in operator.read("endpoints", "list")["endpoints"]}
    assert listed == operator.states(), "one source for both"
    gone = operator.endpoint("gone")
    assert (gone["pending"] > 0, gone["empty_in_seconds"]) == (True, None)
    assert "410" in gone["paused_reason"]
    assert operator.endpoint("dead")["pending"] > 0


def each_command_names_its_redis(system: System) -> None:
    operator, url = system.operator, system.server.url
    for arguments in TABLES:
        ended = operator.done(*arguments)
        assert (ended.out.splitlines()[0], url in ended.err) == (url, False), arguments
    for arguments in TABLES[:-1]:
        assert operator.read(*arguments)["address"] == url
    for options in (["--json", "--limit", "10"], ["--format", "csv", "--limit", "10"], ["--count"]):
        ended = operator.done("expired", *options)
        assert f"sweeperd: on {url}" in ended.err.splitlines()
        assert url not in ended.out


def no_secret_is_needed_to_look(system: System) -> None:
    """The file is absent, as on a host whose service has it as a credential."""
    lost = [{"name": name, "url": each.url, "secrets": ["file:/absent"]} for name, each in system.receivers.items()]
    absent = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(lost)}
    for arguments in TABLES:
        ended = system.operator.run(*arguments, **absent)
        assert (ended.code, "absent" in ended.err) == (0, False), arguments
    ended = system.operator.run("endpoints", "test", "well", **absent)
    assert (ended.code, "SWEEPERD_WEBHOOKS__ENDPOINTS[0].secrets[0]: the file" in ended.err) == (2, True)


def nothing_is_cut_at_80_columns(system: System) -> None:
    operator = system.operator
    rows = operator.read("quarantine", "list")["shards"][0]["entries"]
    assert {row["reason"] for row in rows} == {"INVALID_STATE", "INVALID_ESTIMATE"}
    assert any(len(row["id"]) > 10_000 for row in rows)
    shown = operator.on_terminal("quarantine", "list").out
    for row in rows:
        assert any(printable(row["id"]) in line for line in shown.splitlines()), "whole, on one line"
    # `show` breaks long texts into several lines: none is cut, and no line is wider than the terminal.
    hostile = next(row["id"] for row in rows if len(row["id"]) < 200)
    ended = operator.on_terminal("show", hostile)
    assert ended.code == 0
    state = operator.read("show", hostile)["shards"][0]["fields"]["state"]
    assert len(state) > 10_000
    assert ended.out.count("x") >= state.count("x")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "…" not in ended.out
    # With one shard its column says nothing.
    shown = operator.on_terminal("status").out
    assert not any(line.startswith("shard ") for line in shown.splitlines())
    assert "dead" in shown


def what_is_wrong_is_found(system: System) -> None:
    """Rows that cannot be read may hold any amount: their budgets are not judged, and the others are."""
    ended = system.operator.run("reconcile", "--json")
    assert ended.code == 1
    (found,) = json.loads(ended.out)["shards"]
    assert {fault: count for fault, count in found["found"].items() if count} == {"lost": LOST, "budget_drift": 1}
    assert (found["counters_unjudged"], found["counters_closed"], found["unreadable"]) == (len(SCOPES), 1, 1)
    (drift,) = [finding for finding in found["findings"] if finding["fault"] == "budget_drift"]
    assert (drift["key"], drift["difference"]) == (f"budget:{DRIFTED}:TOKENS", DRIFT)
    for budget, reason in ((SCOPES[0], "cannot be read"), (CLOSED, "CLOSED")):
        ended = system.operator.run("reconcile", "--repair-budget", f"{budget}:TOKENS", "--yes")
        assert (ended.code, reason in ended.err) == (1, True)
    (shard,) = system.operator.read("ledger", "show", f"{DRIFTED}:TOKENS")["shards"]
    assert (shard["held"], shard["fields"]["reserved"]) == (AMOUNT * HOLDING, str(AMOUNT * HOLDING + DRIFT))
    assert {each["id"] for each in shard["holders"]} == {f"holding-{number}" for number in range(HOLDING)}


def the_daemons_own_walk_is_shown(system: System) -> None:
    assert system.operator.run("reconcile", "--last").code == 1, "there is none yet"
    with system.daemon(reconcile__interval="1s") as running:
        eventually(lambda: running.logged("reconciled"), limit=60 + ENTRIES / 1000)
        assert running.terminate() == 0
    found = {"lost": LOST, "budget_drift": 1}
    last = system.operator.read("reconcile", "--last")["shards"][0]["found"]
    in_status = system.operator.status()["last_walk"]["found"]
    assert [{fault: count for fault, count in each.items() if count} for each in (last, in_status)] == [found, found]


def once_prints_its_own_keys(system: System) -> None:
    """A run beside the daemon; it names its Redis in the log, not in the document."""
    ended = system.operator.run("--once", "--json")
    assert (ended.code, set(json.loads(ended.out))) == (0, ONCE)
