"""Mutation testing: change one operator or constant at a time, and see whether the tests notice.

    python tests/mutation.py [NAME ...] [--sample N] [--seed S] [--patience S] [--out FILE] [--again FILE] [--list]

A name is a module, or a package with all its modules; by default it is attsvm. A mutant (tests/mutants.py) is one
change inside a function, made in a forked child by exchanging the code objects of the functions, so that every
reference sees it; processes that tests start load the changed module. The tests that reach the changed statement run in
the child until one fails: first those that killed another mutant of the function or the module, then those in the file
named after the module, then quick ones. A mutant that fails a test is killed, and so is one whose test takes half a
minute and twenty times its time. A mutant that no test notices within --patience seconds, by default half a minute,
survives. The tests of a package are listed in TESTS.

A sample is drawn along the lines of a module in proportion to their mutants. Mutants that change nothing are listed
with the reason in tests/equivalent_mutants.toml; they are run like all others and counted apart. With --out every
mutant is a line of JSON as soon as it was run. The mutants in that file are counted and not run again, so a draw that
was stopped goes on. --again runs those of such a file that survived.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import marshal
import os
import pkgutil
import select
import signal
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from attsvm_paper.judging.statistics import wilson_interval
from mutants import Mutant, clear_caches, draw, install, mutants
from mutated.sitecustomize import note_lines

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
UNIT = "tests/unit/"
SOLVING = [UNIT + name for name in ("core", "proofs", "solvers", "solution")]
SOLVING += ["tests/property/test_solve_properties.py", "tests/reference"]
SOLVING += [f"{UNIT}nn/test_{name}.py" for name in ("max_margin", "margin_transforms")]
SOLVING += [UNIT + "theory/test_correlation.py"]
THEORY = [UNIT + "theory", UNIT + "data/test_preferences.py", "tests/property/test_theory_properties.py"]
THEORY += ["tests/reference/test_graph_svm.py"]
TRAINING = [UNIT + "training", UNIT + "nn", "tests/property/test_training_properties.py"]
TRAINING += ["tests/property/test_batch_properties.py", "tests/reference/test_gradient_reference.py"]
TRAINING += [f"tests/reference/test_{name}.py" for name in ("functional_accuracy", "limit_directions")]
TRAINING += ["tests/reference/test_regularization_path.py"]
STUDY = [UNIT + name for name in ("study", "report", "data", "training/run/test_settings.py")]
STUDY += [f"{UNIT}solvers/test_{name}.py" for name in ("shards", "shards_memory", "shard_changes")]
# Every module's docstrings run as tests.
EXAMPLES = UNIT + "package/test_docstrings.py"
# The tests of a package, or of a module that is none: those that take more than two seconds are marked slow.
TESTS = {f"attsvm.{name}": SOLVING for name in ("core", "proofs", "solvers", "solution", "check", "norms")}
TESTS |= {f"attsvm.{name}": TRAINING for name in ("training", "functional", "nn")}
ESTIMATORS = ("estimator", "margin_classifier", "attention_classifier", "token_scaler")
TESTS |= {f"attsvm.{name}": STUDY for name in ("data", *ESTIMATORS)}
COMMANDS = [f"tests/e2e/test_{name}.py" for name in ("cli", "certificates", "bench", "solve_folder_targets")]
COMMANDS += ["tests/e2e/test_pretrained_study.py", UNIT + "study/test_study_comparison.py"]
COMMANDS += [UNIT + "experiments/test_experiment_runs.py", UNIT + "training/run/test_large_steps.py"]
COMMANDS += [UNIT + "package/test_extras.py"]
TESTS |= {f"attsvm.{name}": [UNIT + name, *COMMANDS] for name in ("cli", "platform", "playground")}
PLOTS = [f"tests/figures/test_plots_of_{name}.py" for name in ("results", "studies", "patches", "margins")]
PAGES = [f"tests/e2e/test_{name}.py" for name in ("study_pages", "study_digits", "report_page")]
INSPECTION = [f"tests/e2e/test_pretrained_{name}.py" for name in ("inspect", "study")]
REPRODUCTION = [f"tests/e2e/test_{name}.py" for name in ("reproduce", "reproduce_own", "every_experiment")]
TESTS |= {
    "attsvm.theory": THEORY,
    "attsvm.plots": [*PLOTS, *PAGES, UNIT + "study"],
    **{f"attsvm.{name}": [*STUDY, *PAGES] for name in ("study", "report")},
    "attsvm.compile": [UNIT + "platform", "tests/e2e/test_machine_code.py"],
    "attsvm.pretrained": [UNIT + "package/test_extras.py"],
    "attsvm.experiments": [UNIT + "package/test_distributions.py"],
    "attsvm_paper": [*(UNIT + name for name in ("experiments", "report", "cli")), "tests/figures", *REPRODUCTION],
    "attsvm_pretrained": [UNIT + "pretrained", UNIT + "report", *INSPECTION, *PLOTS],
}
# Packages whose tests are mostly slow ones.
SLOW = [f"attsvm.{name}" for name in ("cli", "platform", "compile", "plots", "study", "report")]
SLOW += ["attsvm_paper", "attsvm_pretrained"]

# A mutant's module and :attr:`Mutant.key`, and the fields that hold them.
Name = tuple[str, str, int, str, str]
NAME = ("module", "text", "column", "was", "becomes")
QUIET = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
QUIET += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for what the packages have imported


def arguments_of(module: str) -> list[str]:
    """Arguments of pytest that choose the tests of a module."""
    package, name = module.split(".")[:2]
    key = f"{package}.{name}" if f"{package}.{name}" in TESTS else package
    return [*TESTS[key], EXAMPLES, *([] if key in SLOW else ["-m", "not slow"])]


def modules_of(name: str) -> list[str]:
    """The module of this name, or the modules of a package that have tests of their own or by their package."""
    module = importlib.import_module(name)
    names = [one.name for one in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}.") if not one.ispkg]
    return names or [name]


class Lines:
    """A pytest plugin that notes which lines of some files every test reaches, and how long the test takes.

    The lines of fixtures and of processes that the test starts are its lines too. What a test file caches is forgotten,
    so that every test reaches all it needs.
    """

    def __init__(self, files: set[str], folder: Path) -> None:
        self.files, self.folder = files, folder
        self.of: dict[str, tuple[float, dict[str, list[int]]]] = {}
        (folder / "files").write_text(json.dumps(sorted(files)), encoding="utf-8")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        reached: dict[str, set[int]] = {file: set() for file in self.files}
        clear_caches(item.module)  # type: ignore[attr-defined]
        start = time.monotonic()
        end = note_lines(reached)
        yield
        end()
        seconds = time.monotonic() - start
        for path in self.folder.glob("*.lines"):
            for file, lines in json.loads(path.read_text(encoding="utf-8")).items():
                reached[file].update(lines)
            path.unlink()
        self.of[item.nodeid] = (seconds, {file: sorted(of) for file, of in reached.items() if of})


@dataclass(frozen=True)
class Draw:
    """The mutants of a module to run, and who hears of each."""

    module: ModuleType
    sample: list[Mutant]
    tell: Callable[[Mutant, bool, int, float], None]

    @property
    def file(self) -> str:
        return self.module.__file__ or ""

    def is_tested_in(self, test: str) -> bool:
        """Whether the file of a test has the module's name."""
        return f"test_{self.module.__name__.rpartition('.')[2]}.py" in test


