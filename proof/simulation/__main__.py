"""`python -m proof.simulation`: see `run`. A process of its own, because the kernel replaces threads and clocks."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(  # the same interpreter again, with a hash seed that is the same in each run
        sys.executable, [sys.executable, "-m", "proof.simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
    )

if sys.argv[1:2] == ["--replay"]:  # in real time
    from proof.simulation.replay import main as replay

    sys.exit(replay(sys.argv[2]))

from proof.simulation import kernel

kernel.install()

from proof.simulation.run import main  # noqa: E402 - after the kernel

sys.exit(main())
