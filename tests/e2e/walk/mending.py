"""What the operator does about it."""

from tests.e2e.walk.operator import Operator, Terminal
from tests.e2e.walk.system import AMOUNT, DRIFTED, ENTRIES, HOLDING, LOST, QUARANTINED, System, once_so, repair_rows
from tests.support.harness import Daemon, eventually
from tests.support.receiver import Answer

BUDGET = f"{DRIFTED}:TOKENS"


def an_event_is_skipped(system: System) -> None:
    """It is a dead letter then, and its ids can be copied from a narrow terminal."""
    operator = system.operator
    event = operator.read("show", "late-0")["shards"][0]["event"]["webhook_id"]
    operator.done("endpoints", "skip", "gone", event, "--yes")
    (letter,) = operator.read("dead-letters", "list")["dead_letters"]
    shown = operator.on_terminal("dead-letters", "list").out
    for text in (event, letter["id"]):
        assert any(text in line for line in shown.splitlines()), shown
    operator.done("dead-letters", "replay", "--all", "--yes")


def the_rows_are_swept(system: System) -> None:
    """Hostile ids are shown harmlessly, and what is repaired is swept."""
    operator = system.operator
    repair_rows(system.client)
    operator.done("quarantine", "requeue", "--all", "--yes")
    eventually(once_so(operator.status, lambda each: not each["quarantined"]))


def the_index_gets_back_what_it_lost(system: System) -> None:
    """The command looks, shows, asks, and mends what it has found, without a second walk."""
    with Terminal(system.operator.env, ["reconcile", "--repair"], columns=80) as terminal:
        terminal.ask()
        shown, pages = terminal.seen, scans(system)
        assert all(any(f"lost-{number}" in line.split() for line in shown.splitlines()) for number in range(LOST))
        assert f"Repair {LOST} " in shown
        assert system.client.zscore("reservation:ttl", "lost-0") is None, "nothing is changed before the answer"
        terminal.answer("y")
        code, shown = terminal.end()
    assert (code, f"repaired {LOST} lost" in shown) == (1, True), "the budget's drift is left"
    assert scans(system) == pages
    eventually(once_so(system.operator.status, lambda each: not each["due"]["entries"]))


def scans(system: System) -> int:
    """How many pages of keys Redis has given."""
    return int(system.client.info("commandstats")["cmdstat_scan"]["calls"])


def the_drift_is_ended(system: System) -> None:
    operator = system.operator
    ended = operator.on_terminal("reconcile", "--repair-budget", BUDGET, answers=["n"])
    assert (ended.code, f"{BUDGET}: repaired" in ended.out) == (1, False)
    ended = operator.on_terminal("reconcile", "--repair-budget", BUDGET, answers=["y"])
    assert (ended.code, f"{BUDGET}: repaired" in ended.out) == (0, True)
    fields = operator.read("ledger", "show", BUDGET)["shards"][0]["fields"]
    assert (fields["reserved"], fields["remaining"]) == (str(AMOUNT * HOLDING), "0")
    # Nothing is left, and all budgets could be judged.
    ended = operator.run("reconcile", "--json")
    assert ended.code == 0
    (shard,) = operator.read("reconcile")["shards"]
    assert (shard["remaining"], shard["counters_unjudged"]) == (0, 0)


def the_receivers_are_back(system: System) -> None:
    """A resume is enough, though the next probe or attempt would come much later."""
    operator = system.operator
    for name in ("dead", "gone"):
        system.receivers[name].behaviour = lambda *_: Answer()
        operator.done("endpoints", "test", name)
        operator.done("endpoints", "resume", name, "--yes")
    eventually(lambda: set(operator.states().values()) == {"delivering"}, limit=60)
    eventually(lambda: all(not each["pending"] for each in operator.status()["endpoints"]), limit=60 + ENTRIES / 500)


def all_of_it_left_a_trace(operator: Operator, running: Daemon) -> None:
    actions = [each["action"] for each in operator.read("actions")["actions"]]
    assert {"skip", "requeue", "repair", "repair-budget", "resume"} <= set(actions)
    assert operator.status()["tick"]["expired"] == ENTRIES + LOST + QUARANTINED
    eventually(lambda: running.metric("sweeperd_endpoint_state", endpoint="gone", state="delivering") == 1)
    assert not running.logged("the host's clock was set back; running at once"), "it was not, however busy the host"
