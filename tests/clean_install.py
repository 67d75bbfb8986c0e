"""Build sdist and wheel of all distributions, install them in clean environments, and run tests outside the tree.

``python tests/clean_install.py`` visits every Python from 3.11 on that this machine has; ``--newest`` the newest alone,
without the slow tests. Each gets the core with its reference solvers, and the tests that need no extra; then
attsvm-paper and attsvm-pretrained, whose commands must be found. pip finds the built files, and what they need, on an
index that this script serves from a folder, and nowhere else. ``--demo VERSION`` also installs ``attsvm[cli]`` for that
version and runs ``attsvm study digits``; ``--notebook FILE`` runs a notebook that needs no extra in a kernel without
attsvm, with the wheel beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CONSTRAINTS = ROOT / "constraints.txt"
# Reads what the other distributions bring, files of data too; none of it imports a package of an extra.
BROUGHT = """
from importlib.metadata import entry_points
from importlib.resources import files
import attsvm_pretrained
from attsvm_paper import registry
from attsvm_paper.published.ledger import ledger
from attsvm_paper.report.errata import ERRATA
print(*sorted(command.name for command in entry_points(group="attsvm.commands")))
print(len(registry.names()), len(list(ledger())), len(ERRATA))
print(sum(1 for _ in (files(attsvm_pretrained) / "report" / "templates").iterdir()))
"""
# pip's report of what `pip install attsvm` takes from the index.
INSTALLED = "installed.json"
NOTEBOOK_TOOLS = ("ipykernel", "nbclient")
# The kernel has its packages from no index: the first cell can only install the wheel in the notebook's folder.
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600).execute()
print(sum(cell.get("execution_count") is not None for cell in notebook.cells))
"""
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "mpmath", "cvxpy", "clarabel")
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
    clean["PYTHONDONTWRITEBYTECODE"] = ""  # what is imported keeps its byte code: pip makes none
    if "PIP_CONFIG_FILE" in environment:
        clean = {name: value for name, value in clean.items() if not name.startswith("PIP_")}
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


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