class Loop:
    """A pytest plugin that runs, instead of the tests collected once, those of every mutant in a child of its own."""

    def __init__(self, draws: list[Draw], folder: Path, patience: float) -> None:
        self.draws, self.folder, self.patience = draws, folder, patience

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        of = _in_child(lambda: self._lines(session), 7200)
        (self.folder / "files").unlink()
        if of is None:
            raise pytest.UsageError("without a mutation the tests take too long")
        for one in self.draws:
            killers: dict[str, set[str]] = defaultdict(set)
            for mutant in one.sample:
                first, then = killers[mutant.function], set().union(*killers.values())
                tests = sorted(
                    (test not in first, test not in then, not one.is_tested_in(test), seconds, test)
                    for test, (seconds, lines) in of.items()
                    if set(mutant.statement).intersection(lines.get(one.file, ()))
                )
                limit = self.patience + 30 + 20 * max((seconds for *_, seconds, _ in tests), default=0.0)
                start = time.monotonic()
                work = partial(self._killer, one.module, mutant, [items[test] for *_, test in tests])
                # Too long, or a child that dies, is killed as well.
                killer = _in_child(work, limit) if tests else ""
                (self.folder / "mutant").unlink(missing_ok=True)
                first.update([killer] if killer else [])
                one.tell(mutant, killer != "", len(tests), time.monotonic() - start)
        return True

    def _lines(self, session: pytest.Session) -> dict[str, tuple[float, dict[str, list[int]]]]:
        """The lines that every test reaches, without the tests that fail while their lines are noted."""
        plugin = Lines({one.file for one in self.draws}, self.folder)
        session.config.pluginmanager.register(plugin)
        failing = [item.nodeid for item in session.items if _fails(item)]
        return {test: of for test, of in plugin.of.items() if test not in failing}

    def _killer(self, module: ModuleType, mutant: Mutant, items: list[pytest.Item]) -> str:
        """The first test that fails, or no name."""
        code = compile(mutant.make(), module.__file__ or "", "exec", dont_inherit=True)
        install(code, module)
        (self.folder / "mutant").write_bytes(marshal.dumps((module.__name__, code)))
        end = time.monotonic() + self.patience
        return next((item.nodeid for item in items if time.monotonic() < end and _fails(item)), "")


