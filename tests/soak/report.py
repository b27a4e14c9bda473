"""The table at the end of a soak."""

from tests.soak.run import Soak


def table(result: Soak) -> str:
    """What was found, what had to hold and whether it did, and where the files are."""
    lines = [f"{name:<9} {fact}" for name, fact in result.facts.items()]
    lines.append("")
    for verdict in result.verdicts:
        lines.append(f"{'ok' if verdict.holds else 'FAILED':<7}{verdict.name:<7}{verdict.claim}")
        lines.append(f"{'':<14}{verdict.found}")
    lines += ["", f"plot      {result.plot}", f"samples   {result.record}"]
    return "\n".join(lines)
