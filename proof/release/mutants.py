"""
`python -m proof.release.mutants`: what the committed mutation tests found. All mutants have to be tried, of the scripts
and of the modules, and nearly all caught.
"""

import sys

from proof.mutants import choice, report
from proof.mutants.trial import Verdict
from proof.release.figures import keep

#: At least so many of the mutants of a language are caught, and each other one is explained.
ENOUGH = 0.95


def main() -> int:
    """Exit code 1 where too many survived, or one without an explanation."""
    figures, enough = {}, True
    for language in ("lua", "python"):
        rows = report.read(language)
        known = {mutant.name for mutant in choice.all_mutants(language)}
        untried = known - {row["mutant"] for row in rows}
        survivors = [row["mutant"] for row in rows if row["verdict"] == Verdict.SURVIVED]
        unexplained = [name for name in survivors if name not in report.explanations()]
        caught = len(rows) - len(survivors)
        figures[language] = (
            f"{caught} of {len(rows)} caught ({caught / len(rows):.1%}), {len(unexplained)} survivors not explained, "
            f"{len(untried)} not tried"
            if rows
            else "not tried"
        )
        enough = enough and bool(rows) and not untried and not unexplained and caught >= ENOUGH * len(rows)
    keep(figures)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
