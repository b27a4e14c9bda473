"""Writes the page of evidence: what each step found, on which commit and host, and how busy the host was."""

from collections import Counter
from collections.abc import Callable, Sequence

from proof.release.step import Result, Step


def render(
    version: str,
    steps: Sequence[Step],
    results: Sequence[Result | None],
    differing: Callable[[Sequence[str]], list[str] | None] = lambda _: None,
) -> str:
    """
    Markdown. `results`: of each step its last one; None where it was not run. `differing`: the files in which these
    commits differ, apart from findings; None where that is not known.
    """
    found = dict(zip((step.name for step in steps), results, strict=True))
    run = [result for result in results if result is not None]
    lines = [
        f"# Evidence for {version}",
        "",
        f"What `python -m proof.release {version}` found. [Contributing](../../CONTRIBUTING.md#releasing) says how to "
        "repeat it, and [proofs](../../proof/README.md) what each verdict judges.",
        "Commands, series and plots are an artifact of the release workflow. Its job `machines` proves the image, "
        "the blocks for systemd and cron, and the README's commands.",
        "",
        _commits(run, differing),
        "",
        *_hosts(run),
        "",
        "| step | shows | result | commit | date | took | load before, after |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(step, found[step.name]) for step in steps]
    for step in steps:
        result = found[step.name]
        if result is not None and (result.figures or not result.holds):
            lines += ["", *_section(step, result)]
    return "\n".join(lines) + "\n"


def _commits(results: Sequence[Result], differing: Callable[[Sequence[str]], list[str] | None]) -> str:
    """On how many commits the steps were run: a result of another product may say nothing about this one."""
    commits = dict.fromkeys(result.commit[:12] for result in results)
    if len(commits) < 2:
        return "".join(f"All steps that were run were run on commit `{commit}`." for commit in commits)
    counts = {commit: sum(result.commit.startswith(commit) for result in results) for commit in commits}
    named = ", ".join(f"`{commit}` ({count} step{'s' * (count > 1)})" for commit, count in counts.items())
    files = differing(list(commits))
    if files == []:
        only = "differ in nothing but evidence and the verdicts on mutants"
        return f"The steps were run on {len(commits)} commits that {only}: {named}."
    known = f" Apart from evidence and the verdicts on mutants they differ in {_files(files)}." if files else ""
    return f"The steps were **not** run on one commit, but on {len(commits)}: {named}.{known}"


def _hosts(results: Sequence[Result]) -> list[str]:
    """What the steps ran on, a line for each host, with its steps if there are several."""
    steps: dict[str, list[str]] = {}
    for result in results:
        host = result.host
        steps.setdefault(
            f"Python {host['Python']}, {host['system']}, {host['cores']} cores, with {host['servers']}", []
        ).append(result.step)
    return [f"- {host}" + (f": {', '.join(names)}." if len(steps) > 1 else ".") for host, names in steps.items()]


def _files(files: Sequence[str]) -> str:
    """A few by name, many by their folders."""
    if len(files) <= 10:
        return ", ".join(files)
    folders = Counter(file.partition("/")[0] if "/" in file else "the top folder" for file in files)
    counted = ", ".join(f"{folder} ({count})" for folder, count in folders.most_common())
    return f"{len(files)} files: {counted}"


def _row(step: Step, result: Result | None) -> str:
    if result is None:
        return f"| {step.name} | {step.shows} | not run | | | | |"
    load = f"{result.host['load average before']}, {result.host['load average after']}"
    verdict = "**failed**" if not result.holds else "not checked" if result.unchecked else "holds"
    cells = (step.name, result.shows, verdict, f"`{result.commit[:12]}`", result.began, _duration(result.seconds), load)
    return "| " + " | ".join(cells) + " |"


def _section(step: Step, result: Result) -> list[str]:
    """A heading and its figures in a line, so that a page of all steps can be read."""
    lines = [f"## {step.name.capitalize()}"]
    figures = "; ".join(f"{name}: {text}" for name, text in result.figures.items())
    lines += ["", " ".join(figures.split())] * bool(figures)
    if not result.holds:
        lines += ["", "It failed:", "", "```", result.trouble.strip(), "```"]
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
