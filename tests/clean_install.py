"""Build sdist and wheel of both distributions, install them in clean environments, and run tests outside the tree.

``python tests/clean_install.py`` visits every Python from 3.11 on that this machine has; ``--newest`` only the newest.
Each gets the core with its reference solvers, and the tests that need no extra; then attsvm-paper, whose experiments
must load. ``--demo VERSION`` also installs ``attsvm[cli]`` for that version and runs ``attsvm study digits``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CONSTRAINTS = ROOT / "constraints.txt"
# Reads what attsvm-paper brings, its files of data too; none of it imports a package of an extra.
PAPER = """
from importlib.metadata import entry_points
from attsvm_paper import registry
from attsvm_paper.published.ledger import ledger
from attsvm_paper.report.errata import ERRATA
print(*sorted(command.name for command in entry_points(group="attsvm.commands")))
print(len(registry.names()), len(list(ledger())), len(ERRATA))
"""
TOOLS = ("pytest", "hypothesis", "mpmath", "cvxpy", "clarabel")
CORE_TESTS = (
    "tests/property/test_batch_properties.py",
    "tests/reference/test_separability_verdicts.py",
    "tests/reference/test_soft_margin_oracle.py",
    "tests/reference/test_solve_oracle.py",
    "tests/unit/proofs/test_certificate.py",
    "tests/unit/proofs/test_certificate_file.py",
    "tests/unit/proofs/test_decision.py",
    "tests/unit/package/test_doors.py",
    "tests/unit/study/test_estimator.py",
    "tests/unit/proofs/test_exact.py",
    "tests/unit/package/test_extras.py",
    "tests/unit/proofs/test_proofs.py",
    "tests/unit/core/test_reduction.py",
    "tests/unit/solution/test_solution.py",
    "tests/unit/solvers/test_solve_options.py",
    "tests/unit/proofs/test_ties.py",
)


def interpreters() -> dict[str, str]:
    """Return path by version; a name on PATH may be a shim that runs nothing, so each has to answer for itself."""
    installations = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = {}
    for version in VERSIONS:
        candidates = [
            shutil.which(f"python{version}"),
            *map(str, installations.glob(f"{version}.*/bin/python{version}")),
        ]
        for path in filter(None, candidates):
            if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                paths[version] = path
                break
    return paths


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return what it printed; end with its output if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    process = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=clean | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{process.stdout}")
    return process.stdout


def wheel(folder: Path, project: Path) -> Path:
    """Build the sdist from the tree and the wheel from the sdist; every file of the package, and no other, is in it."""
    run(sys.executable, "-m", "build", "--outdir", folder, project, cwd=folder.parent)
    (path,) = folder.glob("*.whl")
    git_files = set(run("git", "ls-files", "src", cwd=project).split())
    wheel_files = {f"src/{name}" for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
    if git_files != wheel_files:
        sys.exit(f"{path.name} and the tree differ in {', '.join(sorted(git_files ^ wheel_files))}")
    return path


def check_description(package: Path) -> None:
    """End if an index page cannot show a wheel's description, or shows a link or picture that leads nowhere."""
    (distribution,) = distributions(path=[str(package)])
    page = markdown.render(distribution.metadata["Description"])
    if page is None:
        sys.exit(f"{package.name} has a description that is no Markdown")
    if links := re.findall(r'(?:src|href)="((?!https://|#)[^"]*|https://address.invalid[^"]*)"', page):
        sys.exit(f"the description of {package.name} has links that lead nowhere: {', '.join(links)}")


def environment(interpreter: str, folder: Path, *packages: str) -> Path:
    """Return the folder of commands of a new environment that holds the packages."""
    run(interpreter, "-m", "venv", folder, cwd=folder.parent)
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", CONSTRAINTS)
    run(*pip, *packages, cwd=folder.parent)
    return folder / "bin"


def main() -> None:
    """Check each version in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--newest", action="store_true", help="only the newest Python of this machine")
    parser.add_argument("--demo", metavar="VERSION", help="also run the demo, with the extra cli, on this version")
    options = parser.parse_args()

    paths = interpreters()
    if options.newest:
        paths = dict([max(paths.items(), key=lambda item: VERSIONS.index(item[0]))])
    elif absent := [version for version in VERSIONS if version not in paths]:
        print(f"no Python {', '.join(absent)} on this machine")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package, paper = wheel(folder / "attsvm", ROOT), wheel(folder / "attsvm-paper", ROOT / "paper")
        check_description(package)
        check_description(paper)
        for part in ("tests", "docs/skipped-tests.md", "pyproject.toml"):
            target = folder / "outside" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, target)
        for version, interpreter in paths.items():
            commands = environment(interpreter, folder / f"core-{version}", str(package), *TOOLS)
            # The methods one by one and mutants of certificates take minutes and depend on no version of Python.
            selected = "not (forced_method or false_claim or families_are_many)"
            selection = (*CORE_TESTS, "-k", selected, "-q", "-p", "no:cacheprovider")
            output = run(commands / "python", "-m", "pytest", *selection, cwd=folder / "outside", OMP_NUM_THREADS="1")
            print(f"Python {version}, {package.name}: {output.splitlines()[-1].strip('= ')}", flush=True)
            run(commands / "python", "-m", "pip", "install", "-q", "--no-deps", paper, cwd=folder)
            brought = run(commands / "python", "-c", PAPER, cwd=folder).split("\n")
            print(f"Python {version}, {paper.name}: {' and '.join(brought[0].split())}; {brought[1]}", flush=True)
        if options.demo:
            target = folder / f"demo-{options.demo}"
            commands = environment(paths[options.demo], target, f"attsvm[cli] @ {package.as_uri()}")
            output = run(commands / "attsvm", "study", "digits", cwd=folder, COLUMNS="120")
            print(f"Python {options.demo}, demo: {output.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