class Failures:
    """A pytest plugin that counts failures."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.count += report.failed


def _fails(item: pytest.Item) -> bool:
    failures = Failures()
    item.config.pluginmanager.register(failures)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    item.config.pluginmanager.unregister(failures)
    return failures.count > 0


def _in_child(work: Callable[[], Any], seconds: float) -> Any:
    """Return what `work` returns in a forked child; None when it takes longer than `seconds` or dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setpgrp()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.close(reading)
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read() if select.select([reading], [], [], seconds)[0] else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def _warm_up() -> None:
    """Load what every child needs: the packages, the compiled kernels, and the packages that the tests compare with."""
    for name in ("cvxpy", "mpmath", "sklearn.svm", "scipy.optimize"):
        importlib.import_module(name)
    from attsvm import theory, train
    from attsvm.data.synthetic import random_data

    data, v = random_data(None, 2, 2, 2, seed=0)
    theory.explore(theory.Trial.of(data, v))
    train(data, v, steps=5)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Send what pytest prints nowhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def equivalent() -> dict[Name, str]:
    """Reasons of the mutants that change nothing."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {tuple(one[part] for part in NAME): one["reason"] for one in listed}


@dataclass
class Tally:
    """Counts of mutants: made, drawn, killed, and those that survive and change nothing."""

    made: int = 0
    drawn: int = 0
    killed: int = 0
    same: int = 0

    def __iadd__(self, other: Tally) -> Tally:
        self.made, self.drawn = self.made + other.made, self.drawn + other.drawn
        self.killed, self.same = self.killed + other.killed, self.same + other.same
        return self

    def row(self, name: str) -> str:
        shares = []
        for total in (self.drawn, self.drawn - self.same):
            low, high = wilson_interval(self.killed, total) if total else (0.0, 1.0)
            shares.append(f"{100 * self.killed / max(total, 1):.0f} % ({100 * low:.0f} to {100 * high:.0f})")
        return f"| {name} | {self.made} | {self.drawn} | {self.killed} | {shares[0]} | {self.same} | {shares[1]} |"


HEAD = """| module | mutants | drawn | killed | of all drawn | change nothing | of the others |
|---|---:|---:|---:|---:|---:|---:|"""


def run(
    names: list[str],
    tests: tuple[str, ...],
    options: argparse.Namespace,
    reasons: dict[Name, str],
) -> dict[str, Tally]:
    """Draw mutants of modules that share their tests, run these, and print the survivors."""
    tallies: dict[str, Tally] = {}
    draws = []
    recorded = {key: one["killed"] for key, one in _records(options.out)} if options.out else {}
    for name in names:
        module = importlib.import_module(name)
        all_mutants = list(mutants(Path(module.__file__ or "").read_text(encoding="utf-8")))
        tallies[name] = Tally(len(all_mutants))
        survivors = _survivors(options.again, name) if options.again else None
        sample = (
            draw(all_mutants, options.sample, options.seed)
            if survivors is None
            else [one for one in all_mutants if one.key in survivors]
        )
        rest = [one for one in sample if (name, *one.key) not in recorded]
        for one in sample:
            if (name, *one.key) in recorded:
                _count(name, tallies[name], reasons, one, recorded[name, *one.key])
        draws.append(Draw(module, rest, partial(_tell, name, tallies[name], options, reasons)))
    if not options.list and any(one.sample for one in draws):
        with _silence(), TemporaryDirectory() as folder:
            os.environ["MUTATION_FOLDER"] = folder  # read by the processes that tests start
            code = pytest.main([*tests, *QUIET], plugins=[Loop(draws, Path(folder), options.patience)])
        if code != pytest.ExitCode.OK:
            print(f"{', '.join(names)}: not run", file=sys.stderr, flush=True)
    return tallies


def _tell(
    name: str,
    tally: Tally,
    options: argparse.Namespace,
    reasons: dict[Name, str],
    mutant: Mutant,
    is_killed: bool,
    tests: int,
    seconds: float,
) -> None:
    """Count a mutant, print it if it survives, and write its record."""
    reason = _count(name, tally, reasons, mutant, is_killed)
    if not is_killed:
        what = reason or ("survives" if tests else "no test reaches it")
        where = f"{name.removeprefix('attsvm.')}:{mutant.line} {mutant.function}"
        change = f"`{mutant.was}` -> `{mutant.becomes}` in `{mutant.text}`"
        print(f"{where}: {change}: {what}", file=sys.stderr, flush=True)
    if options.out:
        record = {"module": name, "line": mutant.line, "function": mutant.function, "text": mutant.text}
        record |= {"column": mutant.column, "was": mutant.was, "becomes": mutant.becomes, "killed": is_killed}
        record |= {"tests": tests, "seconds": round(seconds, 2), "seed": options.seed}
        with options.out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")


def _count(name: str, tally: Tally, reasons: dict[Name, str], mutant: Mutant, is_killed: bool) -> str:
    """Count a mutant; returns the reason why it changes nothing if it survives, and an empty text otherwise."""
    reason = "" if is_killed else reasons.get((name, *mutant.key), "")
    tally.drawn, tally.killed, tally.same = tally.drawn + 1, tally.killed + is_killed, tally.same + bool(reason)
    return reason


def _records(path: Path) -> list[tuple[Name, dict[str, Any]]]:
    """Read a file of --out, if it exists: the names of mutants and their records."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(tuple(one[part] for part in NAME), one) for one in map(json.loads, lines)]


