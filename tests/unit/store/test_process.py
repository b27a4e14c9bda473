"""What a process is called."""

import os
import re
import socket
import subprocess
import sys

from sweeperd.store.lease import process_name


def test_a_process_has_one_name() -> None:
    assert process_name() == process_name()
    assert re.fullmatch(re.escape(socket.gethostname()) + r"-\d+-[0-9a-f]{6}", process_name())


def test_two_processes_of_one_host_name_and_process_id_have_two_names() -> None:
    """As pid 1 of two containers on the network of their host."""
    text = f"import os, sweeperd.store.lease as p; os.getpid = lambda: {os.getpid()}; print(p.process_name())"
    other = subprocess.check_output([sys.executable, "-c", text], text=True).strip()
    assert other.rpartition("-")[0] == process_name().rpartition("-")[0]
    assert other != process_name()
