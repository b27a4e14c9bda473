"""`python -m proof.release.servers` lists the supported lines of Redis and Valkey and the servers at hand."""

import sys

from proof.release.figures import keep
from tests.support.servers import binaries

#: The lines of versions that sweeperd is made for.
LINES = ("Redis 6.2", "Redis 7.0", "Redis 7.2", "Redis 7.4", "Redis 8", "Valkey 7.2", "Valkey 8", "Valkey 9")


def by_line(found: list[str]) -> dict[str, str]:
    """Line -> the servers of it that the tests run on, or that it is not tested."""
    figures = {}
    for line in LINES:
        name, _, wanted = line.partition(" ")
        numbers = wanted.split(".")
        mine = [
            one for one in found if one.startswith(f"{name} ") and one.split()[1].split(".")[: len(numbers)] == numbers
        ]
        figures[line] = ", ".join(mine) or "not tested"
    others = [one for one in found if not any(one in text for text in figures.values())]
    return figures | ({"others": ", ".join(others)} if others else {})


def main() -> int:
    """Exit code 1 where there is no server at all."""
    found = [str(binary) for binary in binaries()]
    keep(by_line(found))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
