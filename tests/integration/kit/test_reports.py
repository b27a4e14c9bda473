"""What the kit tells of a failure, what it does to a process, and what it says of an entry without an end."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.config import Settings, load
from sweeperd.kit import properties
from sweeperd.kit.judge import Failure
from sweeperd.kit.lab import RUN_LIMIT, Lab, NoEnd
from sweeperd.kit.properties import killed, orphan, waits
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import Sample, derived_samples, read_samples, sample_of
from tests.integration.kit.test_faults import EXAMPLES
from tests.lua.kinds.world import SEATS, scripted, settings_of

pytestmark = pytest.mark.slow

HOLD: dict[str, Any] = {
    "id": "h1",
    "hash": {"state": "HELD", "show": "hamlet", "qty": 40, "customer": "ada", "note": "by the aisle", "colour": "red"},
    "keys": {
        "seats:hamlet": {"hash": {"free": 700, "held": 300, "rows": 12}},
        "seats:macbeth": {"hash": {"free": 5}},
        "seats:list": {"set": ["a", "b"]},
    },
}
#: It raises for more than twelve seats, on its tenth line.
RAISES = """
function decide()
  return 'expire'
end

function plan(hash)
  local key = 'seats:' .. hash.show
  local seats = tonumber(hash.qty)
  if seats > 12 then
    error('so many')
  end
  return {{'HINCRBY', key, 'free', hash.qty}, {'HINCRBY', key, 'held', '-' .. hash.qty, 'MIN', '0'}}
