"""The properties of a whole drain: rivals on the same entries, and a sweeper that is killed in the middle."""

import contextlib
import marshal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from sweeperd.kit import victim
from sweeperd.kit.failure import Failure
from sweeperd.kit.lab import TRACE, Lab, NoEnd
from sweeperd.kit.samples import DEADLINE, Sample

#: How many copies of a sample are drained, beside the sample itself.
ENTRIES = 40


def rivals(lab: Lab, sample: Sample) -> Failure | None:
    """Two replicas on the same entries make one event for each end."""
    if sample.outcome != "expired":
        return None

    def against() -> None:
        with contextlib.suppress(NoEnd):  # the other one tells
            _sweep(lab, sample)

    def both() -> None:
        rival = threading.Thread(target=against, name="prove", daemon=True)
        rival.start()
        _sweep(lab, sample)
        rival.join()

    return _drained(lab, sample, both)


def killed(lab: Lab, sample: Sample) -> Failure | None:
    """A process that is killed in the middle of a drain leaves nothing half done, and the next one ends its work."""
    if sample.outcome != "expired":
        return None
    return _drained(lab, sample, lambda: _die(lab, sample))


def at_once(lab: Lab, sample: Sample) -> Failure | None:
    """Entries that are swept within the same millisecond have an event each."""
    lab.load(sample, more=1)
    for entry in lab.entries(sample, 1):
        lab.write(sample.keys)
        result = lab.run(entry, at=DEADLINE + lab.settings.grace_ms + 1)
        if isinstance(result, Exception):
            return Failure(f"2 copies of {sample.id} in one millisecond", f"an error: {result}")
    return None


def _sweep(lab: Lab, sample: Sample) -> None:
    for entry in lab.entries(sample, ENTRIES):
        lab.run(entry)


def _die(lab: Lab, sample: Sample) -> None:
    """Sweep in a process of its own (victim.py) and kill it with `kill -9` while its requests are on the way."""
    sha = lab.client.script_load(lab.text)
    calls = [lab.kind.call(entry, TRACE) for entry in lab.entries(sample, ENTRIES)]
    connection = lab.client.connection_pool.get_connection()
    requests = [
        b"".join(connection.pack_command("EVALSHA", sha, len(call.keys), *call.keys, *call.args)) for call in calls
    ]
    lab.client.connection_pool.release(connection)
    port = str(lab.client.connection_pool.connection_kwargs["port"])
    line = [sys.executable, "-I", "-S", str(Path(victim.__file__)), port]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        try:
            marshal.dump(requests, process.stdin)
            process.stdin.flush()
            in_the_middle = process.stdout.readline()
        finally:
            process.kill()
    if not in_the_middle:
        raise RuntimeError("the process that was to be killed has ended by itself")


def _drained(lab: Lab, sample: Sample, work: Callable[[], None]) -> Failure | None:
    """
    Many copies of the sample, `work` on them, and a sweep of what is left. What they hold in counters is enough for all
    of them or refused alike.
    """
    lab.load(sample, more=ENTRIES)
    before = lab.world(sample)
    work()
    _sweep(lab, sample)
    after = lab.world(sample)
    entries = set(lab.entries(sample, ENTRIES))
    ids = [fields[b"id"] for _, fields in after.of(lab.keys.events, "stream") if b"id" in fields]
    set_aside, indexed = (len(entries & after.of(key, "zset").keys()) for key in (lab.kind.quarantine, lab.kind.index))
    if len(set(ids)) != len(ids):
        return Failure(f"{ENTRIES} copies of {sample.id}", "two events for one end")
    if len(ids) + set_aside + indexed < len(entries):
        return Failure(f"{ENTRIES} copies of {sample.id}", "an end without its event")
    if after.books != before.books:
        return Failure(f"{ENTRIES} copies of {sample.id}", "the books changed")
    return None
