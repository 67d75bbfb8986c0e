"""Mutation testing: change one operator or constant at a time, and see whether the tests notice.

    python tests/mutation.py [NAME ...] [--sample N] [--seed S] [--out FILE] [--again FILE] [--list]

A name is a module, or a package with all its modules; by default it is attsvm. A mutant (tests/mutants.py) is one
change inside a function, made in a forked child by exchanging the code objects of the functions, so that every
reference sees it; then those tests of the module that call the changed function run in the child, quick ones first,
until the first failure. A mutant that fails a test is killed, and so is one that takes half a minute and twenty times
the tests' time. The tests of a module are listed in TESTS; those of any other module are the quick ones of its package.

A sample is drawn over the functions in proportion to their mutants. Mutants that change nothing are listed with the
reason in tests/equivalent_mutants.toml; they are run like all others and counted apart. With --out every mutant is a
line of JSON as soon as it was run; --again runs those of such a file that survived.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from attsvm_paper.judging.statistics import wilson_interval
from mutants import Mutant, draw, install, mutants

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
THEORY, PROOFS = "attsvm.theory.", "attsvm.proofs."
# The tests that run for a module, quick ones first; the expression leaves out what takes more than a few seconds.
CONSTANTS = ["tests/unit/theory/test_theory_constants.py"]
CONDITIONS = ["tests/unit/theory/test_theory_conditions.py"]
VERDICTS = ["tests/unit/theory/test_theory_verdicts.py"]
COUNTEREXAMPLE = ["tests/unit/theory/test_theory_counterexample.py"]
PROPERTIES = ["tests/property/test_theory_properties.py"]
SLOW = ["-k", "not strict_and_slack and not descent_from_zero and not both_basins and not independence and not mixes"]
EVERYTHING = CONDITIONS + CONSTANTS + COUNTEREXAMPLE + VERDICTS + PROPERTIES + SLOW
EXACT = ["tests/unit/proofs/test_exact.py"]
PROOF = ["tests/unit/proofs/test_proofs.py"]
CLAIMS = [*PROOF, "tests/unit/proofs/test_certified_claims.py"]
QUICK = ["-m", "not slow"]
SEPARABLE = ["tests/unit/solvers/test_separable.py", *QUICK]
FUNCTIONAL = ["tests/unit/nn/test_functional.py", "tests/unit/nn/test_multi_token.py", "-k", "not limit_of"]
TESTS = {
    THEORY + "constants": CONSTANTS + CONDITIONS + SLOW,
    THEORY + "conditions": CONDITIONS + CONSTANTS + COUNTEREXAMPLE + SLOW,
    THEORY + "tokens": ["tests/unit/theory/test_theory_tokens.py", *CONDITIONS, *CONSTANTS, *SLOW],
    THEORY + "verdict": COUNTEREXAMPLE + VERDICTS + CONSTANTS + CONDITIONS + SLOW,
    THEORY + "divergence": VERDICTS + PROPERTIES + SLOW,
    THEORY + "separability": ["tests/unit/theory/test_theory_separability.py"],
    THEORY + "finite_part": ["tests/unit/theory/test_finite_part.py", "tests/unit/theory/test_equivalence.py"],
    THEORY + "equivalence": ["tests/unit/theory/test_equivalence.py"],
    THEORY + "graph": ["tests/reference/test_graph_svm.py"],
    THEORY + "prompt": ["tests/unit/theory/test_prompt_svm.py"],
    "attsvm.core.reduction": ["tests/unit/core/test_reduction.py"],
    "attsvm.core.blocks": ["tests/unit/solvers/test_blocks.py"],
    "attsvm.core.problem": ["tests/unit/core/test_problem.py", "tests/unit/core/test_bad_input_problem.py"],
    "attsvm.core.rounding": ["tests/unit/core/test_rounding.py"],
    "attsvm.solution.solution": ["tests/unit/solution/test_solution.py"],
    "attsvm.solution.solution_set": ["tests/unit/solution/test_solution_set.py"],
    PROOFS + "bounds": ["tests/unit/proofs", "tests/unit/solvers/test_soft_margin.py", *QUICK],
    PROOFS + "certified": ["tests/unit/proofs/test_certified.py"],
    PROOFS + "objective": ["tests/unit/proofs/test_certified.py", *CLAIMS],
    PROOFS + "ties": ["tests/unit/proofs/test_ties.py"],
    PROOFS + "tie_moves": ["tests/unit/proofs/test_ties.py"],
    PROOFS + "surjective": ["tests/unit/proofs/test_ties.py"],
    PROOFS + "decision": ["tests/unit/proofs/test_decision.py"],
    PROOFS + "linear": ["tests/unit/proofs/test_decision.py", *EXACT],
    PROOFS + "certificate": ["tests/unit/proofs/test_certificate.py"],
    PROOFS + "infeasible": ["tests/unit/proofs/test_certificate.py"],
    PROOFS + "claim": CLAIMS,
    PROOFS + "recheck": CLAIMS,
    PROOFS + "prove": CLAIMS,
    PROOFS + "witness": PROOF + EXACT,
    "attsvm.core.norms.square_root": ["tests/unit/core/test_mahalanobis_certificates.py"],
    PROOFS + "dyadic": PROOF + EXACT,
    PROOFS + "proof": PROOF + EXACT,
    **{f"attsvm.functional.{name}": FUNCTIONAL for name in ("softmax", "attention", "cross_entropy")},
    "attsvm.training.risk.gradient": ["tests/unit/training/risk/test_gradient.py"],
    "attsvm.study.verdict": ["tests/unit/study/test_study_verdict.py", *QUICK],
    "attsvm_paper.judging.joint": ["tests/unit/experiments/test_experiment_joint.py", *QUICK],
    "attsvm_pretrained.selection.null": ["tests/unit/pretrained/selection/test_pretrained_null.py", *QUICK],
    **{f"attsvm.solvers.separable.{name}": SEPARABLE for name in ("closed_form", "projection", "splitting")},
}

# Tests of the modules that are not listed above, by package.
UNIT = "tests/unit/"
FOLDERS = {name: [UNIT + name] for name in ("cli", "core", "data", "nn", "platform", "playground")}
FOLDERS["pretrained"] = [UNIT + "package/test_extras.py"]
FOLDERS |= {name: [UNIT + name] for name in ("proofs", "solution", "solvers", "study", "theory", "training")}
FOLDERS |= {
    "plots": ["tests/figures/test_plots_of_results.py"],
    "check": [UNIT + "proofs"],
    "compile": [UNIT + "platform"],
}
FOLDERS |= {"report": [UNIT + "report", UNIT + "study"], "norms": [UNIT + "core"]}
FOLDERS["experiments"] = [UNIT + "package/test_distributions.py"]
# Those of the other distributions, each by the folder of its tests.
DISTRIBUTIONS = {"attsvm_paper": UNIT + "experiments", "attsvm_pretrained": UNIT + "pretrained"}
FOLDERS |= {
    name: [f"{UNIT}study/test_{name}.py"] for name in ("estimator", "margin_classifier", "attention_classifier")
}
FOLDERS["token_scaler"] = FOLDERS["estimator"]
FOLDERS["core"] = [*FOLDERS["core"], UNIT + "solvers/test_solve_options.py", UNIT + "solvers/test_separable.py"]

QUIET = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]


def arguments_of(module: str) -> list[str]:
    """Arguments of pytest that choose the tests of a module."""
    package, name = module.split(".")[:2]
    return TESTS.get(module) or [*([DISTRIBUTIONS[package]] if package in DISTRIBUTIONS else FOLDERS[name]), *QUICK]


def modules_of(name: str) -> list[str]:
    """The module of this name, or the modules of a package that have tests of their own or by their package."""
    module = importlib.import_module(name)
    names = [one.name for one in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}.") if not one.ispkg]
    return names or [name]


class Calls:
    """A pytest plugin that notes which functions of some modules every test calls, and how long the test takes."""

    def __init__(self, files: set[str]) -> None:
        self.files = files
        self.of: dict[str, tuple[float, dict[str, list[int]]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        lines: dict[str, set[int]] = {}

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename in self.files:
                lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_code.co_firstlineno)

        start = time.process_time()
        sys.setprofile(note)
        yield
        sys.setprofile(None)
        self.of[item.nodeid] = (time.process_time() - start, {file: sorted(of) for file, of in lines.items()})


@dataclass(frozen=True)
class Draw:
    """The mutants of a module to run, and who hears of each."""

    module: ModuleType
    sample: list[Mutant]
    tell: Callable[[Mutant, bool, int, float], None]

    @property
    def file(self) -> str:
        return self.module.__file__ or ""


class Loop:
    """A pytest plugin that runs, instead of the tests collected once, those of every mutant in a child of its own."""

    def __init__(self, draws: list[Draw]) -> None:
        self.draws = draws

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        of = _in_child(lambda: self._calls(session), 600 * len(self.draws))
        if not isinstance(of, dict):
            raise pytest.UsageError(f"without a mutation {of or 'a test'} fails or takes too long")
        for one in self.draws:
            for mutant in one.sample:
                callers = sorted(
                    (seconds, test) for test, (seconds, lines) in of.items() if mutant.first in lines.get(one.file, ())
                )
                limit = 30 + 20 * sum(seconds for seconds, _ in callers)
                start = time.monotonic()
                work = partial(self._notices, one.module, mutant, [items[test] for _, test in callers])
                # Too long, or a child that dies, is killed as well.
                is_killed = bool(callers) and _in_child(work, limit) is not False
                one.tell(mutant, is_killed, len(callers), time.monotonic() - start)
        return True

    def _calls(self, session: pytest.Session) -> dict[str, tuple[float, dict[str, list[int]]]] | str:
        """What every test calls, or the first test that fails."""
        plugin = Calls({one.file for one in self.draws})
        session.config.pluginmanager.register(plugin)
        return next((item.nodeid for item in session.items if _fails(item)), plugin.of)

    def _notices(self, module: ModuleType, mutant: Mutant, items: list[pytest.Item]) -> bool:
        return install(mutant, module) and any(_fails(item) for item in items)


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
        os.kill(child, signal.SIGKILL)
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


def equivalent() -> dict[tuple[str, str, int, str, str], str]:
    """Reasons of the mutants that change nothing, by module and :attr:`Mutant.key`."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    names = ("module", "text", "column", "was", "becomes")
    return {tuple(one[name] for name in names): one["reason"] for one in listed}


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
    reasons: dict[tuple[str, str, int, str, str], str],
) -> dict[str, Tally]:
    """Draw mutants of modules that share their tests, run these, and print the survivors."""
    tallies: dict[str, Tally] = {}
    draws = []
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
        draws.append(Draw(module, sample, partial(_tell, name, tallies[name], options, reasons)))
    if not options.list:
        with _silence():
            code = pytest.main([*tests, *QUIET], plugins=[Loop(draws)])
        if code != pytest.ExitCode.OK:
            print(f"{', '.join(names)}: not run", file=sys.stderr, flush=True)
    return tallies


