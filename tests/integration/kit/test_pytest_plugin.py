"""`pytest --sweeperd-config FILE`: the kit's properties as tests of the user, on a real Redis."""

from pathlib import Path

import pytest

from sweeperd.kit.properties import COMPILES, PROPERTIES

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
PLUGIN = ("-p", "sweeperd.kit.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider")
EACH = len(PROPERTIES) + 1


def example(pytester: pytest.Pytester, name: str) -> Path:
    """The files of an example, in the directory of the test."""
    for path in (ROOT / "examples" / name).iterdir():
        if path.suffix in (".toml", ".lua", ".json"):
            pytester.path.joinpath(path.name).write_text(path.read_text())
    return pytester.path / "config.toml"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run in this process, because a new one takes a second to start."""
    return pytester.runpytest_inprocess(*PLUGIN, "--sweeperd-config", "config.toml", *arguments)


def test_each_property_of_each_kind_is_a_test(pytester: pytest.Pytester) -> None:
    example(pytester, "seat-holds")
    result = pytester.runpytest_subprocess(*PLUGIN, "--sweeperd-config", "config.toml", "-v")
    result.assert_outcomes(passed=EACH)
    result.stdout.fnmatch_lines([f"config.toml::test_kind[[]seat-hold: {COMPILES}[]] PASSED*"])
    result.stdout.fnmatch_lines(["config.toml::test_kind[[]seat-hold: never early[]] PASSED*"])


def test_a_kind_with_a_script_needs_entries(pytester: pytest.Pytester) -> None:
    example(pytester, "locks")
    result = run(pytester, "-k", "early")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--sweeperd-samples KIND=FILE; or with the fixture `entry`*"])
    run(pytester, "-k", "early or compiles", "--sweeperd-samples", "lock=samples.json").assert_outcomes(passed=2)


def test_the_fixtures_of_the_user(pytester: pytest.Pytester) -> None:
    example(pytester, "seat-holds")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def entry(kind_name):
            assert kind_name == "seat-hold"
            hold = {"state": "HELD", "show": "hamlet", "qty": "3", "customer": "ada"}
            return [{"id": "h1", "hash": hold, "keys": {"seats:hamlet": {"hash": {"free": "7", "held": "3"}}}}]

        @pytest.fixture
        def books():
            def read(redis):
                if redis.type("seats:hamlet") != b"hash":
                    return None
                return [redis.hget("seats:hamlet", name) for name in ("free",)]
            return read
        """
    )
    result = run(pytester, "-k", "due or compiles")
    result.assert_outcomes(passed=1, failed=1)
    # `free` alone is no sum that an expiry keeps: the books of the user are compared.
    # The report is that of the smallest entry: one seat.
    result.stdout.fnmatch_lines(["*the books changed from [[]b'0'[]] to [[]b'1'[]]*", 'entry: *"qty": "1"*'])


def test_a_strategy_of_hypothesis_finds_the_smallest_entry(pytester: pytest.Pytester) -> None:
    example(pytester, "seat-holds")
    pytester.makeconftest(
        """
        import pytest
        from hypothesis import strategies

        @pytest.fixture
        def entry():
            hold = strategies.fixed_dictionaries({
                "state": strategies.just("HELD"), "show": strategies.just("hamlet"), "customer": strategies.just("ada"),
                "qty": strategies.integers(0, 1000).map(str),
            })
            counters = {"seats:hamlet": {"hash": {"free": "0", "held": "5"}}}
            return strategies.builds(lambda hash: {"id": "h1", "hash": hash, "keys": counters}, hold)
        """
    )
    result = run(pytester, "-k", "due")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*quarantined*expired*below MIN 0*", "*'qty': '6'*"])


def test_an_entry_without_after_is_a_warning(pytester: pytest.Pytester) -> None:
    example(pytester, "locks")
    samples = ("--sweeperd-samples", "lock=samples.json")
    warning = "*PytestWarning: *`after`*: disk-1:7"
    run(pytester, "-k", "due or early", *samples).stdout.no_fnmatch_line(warning)
    file = pytester.path / "samples.json"
    file.write_text(file.read_text().replace('"after"', '"after": null, "ignored"'))
    result = run(pytester, "-k", "due or early", *samples)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([warning])


def test_a_kind_that_is_wrong_fails(pytester: pytest.Pytester) -> None:
    example(pytester, "sessions")
    script = pytester.path / "session.lua"
    script.write_text(script.read_text() + "\nfunction")
    result = run(pytester, "-k", "compiles")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the script does not compile, line *"])
    pytester.path.joinpath("config.toml").write_text("[sweep]\nbatch = 1\n")
    run(pytester).stdout.fnmatch_lines(["*sweep.batch*"])
    pytester.path.joinpath("config.toml").unlink()
    assert run(pytester).ret == pytest.ExitCode.USAGE_ERROR


def test_without_the_option_nothing_happens(pytester: pytest.Pytester) -> None:
    example(pytester, "seat-holds")
    pytester.makepyfile("import sys\ndef test_it():\n    assert 'sweeperd.kit.lab' not in sys.modules\n")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_a_conftest_names_the_plugin_and_nothing_else_loads_it(pytester: pytest.Pytester) -> None:
    example(pytester, "seat-holds")
    options = ("-p", "no:xdist", "-p", "no:cacheprovider", "-k", "early")
    unknown = pytester.runpytest_subprocess(*options, "--sweeperd-config", "config.toml")
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR
    pytester.makeconftest('pytest_plugins = ["sweeperd.kit.pytest_plugin"]')
    pytester.runpytest_subprocess(*options, "--sweeperd-config", "config.toml").assert_outcomes(passed=1)


def test_a_run_without_an_end_fails_its_own_test_only(pytester: pytest.Pytester) -> None:
    script = example(pytester, "locks").with_name("lock.lua")
    head, endless = "function plan(lease)", "function plan(lease)\n  repeat until false"
    script.write_text(script.read_text().replace(head, endless))
    result = run(pytester, "-k", "due or orphan", "--sweeperd-samples", "lock=samples.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the script does not end*"])
