"""Memory that is free goes back to the system."""

import gc
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from sweeperd.runtime.process import ARENAS, CONTAINERS, collect_rarely, give_back

#: Small pieces, every second of them freed: without a call the C library keeps all pages. Prints the resident memory
#: of the process in its fullest moment, then, and after the call, KiB.
HOLES = """
import ctypes
from pathlib import Path
from sweeperd.runtime.process import give_back

def resident():
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line).split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(1_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
print(resident())
for piece in pieces[::2]:
    libc.free(piece)
print(resident())
give_back()
print(resident())
"""


#: Threads take memory at the same time. Prints how many arenas the C library has made for them.
ARENAS_USED = """
import ctypes, sys, threading
from sweeperd.runtime.process import share_arenas

if sys.argv[1] == "shared":
    share_arenas()
libc, together = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]

def take():
    together.wait()
    for _ in range(100):
        libc.malloc(60_000)
    together.wait()

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
report = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, report)
libc.fclose(report)
"""


class Circle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_looked_for_less_often() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == (CONTAINERS, *before[1:])
    finally:
        gc.set_threshold(*before)


def test_what_nothing_refers_to_is_collected() -> None:
    gc.disable()
    try:
        left = weakref.ref(Circle())
        assert left() is not None
        give_back()
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the call")
def test_free_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    full, freed, given_back = map(int, done.stdout.split())
    assert freed > full - 5_000
    assert given_back < full - 20_000


def test_a_c_library_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    give_back()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_arenas(tmp_path: Path) -> None:
    assert arenas_used("own", tmp_path) > ARENAS
    assert arenas_used("shared", tmp_path) <= ARENAS


def arenas_used(arenas: str, directory: Path) -> int:
    report = directory / f"{arenas}.xml"
    subprocess.run([sys.executable, "-c", ARENAS_USED, arenas, report], check=True)
    return report.read_text(encoding="ascii").count("<heap nr=")
