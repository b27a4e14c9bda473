"""Lists the steps of a release, in order."""

import sys
from functools import partial
from pathlib import Path

from proof.release import readers
from proof.release.step import Step

#: Ruff, the layers, and each script on its own.
_LINT = (
    "ruff check . && ruff format --check . && lint-imports --no-cache && "
    'luacheck $(python -m tests.support.joined_scripts "$RELEASE_DIR")'
)
#: How long the soaks last, minutes; and how often each property is tried.
_SOAK_MINUTES, _TRIES = 30, 1000
#: The gate refuses nothing, three times in a row, and refuses a sweep that is slower on purpose.
_GATE = "for run in 1 2 3; do python -m benchmarks gate || exit 1; done"
_PLANTED = "python -m benchmarks gate throughput --planted; test $? -eq 1"
_ALL_SERVERS = {"SWEEPERD_TEST_ALL_SERVERS": "1"}


def steps(work: Path, chaos_seed: int | None = None, kubeconfig: Path | None = None) -> list[Step]:
    """
    All steps. Their commands run in the clean clone, with the environment below `work` first on the PATH. `chaos_seed`
    draws the faults (None: a new one); without a `kubeconfig` the step `kubernetes` is left out.
    """
    venv, fresh, dist = work / "venv", work / "fresh", work / "build"
    seed = [] if chaos_seed is None else ["--seed", str(chaos_seed)]
    cluster: list[str | Path] = [] if kubeconfig is None else ["--kubeconfig", kubeconfig.resolve()]

    def run(module: str, *arguments: str | Path) -> tuple[str, ...]:
        return ("python", "-m", module, *map(str, arguments))

    return [
        Step(
            "environment",
            "the package and its tools install from a clean clone",
            (sys.executable, "-m", "proof.release.environment", str(venv)),
            readers.document,
        ),
        Step("lint", "linters of Python, of the layers and of Lua", ("sh", "-c", _LINT)),
        Step("types", "mypy --strict", ("mypy",)),
        Step("servers", "the servers that the tests run on", run("proof.release.servers"), readers.document),
        Step("tests", "all tests, on every server", run("pytest", "-q", "-m", ""), readers.tests, _ALL_SERVERS),
        Step(
            "properties",
            f"{_TRIES} tries of each property",
            run("pytest", "-q", "tests/property", "--hypothesis-profile", "thorough", "--timeout", "7200"),
            readers.tests,
            _ALL_SERVERS | {"SWEEPERD_TEST_TRIES": str(_TRIES)},
        ),
        Step(
            "soak",
            "load without faults",
            run("proof.soak", "--minutes", str(_SOAK_MINUTES), "--out", work / "soak"),
            partial(readers.soak, "soak.json"),
            keeps=("soak.json",),
        ),
        Step(
            "chaos",
            "load with faults",
            run("proof.soak", "--chaos", "--minutes", str(_SOAK_MINUTES), *seed, "--out", work / "chaos"),
            partial(readers.soak, "chaos.json"),
            keeps=("chaos.json",),
        ),
        Step(
            "installation",
            "a rehearsal on a running Cycles installation",
            run("proof.release.installation"),
            readers.document,
        ),
        Step(
            "simulation",
            "whole installations on virtual time, with faults, by seeds that were never drawn before",
            run("proof.simulation", "--fresh", "500", "--minutes", "5", "--jobs", "2"),
            readers.simulation,
        ),
        Step(
            "bugs",
            "the simulation finds each bug that is planted",
            run("proof.simulation", "--planted", "--minutes", "2", "--jobs", "2"),
            readers.bugs,
        ),
        Step("gate", "no ratio is much worse than its baseline", ("sh", "-c", _GATE), readers.gate),
        Step("planted", "the gate refuses a sweep that is 30 % slower", ("sh", "-c", _PLANTED), readers.planted),
        Step(
            "mutants",
            "by the kept verdicts, the tests notice what is broken on purpose",
            run("proof.release.mutants"),
            readers.document,
            judges_findings=True,
        ),
        Step("build", "wheel and sdist, the same byte by byte twice", run("proof.release.build"), readers.document),
        Step("metadata", "the index accepts what was built", ("sh", "-c", f"twine check --strict {dist}/sweeperd-*")),
        Step(
            "install",
            "the wheel installs into a new environment, and its demo runs",
            run("proof.release.install", dist, fresh),
            readers.document,
        ),
        Step(
            "kubernetes",
            "the document's blocks and the manifests on a cluster: restricted pods, kill, bad settings, rotation",
            run("proof.release.kubernetes", *cluster),
            readers.document,
        ),
        Step(
            "sbom",
            "what is installed with it, and under which licences",
            run(
                "cyclonedx_py",
                *("environment", fresh / "bin" / "python", "--output-reproducible"),
                *("--output-format", "JSON", "--output-file", work / "sbom" / "sbom.cdx.json"),
            ),
            readers.sbom,
            keeps=("sbom.cdx.json",),
        ),
        Step(
            "vulnerabilities",
            "known vulnerabilities of what is installed with it",
            run("proof.release.audit", fresh),
            readers.document,
        ),
    ]