def _tell(
    name: str,
    tally: Tally,
    options: argparse.Namespace,
    reasons: dict[tuple[str, str, int, str, str], str],
    mutant: Mutant,
    is_killed: bool,
    tests: int,
    seconds: float,
) -> None:
    """Count a mutant, print it if it survives, and write its record."""
    reason = "" if is_killed else reasons.get((name, *mutant.key), "")
    tally.drawn, tally.killed, tally.same = tally.drawn + 1, tally.killed + is_killed, tally.same + bool(reason)
    if not is_killed:
        what = reason or ("survives" if tests else "no test calls it")
        where = f"{name.removeprefix('attsvm.')}:{mutant.line} {mutant.function}"
        change = f"`{mutant.was}` -> `{mutant.becomes}` in `{mutant.text}`"
        print(f"{where}: {change}: {what}", file=sys.stderr, flush=True)
    if options.out:
        record = {"module": name, "line": mutant.line, "function": mutant.function, "text": mutant.text}
        record |= {"column": mutant.column, "was": mutant.was, "becomes": mutant.becomes, "killed": is_killed}
        record |= {"tests": tests, "seconds": round(seconds, 2), "seed": options.seed}
        with options.out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")


def _survivors(path: Path, module: str | None = None) -> dict[tuple[str, int, str, str], str]:
    """Keys of the mutants in a file of --out that survived, with their modules."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        (one["text"], one["column"], one["was"], one["becomes"]): one["module"]
        for one in records
        if not one["killed"] and module in (None, one["module"])
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["attsvm"], help="modules and packages")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
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
