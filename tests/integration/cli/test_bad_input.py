"""Every command refuses bad input with exit code 2 and one line that names the culprit, and changes nothing."""

from pathlib import Path

import redis

from sweeperd.store import Shard
from tests.integration.cli.conftest import Run, give_up
from tests.support.harness import reserve
from tests.support.kind_settings import SEAT_HOLD

ENDPOINTS = [{"name": "billing", "url": "http://127.0.0.1:1/"}, {"name": "audit", "url": "http://127.0.0.1:1/"}]
NOON, LATER = "2026-11-21T12:00:00Z", "2026-11-21T12:00:05Z"
LONG, HOSTILE = "x" * 10_000, "a\x1b[2J"
#: Bytes that are not UTF-8, as Python gets them from the command line.
BYTES = "\udcff\udcfe"
#: Command line -> the text in the error; {long}, {hostile} and {bytes} are names.
CASES = {
    "acl --ledger --commands": "--ledger",
    "acl --ledger --role sweep": "--ledger",
    "acl --cycles": "--cycles",
    "acl --user {hostile}": "--user",
    'acl --user "q"': "--user",
    "acl --user o'brien": "--user",
    "--dry-run": "--once",
    "--dry-run status": "--once",
    "--once --dry-run --delivery-limit 5s": "--dry-run",
    "check --ledger --connect": "--connect",
    "check --sample 0": "--sample",
    "check --sample 5 --ledger": "--sample",
    "dead-letters burn": "burn",
    "dead-letters drop": "--tenant",
    "dead-letters drop --all": "--yes",
    "dead-letters drop --endpoint billing --all": "--tenant",
    "dead-letters drop --endpoint zzz --yes": "only audit, billing",
    "dead-letters drop 1-1 --all": "--tenant",
    "dead-letters list --endpoint {long}": "'xxx",
    "dead-letters list --limit 0": "--limit",
    "dead-letters replay": "--endpoint",
    "dead-letters replay --endpoint biling --yes": "did you mean billing",
    "dead-letters replay - --yes": "'-'",
    "dead-letters replay 5 --yes": "'5'",
    "dead-letters replay one --yes": "'one'",
    f"dead-letters replay {'9' * 40}-0 --yes": "1795248005123-0",
    "dead-letters replay {hostile} --yes": r"'a\x1b[2J'",
    "endpoints drop billing --before 1ms --yes --reason {bytes}": r"--reason': '\udcff\udcfe' is not UTF-8",
    "endpoints pause billing --yes --reason {long}": "--reason': it has 10000 characters, more than 500",
    "endpoints pause billing --yes --reason {bytes}": r"--reason': '\udcff\udcfe' is not UTF-8",
    "endpoints pause {bytes} --yes": r"'\udcff\udcfe' is not UTF-8",
    "endpoints attempts biling": "did you mean billing",
    "endpoints burn": "burn",
    "endpoints pause": "NAME",
    "endpoints pause billing": "--yes",
    "endpoints pause biling": "did you mean billing",
    "endpoints pause zzz": "only audit, billing",
    "endpoints pause {hostile}": r"'a\x1b[2J'",
    "endpoints resume {long}": "'xxxxx",
    "endpoints skip billing {empty} --yes": "EVENT must not be empty",
    "endpoints test biling": "did you mean billing",
    "expired --count --format csv": "--format",
    "expired --count --limit 1": "--limit",
    "expired --follow --count": "--count",
    "expired --follow --limit 1": "--limit",
    "expired --follow --until 5m": "--until",
    "expired --format xml": "'xml'",
    "expired --kind seat": "did you mean seat-hold",
    "expired --limit 0": "--limit",
    "expired --since noon": "'noon'",
    "expired --since 2990-01-01": "2990-01-01T00:00:00.000Z",
    "expired --since 5m --until 10m": "--until",
    f"expired --since {LATER} --until {NOON}": "(2026-11-21T12:00:00.000Z)",
    f"expired --since {NOON} --until {NOON}": "--until",
    "expired --until 2026-13-01": "'2026-13-01'",
    "expired today": "today",
    "kinds accept reservations --yes": "seat-hold",
    "kinds accept seat-holds --yes": "did you mean seat-hold",
    "quarantine dismiss": "--reason",
    "quarantine dismiss --all": "--yes",
    "quarantine dismiss broken --json": "--yes",
    "quarantine forget": "forget",
    "quarantine list --kind lock": "seat-hold",
    "quarantine list --limit 0": "--limit",
    "quarantine list --reason BECAUSE": "'WRONG_TYPE'",
    "quarantine requeue": "--reason",
    "quarantine requeue --all --reason INVALID_STATE --yes": "--reason",
    "quarantine requeue broken": "--yes",
    "quarantine requeue --reason invalid_state --yes": "'WRONG_TYPE'",
    "quarantine requeue a --all --yes": "--reason",
    "reconcile --kind seat-hold --repair-budget a:T --yes": "--repair-budget",
    "reconcile --kind seats": "seat-hold",
    "reconcile --last --repair": "--last",
    "reconcile --limit -1": "--limit",
    "reconcile --mend": "--mend",
    "reconcile --rate 0": "--rate",
    "reconcile --rate fast": "--rate",
    "reconcile --repair": "--yes",
    "reconcile now": "now",
    "replay --endpoint biling --since 1h": "did you mean billing",
    "replay --endpoint billing": "--cancel",
    "replay --endpoint billing --since 1h --cancel": "--cancel",
    "replay --endpoint billing --since 1h --until 2h": "--until",
    "replay --endpoint billing --since 1h --until 2126-01-01": "--until",
    "replay --endpoint {bytes} --cancel --yes": r"--endpoint': '\udcff\udcfe' is not UTF-8",
    "replay --since 1h": "--endpoint",
    "show": "ID",
    "show a b": "(b)",
    "show {empty}": "ID is empty",
    "show a --kind seathold": "did you mean seat-hold",
    "status --interval 0": "--interval",
    "status --interval nan": "--interval",
    "status --interval soon": "--interval",
    "status everything": "everything",
} | {
    f"{command} --shard nowhere": "'nowhere'"
    for command in (
        "dead-letters list",
        "endpoints list",
        "expired",
        "quarantine list",
        "reconcile",
        "show a",
        "status",
    )
}