class Index:
    """A package index: one folder per project, and a server whose listings pip reads."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address

    def add(self, *files: Path) -> None:
        """Link files into the folders of their projects."""
        for file in files:
            project = file.name.split("-")[0] if file.suffix == ".whl" else file.name.rpartition("-")[0]
            target = self.folder / re.sub(r"[-_.]+", "-", project).lower() / file.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                os.link(file, target)

    def file(self, url: str) -> Path:
        """Return the file behind an address of this index."""
        return self.folder / unquote(urlsplit(url).path).lstrip("/")

    def install(self, commands: Path, *arguments: str | Path) -> str:
        """Install from this index alone, whatever the settings of the machine are; most modules are never imported."""
        pip = (commands / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile")
        return run(*pip, "--index-url", self.address, *arguments, cwd=self.folder, PIP_CONFIG_FILE=os.devnull)


@contextmanager
def served(folder: Path) -> Iterator[Index]:
    """Serve an empty index from a folder until the block ends."""
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Index(folder, f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def license_expression(package: Path) -> dict[str, str]:
    """Return the licence expression of a wheel, if it has one; the reports of older pips leave it out."""
    with zipfile.ZipFile(package) as archive:
        (name,) = (one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
        found = message_from_bytes(archive.read(name))["License-Expression"]
    return {"license_expression": found} if found else {}


def environment(interpreter: str, folder: Path, index: Index, package: Path, *tools: str, extra: str = "") -> Path:
    """Return the folder of commands of a new environment that holds a built package and tools, all from the index."""
    run(interpreter, "-m", "venv", folder, cwd=folder.parent)
    commands, downloads = folder / "bin", folder / "downloads"
    pip = (commands / "python", "-m", "pip", "--disable-pip-version-check", "download", "-q", "-c", CONSTRAINTS)
    run(*pip, "--dest", downloads, f"attsvm{extra} @ {package.as_uri()}", *tools, cwd=folder.parent)
    index.add(*downloads.iterdir())
    index.install(commands, "-c", CONSTRAINTS, f"attsvm{extra}", *tools)
    return commands


def run_notebook(notebook: Path, folder: Path, commands: Path, package: Path) -> int:
    """Run all cells of a notebook in a kernel that lost attsvm, and return their number."""
    run(commands / "python", "-m", "pip", "uninstall", "-q", "-y", "attsvm", cwd=folder)
    for file in (notebook, package):
        shutil.copy(file, folder)
    # A process in the background would still write machine code into the folder when that is removed.
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "ATTSVM_COMPILE": "later"}
    return int(run(commands / "python", "-c", EXECUTE, notebook.name, cwd=folder, **settings).split()[-1])


def main() -> None:
    """Check each version in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--newest", action="store_true", help="the newest Python alone, without slow tests")
    parser.add_argument("--demo", metavar="VERSION", help="also run the demo, with the extra cli, on this version")
    parser.add_argument("--notebook", type=Path, metavar="FILE", help="also run a notebook, its first cell too")
    parser.add_argument("--out", type=Path, help="keep what was built, and the list of what it installs")
    options = parser.parse_args()

    paths = interpreters()
    if options.newest:
        paths = dict([max(paths.items(), key=lambda item: VERSIONS.index(item[0]))])
    elif absent := [version for version in VERSIONS if version not in paths]:
        print(f"no Python {', '.join(absent)} on this machine")
    with tempfile.TemporaryDirectory() as name, served(Path(name) / "index") as index:
        folder = Path(name)
        projects = {"attsvm": ROOT, "attsvm-pretrained": ROOT / "pretrained", "attsvm-paper": ROOT / "paper"}
        wheels = [wheel(folder / name, project) for name, project in projects.items()]
        package = wheels[0]
        for one in wheels:
            check_description(one)
        built = [file for name in projects for file in (folder / name).iterdir()]
        index.add(*built)
        for part in ("tests", "CONTRIBUTING.md", "pyproject.toml"):
            target = folder / "outside" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, target)
        for version, interpreter in paths.items():
            commands = environment(interpreter, folder / f"core-{version}", index, package, *TOOLS)
            # The methods one by one and mutants of certificates take minutes and depend on no version of Python.
            selected = "not (forced_method or false_claim or families_are_many)"
            # Each of two workers would make the same machine code, which this environment has none of.
            speed = ("-m", "not slow", "-n", "0") if options.newest else ("-n", "2")
            selection = (*CORE_TESTS, *speed, "-k", selected, "-q", "-p", "no:cacheprovider")
            output = run(commands / "python", "-m", "pytest", *selection, cwd=folder / "outside", OMP_NUM_THREADS="1")
            print(f"Python {version}, {package.name}: {output.splitlines()[-1].strip('= ')}", flush=True)
            index.install(commands, "--no-deps", *list(projects)[1:])
            commands_found, counts, templates = run(commands / "python", "-c", BROUGHT, cwd=folder).splitlines()
            names = ", ".join(one.name for one in wheels[1:])
            print(f"Python {version}, {names}: {commands_found}; {counts}; {templates}", flush=True)
        newest = list(paths)[-1]
        if options.demo:
            target = folder / f"demo-{options.demo}"
            commands = environment(paths[options.demo], target, index, package, extra="[cli]")
            output = run(commands / "attsvm", "study", "digits", cwd=folder, COLUMNS="120")
            print(f"Python {options.demo}, demo: {output.strip().splitlines()[-1]}")
        if options.notebook:
            target = folder / "kernel"
            commands = environment(paths[newest], target, index, package, *NOTEBOOK_TOOLS)
            count = run_notebook(options.notebook, target, commands, package)
            print(f"Python {newest}, {options.notebook.name}: {count} cells", flush=True)
        if options.out:
            report = index.install(
                folder / f"core-{newest}" / "bin", "-c", CONSTRAINTS, "--dry-run", "--ignore-installed",
                "--report", "-", "attsvm",
            )  # fmt: skip
            for file in built:
                shutil.copy(file, options.out)
            content = json.loads(report)
            for item in content["install"]:
                item["metadata"] |= license_expression(index.file(item["download_info"]["url"]))
            (options.out / INSTALLED).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main()