def _survivors(path: Path, module: str | None = None) -> dict[tuple[str, int, str, str], str]:
    """Keys of the mutants in a file of --out that survived, with their modules."""
    records = (key for key, one in _records(path) if not one["killed"])
    return {key[1:]: key[0] for key in records if module in (None, key[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["attsvm"], help="modules and packages")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds that the tests of a mutant may take")
    parser.add_argument("--out", type=Path, help="a file to which every mutant run adds a line of JSON")
    parser.add_argument("--again", type=Path, help="a file of --out: run what survived in it")
    parser.add_argument("--list", action="store_true", help="count mutants, run nothing")
    options = parser.parse_args()
    for name in ("out", "again"):
        if getattr(options, name):
            setattr(options, name, getattr(options, name).absolute())
    if options.again:
        options.names = sorted(set(_survivors(options.again).values()))
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "tests")]
    paths = [str(ROOT / "tests/mutated"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not options.list:
        _warm_up()
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(module for given in options.names for module in modules_of(given)):
        groups.setdefault(tuple(arguments_of(name)), []).append(name)
    reasons = equivalent()
    print(HEAD, flush=True)
    total = Tally()
    for tests, modules in groups.items():
        for name, tally in run(modules, tests, options, reasons).items():
            total += tally
            print(tally.row(name.removeprefix("attsvm.")), flush=True)
    print(total.row("all"))


if __name__ == "__main__":
    main()
