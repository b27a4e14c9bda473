"""Chooses the files that are mutated and the tests that each script's mutants are tried with."""

import re
from collections.abc import Sequence
from pathlib import Path

from proof.mutants import lua, python
from proof.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeperd"
SCRIPTS = PACKAGE / "scripts"
#: The folders whose modules are mutated.
FOLDERS = ("sweep", "outbox", "delivery")

_EXPIRE = (
    "tests/lua/test_expire_outcomes.py",
    "tests/lua/test_expire_rules.py",
    "tests/lua/test_expire_clock.py",
    "tests/lua/test_expire_amounts.py",
    "tests/lua/test_int64.py",
    "tests/lua/test_expire_quarantine.py",
    "tests/lua/test_thresholds.py",
    "tests/integration/sweep/test_rights.py",
)
_LEDGER = (
    "tests/lua/test_ledger_operations.py",
    "tests/lua/test_ledger_refusals.py",
    "tests/lua/test_ledger_edges.py",
    "tests/lua/test_ledger_replays.py",
    "tests/lua/test_ledger_settle.py",
    "tests/lua/test_ledger_cycles.py",
    "tests/lua/test_ledger_rights.py",
    "tests/lua/test_thresholds.py",
    "tests/integration/ledger",
)
_KINDS = (
    "tests/lua/kinds",
    "tests/integration/sweep/test_kind_check.py",
    "tests/integration/runtime/test_kinds.py",
    "tests/property/test_kind_plans.py",
    "tests/property/test_kind_documents.py",
    "tests/property/test_kind_quick_list.py",
)
_OUTBOX = ("tests/integration/outbox/test_outbox.py",)
_FILTERS = (*_OUTBOX, "tests/integration/outbox/test_filters.py")
_GROUPS = (*_OUTBOX, "tests/integration/delivery/test_groups.py", "tests/integration/outbox/test_start.py")
_ENDPOINT_STATE = (
    "tests/integration/outbox/test_endpoint_state.py",
    "tests/integration/outbox/test_circuit_state.py",
    "tests/integration/cli/test_endpoints.py",
)
_REPLAYS = (
    "tests/integration/outbox/test_replay_store.py",
    "tests/integration/delivery/test_replays.py",
    "tests/integration/cli/test_replay_span.py",
)
_QUARANTINE = (
    "tests/integration/cli/test_quarantine.py",
    "tests/integration/cli/test_kind_quarantine.py",
    "tests/integration/ops/test_forms.py",
)
_RECONCILE = (
    "tests/lua/test_reconcile_scripts.py",
    "tests/integration/ops/test_deadlines.py",
    "tests/integration/ops/test_reconcile.py",
    "tests/integration/ops/test_walk.py",
    "tests/integration/cli/test_reconcile.py",
)
_STATUS = ("tests/integration/ops/test_status.py", "tests/integration/cli/test_status.py")
_GRACE = (
    "tests/lua/test_grace_scan.py",
    "tests/integration/sweep/test_grace_cache.py",
    "tests/integration/sweep/test_sweeper.py",
)

