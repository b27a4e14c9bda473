"""Checks the machine that sweeperd runs on."""

import contextlib
import resource
import stat
from collections.abc import Iterator

from sweeperd.config import Settings
from sweeperd.ops.check.findings import CheckFinding, CheckResult, ok, warning
from sweeperd.store.shard import files_needed


def open_files(settings: Settings) -> CheckResult:
    """Compares the files that a daemon needs with the hard limit, to which it raises its soft one."""
    needed, (_, hard) = files_needed(settings), resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok(f"up to {needed}, no limit")
    if needed > hard:
        return warning(
            f"up to {needed}, but the hard limit is {hard}: endpoints without a connection get nothing",
            "raise the hard limit of the daemon: LimitNOFILE of the unit, or ulimit -Hn",
        )
    return ok(f"up to {needed} of {hard}")


def check_secret_files(settings: Settings) -> Iterator[CheckFinding]:
    """Warns of each file with a secret or a key that every user of this machine may read."""
    for path in settings.secret_files:
        with contextlib.suppress(OSError):  # removed since the settings were loaded
            mode = path.stat().st_mode
            if mode & stat.S_IROTH:
                says = f"every user may read {path} (mode {stat.S_IMODE(mode):04o})"
                yield CheckFinding.of("configuration", "secrets", warning(says, "run chmod o-r"))
