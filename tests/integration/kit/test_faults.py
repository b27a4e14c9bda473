"""The kit catches bugs: seeded faults in the scripts and settings of the examples, each named."""

import shutil
import tempfile
from pathlib import Path

import pytest

from sweeperd.config import load
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import derived_samples, read_samples
from sweeperd.store import Keys, embedded
from tests.integration.kit.faults import FAULTS, Fault
from tests.support.builders import configured_kind

EXAMPLES = Path(__file__).parents[3] / "examples"
#: The faults that the kit does not see, and why.
NOT_CAUGHT = {
    "the deadline under another name": "the deadline of a sample is filled in, under the name that the settings have"
}
SEEN_ON_7 = {"does not ask for rights"}


def caught(fault: Fault) -> str:
    """The property that fails; empty if none does."""
    folder = EXAMPLES / fault.example
    with tempfile.TemporaryDirectory() as copy:
        copied = Path(shutil.copytree(folder, copy, dirs_exist_ok=True))
        if fault.file:
            written = copied / fault.file
            written.write_text(fault.seeded(written.read_text(encoding="utf-8")), encoding="utf-8")
        settings = load(copied / "config.toml", {})
    (kind,) = settings.kinds
    entries = folder / "samples.json"
    samples = read_samples(entries, kind) if entries.exists() else derived_samples(kind)
    mutant = None if fault.file else fault.seeded(configured_kind(kind, settings, Keys()).script.source)
    for proof in prove(settings, kind, samples, mutant, shrink=False):
        if proof.failure:
            return f"{proof.name}: {proof.failure.problem}"
    return ""


#: CI tries these, a release all of them.
SOME = ("a counter loses its TTL", "takes out another member", "the stream is cut", "a quarantined entry stays indexed")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=f"{fault.example}: {fault.name}",
            marks=pytest.mark.slow if fault.name in SOME else pytest.mark.release,
        )
        for fault in FAULTS
    ],
)
def test_the_kit_catches_it(fault: Fault) -> None:
    if fault.name in SEEN_ON_7 and embedded.binaries()[0].numbers < (7, 0):
        pytest.skip("Redis 6.2 cannot be asked for a right")
    assert bool(caught(fault)) == (fault.name not in NOT_CAUGHT)