#: The last tests of each script: a right that is missing is noticed before the first write.
_RIGHTS = "tests/lua/test_script_rights.py"
#: The beginning of a script's name -> its tests; the longest beginning counts.
_SCRIPT_TESTS = {
    "delivery/": _OUTBOX,
    "delivery/acknowledge_unwanted": _FILTERS,
    "delivery/announce": ("tests/integration/delivery/test_failures.py",),
    "delivery/begin_replay": _REPLAYS,
    "delivery/cancel_replay": _REPLAYS,
    "delivery/end_replay": _REPLAYS,
    "delivery/correct_moments": ("tests/integration/outbox/test_moments.py",),
    "delivery/dead_letter": (*_OUTBOX, "tests/integration/delivery/test_reader.py"),
    "delivery/keep_groups": _GROUPS,
    "delivery/make_due": ("tests/integration/cli/test_endpoints.py", *_OUTBOX),
    "delivery/note_filters": _FILTERS,
    "delivery/pass_unwanted": _FILTERS,
    "delivery/relay": ("tests/integration/delivery/test_relay.py", "tests/integration/delivery/test_relay_brake.py"),
    "delivery/subscriptions": ("tests/integration/delivery/test_relay.py",),
    "delivery/set_": _ENDPOINT_STATE,
    "delivery/take_tokens": ("tests/integration/delivery/test_rate_limit.py",),
    "delivery/trim": _OUTBOX,
    "lease/": ("tests/integration/store/test_lease.py",),
    "ledger/": _LEDGER,
    "ops/": _QUARANTINE,
    "ops/explain": ("tests/integration/sweep/test_explanation.py", "tests/integration/cli/test_show.py", *_EXPIRE),
    "ops/letters": (*_STATUS, "tests/integration/cli/test_dead_letters.py"),
    "ops/rate": _STATUS,
    "ops/reconcile": _RECONCILE,
    "ops/reconcile_entry": (
        *_RECONCILE,
        "tests/integration/ops/test_reconcile_kinds.py",
        "tests/integration/ops/test_forms.py",
        "tests/integration/cli/test_kind_tools.py",
        "tests/integration/cli/test_index.py",
    ),
    "ops/record_action": (
        "tests/integration/cli/test_actions.py",
        "tests/integration/cli/test_drop.py",
        *_QUARANTINE,
    ),
    "ops/repair_budget": (*_RECONCILE, "tests/lua/test_thresholds.py"),
    "ops/replay": ("tests/integration/cli/test_replay.py", "tests/integration/cli/test_dead_letters.py"),
    "ops/uninstall": ("tests/integration/cli/test_uninstall.py",),
    "sweep/": _GRACE,
    "sweep/drop_notes": ("tests/lua/kinds/test_forms.py",),
    "sweep/expire": _EXPIRE,
    "sweep/expiry_rates": ("tests/integration/sweep/test_expiry_rates.py",),
    "sweep/kind_compiles": _KINDS,
    "sweep/last_sweep": ("tests/integration/sweep/test_last_sweep.py", "tests/integration/sweep/test_memory_limit.py"),
    "sweep/rights": ("tests/integration/sweep/test_rights.py",),
}
#: The beginning of a fragment's name -> tests that come before those of the scripts that include it. Scripts that are
#: generated for each kind are made of fragments that no file includes by name.
_FRAGMENT_TESTS = {
    "kind_": _KINDS,
    "kind_entry": (
        "tests/integration/cli/test_index.py",
        "tests/integration/ops/test_forms.py",
        "tests/integration/cli/test_kind_tools.py",
    ),
    "lifetime": _RECONCILE[:2],
    "recorder": ("tests/integration/cli/test_dry_run.py", "tests/integration/kit/test_live.py"),
    "thresholds": ("tests/lua/test_thresholds.py",),
}

_INCLUDE = re.compile(r"^ *-- @include ([\w/]+)$", re.MULTILINE)


def script_files() -> list[Path]:
    """Every script and fragment."""
    return sorted(SCRIPTS.glob("*/*.lua"))


def module_files() -> list[Path]:
    """The modules of FOLDERS."""
    return sorted(path for folder in FOLDERS for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")


def all_mutants(language: str, only: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of the scripts, or of the modules; `only`: of files whose path holds one of these texts."""
    files = script_files() if language == "lua" else module_files()
    make = lua.mutants if language == "lua" else python.mutants
    names = {path: path.relative_to(PACKAGE).as_posix() for path in files}
    chosen = [path for path in files if not only or any(text in names[path] for text in only)]
    return [mutant for path in chosen for mutant in make(names[path], path.read_text(encoding="utf-8"))]


def tests_of(path: Path) -> list[str]:
    """The tests that are run against a mutant of this script or fragment, in order."""
    if path.parent.name != "include":
        return [*_tests_of_script(f"{path.parent.name}/{path.stem}"), _RIGHTS]
    names: list[tuple[str, ...]] = [
        tests for beginning, tests in _FRAGMENT_TESTS.items() if path.stem.startswith(beginning)
    ]
    users = [one for one in script_files() if one.parent.name != "include" and path.stem in _includes(one)]
    names += [_tests_of_script(f"{one.parent.name}/{one.stem}") for one in users]
    return [*dict.fromkeys(test for tests in names for test in tests), _RIGHTS]


def _tests_of_script(name: str) -> tuple[str, ...]:
    beginning = max((one for one in _SCRIPT_TESTS if name.startswith(one)), key=len)
    return _SCRIPT_TESTS[beginning]


def _includes(path: Path) -> set[str]:
    """The names of all fragments that a script includes, itself or through another."""
    direct = set(_INCLUDE.findall(path.read_text(encoding="utf-8")))
    return direct.union(*(_includes(_file_of(name)) for name in direct))


def _file_of(name: str) -> Path:
    """The file of an included name, which is a fragment's if the name has no folder."""
    return SCRIPTS / f"{name if '/' in name else 'include/' + name}.lua"