end
"""


def proved(settings: Settings, *rows: dict[str, Any]) -> Failure:
    """The first failure."""
    (kind,) = settings.kinds
    samples = [sample_of(row, kind) for row in rows]
    return next(proof.failure for proof in prove(settings, kind, samples) if proof.failure)


def test_a_failure_names_the_smallest_entry_and_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeperd.kit.shrink.LIMIT", 300)  # the search ends by itself, on a busy machine too
    failure = proved(settings_of(scripted(RAISES), reservations=False), HOLD)
    assert "so many" in failure.problem
    assert failure.line == "10: error('so many')"
    entry = json.loads(failure.entry)
    # The amount that is just too much; nothing that the failure does not need.
    assert entry["hash"] == {"show": "hamlet", "qty": "13", "expires_at": "1700000000000"}
    assert entry["keys"] == {}


def test_a_failure_without_an_error_names_the_smallest_entry() -> None:
    settings = settings_of(SEATS, reservations=False)
    failure = proved(settings, HOLD | {"keys": {"seats:hamlet": {"hash": {"free": 7, "held": 12}}}})
    assert "INVALID_PLAN below MIN 0" in failure.problem
    assert failure.line == ""
    entry = json.loads(failure.entry)
    assert entry["hash"] == {"state": "HELD", "show": "hamlet", "qty": "1", "expires_at": "1700000000000"}
    assert entry["keys"] == {"seats:hamlet": {"hash": {"free": "0", "held": "0"}}}


def test_the_command_tells_both(tmp_path: Path) -> None:
    text = (EXAMPLES / "locks" / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    script = (EXAMPLES / "locks" / "lock.lua").read_text(encoding="utf-8")
    (tmp_path / "lock.lua").write_text(script.replace("  local writes", "  error('no')\n  local writes"))
    samples = str(EXAMPLES / "locks" / "samples.json")
    line = ["--config", str(tmp_path / "config.toml"), "prove", "--kind", "lock", "--samples", samples]
    result = CliRunner().invoke(main, [*line, "--json"])
    assert result.exit_code == 1
    document = json.loads(result.output)
    (first, *_) = (row for row in document["properties"] if not row["holds"])
    assert first["line"] == "19: error('no')"
    assert json.loads(first["entry"])["id"]
    lines = Failure(first["input"], first["problem"], first["entry"], first["line"]).report
    assert lines[0].startswith("input: ")
    assert lines[2:] == [f"entry: {first['entry']}", f"line: {first['line']}"]


# ---- what a sample says of the end

#: It gives the seats to another key than it should; and to none.
ASTRAY = "function decide() return 'expire' end\nfunction plan(hash) return {%s} end\n"
GIVES = "{'HINCRBY', 'seats:' .. hash.show, 'free', hash.qty}"
FREE = {"seats:hamlet": {"hash": {"free": 740, "held": 300, "rows": 12}}}


@pytest.mark.parametrize(
    ("plan", "after", "problem"),
    [
        (GIVES, {"keys": {"seats:hamlet": {"hash": {"free": 741}}}}, "seats:hamlet is"),
        (GIVES, {"keys": FREE | {"seats:list": None}}, "seats:list is"),
        (GIVES, {"hash": {"state": "HELD"}}, 'state is "EXPIRED"'),
        (GIVES, {"hash": {"colour": None}}, 'colour is "red"'),
        (GIVES, {"hash": None}, "the hash"),
        (GIVES, {"keys": {}}, "seats:hamlet changed"),
        (GIVES, {"keys": FREE, "event": {"show": "hamlet"}}, "the event has {}"),
        (GIVES, {"keys": FREE, "messages": [["c", "m"]]}, "the messages are []"),
        ("", None, "it expired"),
    ],
)
def test_after_is_compared(plan: str, after: dict[str, Any] | None, problem: str) -> None:
    failure = proved(settings_of(scripted(ASTRAY % plan), reservations=False), HOLD | {"after": after})
    assert failure.problem.startswith(problem)


def test_what_is_as_after_says_passes() -> None:
    settings = settings_of(scripted(ASTRAY % GIVES), reservations=False)
    (kind,) = settings.kinds
    after = {"hash": {"colour": "red", "owner": None}, "keys": FREE, "event": {}, "messages": []}
    first, *_ = prove(settings, kind, [sample_of(HOLD | {"after": after}, kind)])
    assert first.failure is None


@pytest.mark.parametrize("after", [{"fields": {}}, {"keys": {"a": {"text": "b"}}}, {"messages": [["c"]]}, []])
def test_an_after_that_is_none_is_refused(after: Any) -> None:
    (kind,) = settings_of(scripted(ASTRAY % GIVES), reservations=False).kinds
    with pytest.raises((ValueError, AttributeError)):
        sample_of(HOLD | {"after": after}, kind)


def test_an_expired_sample_without_after_is_a_warning(tmp_path: Path) -> None:
    samples = json.loads((EXAMPLES / "locks" / "samples.json").read_text(encoding="utf-8"))
    for sample in samples["samples"]:
        sample.pop("after", None)
    (tmp_path / "samples.json").write_text(json.dumps(samples), encoding="utf-8")
    line = ["--config", str(EXAMPLES / "locks" / "config.toml"), "prove", "--kind", "lock", "--samples"]
    result = CliRunner().invoke(main, [*line, str(tmp_path / "samples.json"), "--json"])
    (warning,) = json.loads(result.stdout)["warnings"]
    assert (result.exit_code, "disk-1:7" in warning, result.stderr) == (0, True, f"warning: {warning}\n")


#: One command of each kind that a template may have.
EVERY_COMMAND = [
    *(
        "HSET seats:a s {qty}",
        "HDEL seats:b x {show}",
        "HINCRBY seats:c free {qty}",
        "INCRBY seats:d -{qty}",
        "DEL seats:e",
    ),
    *("SET seats:f {show}", "SET seats:g {show} PX 60000", "ZADD seats:h -{qty} {id}", "ZREM seats:i {id} x"),
    *("SADD seats:j {id} y", "SREM seats:k {id}", "LPUSH seats:l 1 2", "RPUSH seats:m 1 2", "PEXPIRE seats:n 60000"),
    "PUBLISH seats.{show} {id}",
]


def test_a_derived_sample_knows_what_each_command_leaves() -> None:
    kind = SEATS | {"give_back": EVERY_COMMAND, "channels": ["seats.*"]}
    settings = settings_of(kind, reservations=False)
    (sample,) = derived_samples(settings.kinds[0])
    assert [proof.failure for proof in prove(settings, settings.kinds[0], [sample]) if proof.failure] == []
    assert sample.after is not None
    assert sample.after.messages == (("seats.show-1", "id-1"),)
    assert len(sample.after.keys) == 13, "of PEXPIRE nothing is left where its key does not exist"


def test_a_kind_with_a_grace_and_a_wait_is_proved() -> None:
    text = "function decide(hash, now) if hash.wait then return 'wait', now + 60000 end return 'expire' end\n"
    plan = f"function plan(hash) return {{{GIVES}}} end\n"
    settings = settings_of(scripted(text + plan, grace="1s"), reservations=False)
    (kind,) = settings.kinds
    waiting = HOLD | {"hash": HOLD["hash"] | {"wait": "1"}, "outcome": "not_due", "endless": True}
    samples = [sample_of(row, kind) for row in (HOLD | {"after": {"keys": FREE}}, waiting)]
    assert [proof.failure for proof in prove(settings, kind, samples) if proof.failure] == []


# ---- a script without an end

#: It is decided once the entry's hash is read.
ENDLESS = "function decide() while true do end end\nfunction plan() return {} end\n"


def test_a_script_without_an_end_is_stopped_and_named() -> None:
    settings = settings_of(scripted(ENDLESS), reservations=False)
    (kind,) = settings.kinds
    (only,) = prove(settings, kind, [sample_of(HOLD, kind)])
    assert only.failure is not None
    assert only.failure.problem.startswith("no end")


def test_another_proof_follows_on_the_same_redis(client: redis.Redis) -> None:
    settings = settings_of(scripted(ENDLESS), reservations=False)
    (kind,) = settings.kinds
    sample = sample_of(HOLD, kind)
    options = client.connection_pool.connection_kwargs | {"socket_timeout": RUN_LIMIT, "protocol": 2}
    with redis.Redis(connection_pool=redis.ConnectionPool(**options)) as patient:
        lab = Lab(patient, settings, kind)
        lab.load(sample)
        with pytest.raises(NoEnd):
            lab.run(b"h1")
        assert orphan(lab, sample) is None


# ---- the killed process


def laboratory(client: redis.Redis) -> tuple[Lab, Sample]:
    settings = load(EXAMPLES / "seat-holds" / "config.toml", {})
    (kind,) = settings.kinds
    return Lab(client, settings, kind), derived_samples(kind)[0]


def test_a_process_is_killed_in_the_middle_of_a_drain(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, expired = [], []

    class Watched(subprocess.Popen[bytes]):
        def kill(self) -> None:
            super().kill()
            codes.append(self.wait())
            expired.append(client.xlen("sweeperd:events") - 1)  # one is from before the drain

    monkeypatch.setattr(subprocess, "Popen", Watched)
    lab, sample = laboratory(client)
    assert killed(lab, sample) is None
    assert codes == [-9]
    assert expired[0] >= properties.ENTRIES // 2, "half of them were answered"
    assert client.xlen("sweeperd:events") - 1 == properties.ENTRIES + 1


def test_what_a_killed_process_does_twice_is_caught(client: redis.Redis) -> None:
    """A sweep that leaves the mark of what has ended to a later step: killed in between, it gives back again."""
    lab, sample = laboratory(client)
    assert ", 'state', 'EXPIRED')\n" in lab.text
    late = lab.text.replace(", 'state', 'EXPIRED')\n", ")\n").replace(
        "local removed = call('ZREM', index, id)", "local removed = 1"
    )
    settings = load(EXAMPLES / "seat-holds" / "config.toml", {})
    failure = killed(Lab(client, settings, settings.kinds[0], late), sample)
    assert failure is not None
    assert "two events" in failure.problem


# ---- an entry without an end


@pytest.mark.parametrize("answer", ["'wait', now + 60000", "'extend', now + 60000"])
def test_an_entry_that_is_put_off_for_ever_is_caught(client: redis.Redis, answer: str) -> None:
    text = f"function decide(_, now) return {answer} end\nfunction plan() return {{}} end\n"
    settings = settings_of(scripted(text), reservations=False)
    lab = Lab(client, settings, settings.kinds[0])
    row = HOLD | {"outcome": "not_due"}
    failure = waits(lab, sample_of(row, lab.settings))
    assert failure is not None
    assert "100 times" in failure.problem
    assert waits(lab, sample_of(row | {"endless": True}, lab.settings)) is None


def test_a_session_in_use_comes_to_its_end(client: redis.Redis) -> None:
    settings = load(EXAMPLES / "sessions" / "config.toml", {})
    (kind,) = settings.kinds
    lab = Lab(client, settings, kind)
    used = [each for each in read_samples(EXAMPLES / "sessions" / "samples.json", kind) if each.outcome == "not_due"]
    assert used
    assert [waits(lab, each) for each in used] == [None] * len(used)
