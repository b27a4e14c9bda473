"""
The lowest version of each direct dependency, as constraints for pip: what pyproject.toml promises to work with.

    python -m tests.support.lowest > constraints.txt
"""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
#: Name, extras, and the lower bound, which comes first.
REQUIREMENT = re.compile(r"([A-Za-z0-9-]+)(?:\[[a-z,]+\])?>=([0-9.]+)(?:,<[0-9.]+)?")


def lowest() -> list[str]:
    """`name==version` for each. Raises ValueError if a dependency has no lower bound."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    constraints = []
    for requirement in project["dependencies"] + project["optional-dependencies"]["ed25519"]:
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement} has no lower bound, or has it in a form that is not understood")
        constraints.append(f"{match[1]}=={match[2]}")
    return constraints


if __name__ == "__main__":
    print("\n".join(lowest()))
