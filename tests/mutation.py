"""Mutation testing: change one operator or constant at a time, and see whether the tests notice.

    python tests/mutation.py [MODULE ...] [--sample N] [--seed S] [--list]

A mutant is one change inside a function: a comparison, an arithmetic or boolean operator, a number, True and False, a
condition negated, min for max, any for all. What a `raise` says, annotations, docstrings, decorators and `strict=` stay
as they are. A mutant is made in a forked child by exchanging the code objects of the functions, so that every reference
sees it; then those tests of the module that call the changed function run in the child, quick ones first, until the
first failure. A mutant that fails a test is killed, and so is one that takes a minute and twenty times the tests' time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import inspect
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
THEORY = "attsvm.theory."
# The tests that run for a module, quick ones first; the expression leaves out what takes more than a few seconds.
CONSTANTS = ["tests/unit/test_theory_constants.py"]
CONDITIONS = ["tests/unit/test_theory_conditions.py"]
VERDICTS = ["tests/unit/test_theory_verdicts.py"]
COUNTEREXAMPLE = ["tests/unit/test_theory_counterexample.py"]
PROPERTIES = ["tests/property/test_theory_properties.py"]
SLOW = ["-k", "not strict_and_slack and not descent_from_zero and not both_basins and not independence and not mixes"]
EVERYTHING = CONDITIONS + CONSTANTS + COUNTEREXAMPLE + VERDICTS + PROPERTIES + SLOW
TESTS = {
    THEORY + "constants": CONSTANTS + CONDITIONS + SLOW,
    THEORY + "conditions": CONDITIONS + CONSTANTS + COUNTEREXAMPLE + SLOW,
    THEORY + "tokens": CONDITIONS + CONSTANTS + COUNTEREXAMPLE + SLOW,
    THEORY + "verdict": COUNTEREXAMPLE + VERDICTS + CONSTANTS + CONDITIONS + SLOW,
    THEORY + "divergence": VERDICTS + PROPERTIES + SLOW,
    THEORY + "separability": ["tests/unit/test_theory_separability.py"],
    THEORY + "finite_part": ["tests/unit/test_equivalence.py"],
    THEORY + "equivalence": ["tests/unit/test_equivalence.py"],
    THEORY + "graph": ["tests/reference/test_graph_svm.py"],
    THEORY + "prompt": ["tests/unit/test_prompt_svm.py"],
    "attsvm.functional": ["tests/unit/test_functional.py", "tests/unit/test_multi_token.py", "-k", "not limit_of"],
    "attsvm.training.gradient": ["tests/unit/test_gradient.py"],
}

QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "zeros": "ones", "amin": "amax"}
NAMES |= {other: name for name, other in NAMES.items()}
UNTOUCHED = (ast.Raise, ast.arguments, ast.AnnAssign)
SKIPPED = ("decorator_list", "returns")


def _constants(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float) and value:
        return [value * 10, value / 10]
    return [1.0] if isinstance(value, float) else []


def _changes(node: ast.AST) -> list[ast.AST]:
    """Every node that may stand in the place of `node`."""
    found: list[ast.AST] = []

    def changed(**fields: Any) -> None:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        found.append(other)

    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in COMPARISONS.get(type(op), ()):
                changed(ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        changed(op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        changed(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        found.append(node.operand)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        changed(test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant):
        for value in _constants(node.value):
            changed(value=value)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        changed(id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        changed(attr=NAMES[node.attr])
    return found


@dataclass(frozen=True, eq=False)
class Mutant:
    """A changed module, what was changed, and the first line of the function it was changed in."""

    line: int
    first: int
    was: str
    becomes: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(source)

    def visit(node: ast.AST, inside: int) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            for at, child in enumerate(value if isinstance(value, list) else [value]):
                if (
                    not isinstance(child, ast.AST)
                    or isinstance(child, UNTOUCHED)
                    or name in ("decorator_list", "returns")
                ):
                    continue
                if isinstance(child, ast.keyword) and child.arg == "strict":
                    continue
                within = inside
                if isinstance(child, ast.FunctionDef | ast.Lambda):
                    decorators = getattr(child, "decorator_list", [])
                    within = min([child.lineno, *(one.lineno for one in decorators)])
                for other in _changes(child) if inside else ():
                    ast.copy_location(other, child)
                    before = ast.unparse(child).split("\n")[0]
                    _put(node, name, at, other)
                    new = ast.fix_missing_locations(copy.deepcopy(tree))
                    _put(node, name, at, child)
                    yield Mutant(getattr(child, "lineno", 0), inside, before, ast.unparse(other).split("\n")[0], new)
                yield from visit(child, within)

    yield from visit(tree, 0)


def _put(node: ast.AST, name: str, at: int, child: ast.AST) -> None:
    value = getattr(node, name)
    if isinstance(value, list):
        value[at] = child
    else:
        setattr(node, name, child)


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{prefix}{constant.co_name}"
            yield name, constant
            yield from _codes(constant, f"{name}.")


def _functions(owner: Any, module: ModuleType, prefix: str = "") -> Iterator[tuple[str, FunctionType]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _functions(value, module, f"{prefix}{name}.")
            continue
        for inner in (
            value,
            getattr(value, "fget", None),
            getattr(value, "func", None),
            getattr(value, "__func__", None),
        ):
            inner = inspect.unwrap(inner) if callable(inner) else inner
            if isinstance(inner, FunctionType) and inner.__module__ == module.__name__:
                yield f"{prefix}{inner.__name__}", inner


def install(mutant: Mutant, module: ModuleType) -> None:
    """Exchange the code of every function of the module for the mutant's."""
    codes = dict(_codes(compile(mutant.tree, module.__file__ or "", "exec", dont_inherit=True)))
    for name, function in _functions(module, module):
        if name in codes and len(codes[name].co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = codes[name]


class Calls:
    """A pytest plugin that notes which functions of a module every test calls, and how long the test takes."""

    def __init__(self, module: ModuleType) -> None:
        self.file = module.__file__
        self.of: dict[str, tuple[float, list[int]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        lines: set[int] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename == self.file:
                lines.add(frame.f_code.co_firstlineno)

        start = time.process_time()
        sys.setprofile(note)
        yield
        sys.setprofile(None)
        self.of[item.nodeid] = (time.process_time() - start, sorted(lines))


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
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read() if select.select([reading], [], [], seconds)[0] else ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def calls(tests: list[str], module: ModuleType) -> dict[str, tuple[float, list[int]]]:
    """Run the tests of an unchanged module: time and functions called, by their first lines, for every test."""

    def work() -> Any:
        plugin = Calls(module)
        return plugin.of if pytest.main([*tests, "-x", *QUIET], plugins=[plugin]) == 0 else None

    found = _in_child(work, 600)
    if found is None:
        raise SystemExit(f"the tests of {module.__name__} fail without a mutation")
    return found


def is_killed(tests: list[str], mutant: Mutant, module: ModuleType, seconds: float) -> bool:
    """Run tests against a mutant. Too long, or a child that dies, is killed as well."""

    def work() -> int:
        install(mutant, module)
        return int(pytest.main([*tests, "-x", *QUIET]))

    return _in_child(work, seconds) != 0


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
    """Send what pytest prints about a collection nowhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS), help="all by default")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module, drawn at random; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="count mutants, run nothing")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "tests")]
    _warm_up()
    print("| module | mutants | run | killed | score |\n|---|---:|---:|---:|---:|", flush=True)
    survivors, totals = [], [0, 0, 0]
    for name in options.modules:
        module = importlib.import_module(name)
        made = list(mutants(Path(module.__file__ or "").read_text(encoding="utf-8")))
        drawn = made
        if 0 < options.sample < len(made):
            drawn = sorted(random.Random(options.seed).sample(made, options.sample), key=lambda one: one.line)
        if options.list:
            print(f"| {name} | {len(made)} | | | |")
            continue
        # Children then find the test modules imported.
        with _silence():
            pytest.main([*TESTS[name], "--collect-only", *QUIET])
        of = calls(TESTS[name], module)
        killed = 0
        for mutant in drawn:
            chosen = sorted((seconds, test) for test, (seconds, lines) in of.items() if mutant.first in lines)
            limit = 60 + 20 * sum(seconds for seconds, _ in chosen)
            if chosen and is_killed([test for _, test in chosen], mutant, module, limit):
                killed += 1
            else:
                survivors.append(f"{name}:{mutant.line}: `{mutant.was}` -> `{mutant.becomes}`")
                print(survivors[-1], file=sys.stderr, flush=True)
        totals = [a + b for a, b in zip(totals, (len(made), len(drawn), killed), strict=True)]
        print(f"| {name} | {len(made)} | {len(drawn)} | {killed} | {100 * killed / len(drawn):.0f} % |", flush=True)
    if totals[1]:
        print(f"| all | {totals[0]} | {totals[1]} | {totals[2]} | {100 * totals[2] / totals[1]:.0f} % |")
        print("\nSurvivors:\n" + "\n".join(f"* {one}" for one in survivors))


if __name__ == "__main__":
    main()
