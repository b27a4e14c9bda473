"""The table at the end of a soak."""

from proof.soak.run import Soak


def table(result: Soak) -> str:
    """What was found, what had to hold and whether it did, and where the files are."""
    lines = [f"{name:<9} {fact}" for name, fact in result.facts.items()]
    lines.append("")
    width = 1 + max(len(verdict.name) for verdict in result.verdicts)
    for verdict in result.verdicts:
        lines.append(f"{'ok' if verdict.holds else 'FAILED':<7}{verdict.name:<{width}}{verdict.claim}")
        lines.append(f"{'':<{7 + width}}{verdict.found}")
    lines += ["", f"plot      {result.plot}", f"samples   {result.record}"]
    return "\n".join(lines)
