"""
`python -m proof.release.mutants` judges the kept verdicts: all mutants must have been tried, and nearly all caught.
"""

import sys

from proof.mutants import choice, report
from proof.mutants.trial import Verdict
from proof.release.figures import keep

#: The share of a language's mutants that must be caught. Each survivor is explained.
ENOUGH = 0.95


def main() -> int:
    """Exit code 1 if too many survived, or one without an explanation."""
    figures, enough = {}, True
    for language in ("lua", "python"):
        names = [mutant.name for mutant in choice.all_mutants(language)]
        verdicts = report.verdicts(language, names)
        survivors = [name for name, verdict in verdicts.items() if verdict is Verdict.SURVIVED]
        unexplained = [name for name in survivors if name not in report.explanations()]
        untried, caught = len(names) - len(verdicts), len(verdicts) - len(survivors)
        share = caught / max(1, len(verdicts))
        figures[language] = (
            f"{caught} of {len(verdicts)} caught ({share:.1%}), {len(unexplained)} survivors not explained, "
            f"{untried} not tried"
        )
        enough = enough and not untried and not unexplained and share >= ENOUGH
    keep(figures)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
