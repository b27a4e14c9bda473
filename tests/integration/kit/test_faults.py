"""The kit catches bugs: forty seeded faults, of which it has to catch thirty-eight, each named."""

from pathlib import Path

import pytest

from sweeperd.config import load
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import derived_samples, read_samples
from sweeperd.store.keys import Keys
from sweeperd.sweep.configured_kinds import configured
from tests.integration.kit.faults import FAULTS, Fault

EXAMPLES = Path(__file__).parents[3] / "examples"
#: The faults that the kit does not see, and why.
UNSEEN = {
    "makes counters that do not exist": "a counter that begins at 0 falls below MIN, so the entry is set aside",
}


def caught(fault: Fault) -> str:
    """The property that fails; empty where none does."""
    folder = EXAMPLES / fault.example
    settings = load(folder / "config.toml", {})
    (kind,) = settings.kinds
    text = configured(kind, settings, Keys()).script.source
    assert text.count(fault.old) >= 1, f"{fault.name}: the script has no {fault.old!r}"
    samples = read_samples(folder / "samples.json", kind) if kind.script else derived_samples(kind)
    mutant = text.replace(fault.old, fault.new)
    for proof in prove(settings, kind, samples, mutant, shrink=False):
        if proof.failure:
            return f"{proof.name}: {proof.failure.problem}"
    return ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.example}: {fault.name}")
def test_the_kit_catches_it(fault: Fault) -> None:
    assert bool(caught(fault)) == (fault.name not in UNSEEN)


def test_nearly_all_are_caught() -> None:
    assert len(FAULTS) == 40
    assert len(UNSEEN) <= 2
