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
from sweeperd.kit import drains
from sweeperd.kit.drains import killed
from sweeperd.kit.entries import orphan, waits
from sweeperd.kit.failure import Failure
from sweeperd.kit.lab import RUN_LIMIT, Lab, NoEnd
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import Sample, derived_samples, read_samples, sample_of
from tests.integration.kit.test_faults import EXAMPLES
from tests.lua.kinds.world import SEATS, scripted, settings_of

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


def test_a_failure_names_the_smallest_entry_and_the_line() -> None:
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
    assert failure.problem.startswith("quarantined in place of expired: INVALID_PLAN below MIN 0")
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


# ---- a script without an end

#: It is decided once the entry's hash is read.
ENDLESS = "function decide() while true do end end\nfunction plan() return {} end\n"


def test_a_script_without_an_end_is_stopped_and_named() -> None:
    settings = settings_of(scripted(ENDLESS), reservations=False)
    (kind,) = settings.kinds
    (only,) = prove(settings, kind, [sample_of(HOLD, kind)])
    assert only.failure == Failure("h1", "no end after 6 s")


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
            expired.append(client.xlen("sweeperd:events"))

    monkeypatch.setattr(subprocess, "Popen", Watched)
    lab, sample = laboratory(client)
    assert killed(lab, sample) is None
    assert codes == [-9]
    assert expired[0] >= drains.ENTRIES // 2, "half of them were answered"
    assert client.xlen("sweeperd:events") == drains.ENTRIES + 1


def test_what_a_killed_process_does_twice_is_caught(client: redis.Redis) -> None:
    """A sweep that leaves the mark of what has ended to a later step: killed in between, it gives back again."""
    lab, sample = laboratory(client)
    assert ", 'state', 'EXPIRED')\n" in lab.text
    late = lab.text.replace(", 'state', 'EXPIRED')\n", ")\n").replace(
        "local indexed = call('ZREM', index, id)", "local indexed = 1"
    )
    settings = load(EXAMPLES / "seat-holds" / "config.toml", {})
    failure = killed(Lab(client, settings, settings.kinds[0], late), sample)
    assert failure is not None
    assert failure.problem == "two events for one end"


# ---- an entry without an end


@pytest.mark.parametrize("answer", ["'wait', now + 60000", "'extend', now + 60000"])
def test_an_entry_that_is_put_off_for_ever_is_caught(client: redis.Redis, answer: str) -> None:
    text = f"function decide(_, now) return {answer} end\nfunction plan() return {{}} end\n"
    settings = settings_of(scripted(text), reservations=False)
    lab = Lab(client, settings, settings.kinds[0])
    row = HOLD | {"outcome": "not_due"}
    failure = waits(lab, sample_of(row, lab.settings))
    assert failure is not None
    assert failure.problem == "it was put off 100 times, and has no end"
    assert waits(lab, sample_of(row | {"endless": True}, lab.settings)) is None


def test_a_session_in_use_comes_to_its_end(client: redis.Redis) -> None:
    settings = load(EXAMPLES / "sessions" / "config.toml", {})
    (kind,) = settings.kinds
    lab = Lab(client, settings, kind)
    used = [each for each in read_samples(EXAMPLES / "sessions" / "samples.json", kind) if each.outcome == "not_due"]
    assert used
    assert [waits(lab, each) for each in used] == [None] * len(used)