def test_it_is_refused(invoke: Run, shard: Shard, client: redis.Redis, tmp_path: Path) -> None:
    give_up(shard, ["dead"])
    reserve(client, ["broken"])
    client.zadd("sweeperd:quarantine", {"broken": 1})
    before = {key: client.dump(key) for key in client.scan_iter()}
    (tmp_path / "config.toml").write_text(SEAT_HOLD)
    for line, names in CASES.items():
        stand_for = {"{long}": LONG, "{hostile}": HOSTILE, "{bytes}": BYTES, "{empty}": ""}
        words = [stand_for.get(word, word) for word in line.split()]
        result = invoke(*words, endpoints=ENDPOINTS)
        assert (result.exit_code, result.stdout) == (2, ""), line
        last = result.stderr.splitlines()[-1]
        assert (names in last, len(last) < 300) == (True, True), f"{line}: {last}"
        assert {key: client.dump(key) for key in client.scan_iter()} == before, line


def test_one_of_several_kinds_has_to_be_named(invoke: Run, tmp_path: Path) -> None:
    lock = SEAT_HOLD.replace("seat-hold", "lock").replace("seats:", "locks:")
    (tmp_path / "config.toml").write_text(f"reservations.enabled = false\n{SEAT_HOLD}{lock}")
    for line in ("quarantine requeue --all --yes", "quarantine dismiss --all --yes", "reconcile"):
        refused = invoke(*line.split())
        assert (refused.exit_code, "--kind: seat-hold, lock" in refused.stderr) == (2, True), line
    assert invoke("reconcile", "--kind", "reservations").exit_code == 2


def test_without_endpoints_none_is_proposed(invoke: Run) -> None:
    refused = invoke("endpoints", "pause", "billing", "--yes")
    assert (refused.exit_code, "only" in refused.stderr, "mean" in refused.stderr) == (2, False, False)
