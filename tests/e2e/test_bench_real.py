"""The suite of real instances: it can be built, its rows run, and its statements are of the same problems."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import attsvm.cli.bench
from attsvm import SelectionProblem, solve
from attsvm.cli import main
from attsvm.core.types import AnyNorm
from attsvm.proofs.objective import HARD_MARGIN, Regularisation

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
LATER = dict.fromkeys(NAMES, "1") | {"ATTSVM_COMPILE": "later"}  # machine code would take minutes
BUILD = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import real_instances
embed = real_instances.embed
def embed_few(texts):
    # Reading hundreds of texts would take most of the time: the model reads the first ones, the others are random.
    vectors = np.random.default_rng(0).standard_normal((len(texts), 384))
    vectors[:2] = embed(texts[:2])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
real_instances.embed = embed_few
built = set()
for one in real_instances.SUITE:
    of_model = "MiniLM" in one.name or "vocabulary" in one.name
    entry = {"label": one.label, "name": one.name, "held_out": one.held_out, "of_model": of_model}
    if one.name not in built and not (of_model and sys.argv[2] == "without model"):
        built.add(one.name)
        problem = one.make()
        entry |= {"shape": problem.shape, "rejected": int(problem.rejected.sum())}
    print(json.dumps(entry))
"""


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | LATER, check=False)


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    """The instances, each with its shape if it was built; those of the model are built where transformers is."""
    which = "all" if find_spec("transformers") else "without model"
    process = python("-c", BUILD, FOLDER, which)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.slow
def test_every_instance_can_be_built_and_a_third_is_held_out(entries: list[dict[str, Any]]) -> None:
    assert len({entry["label"] for entry in entries}) == len(entries)
    held_out = [entry for entry in entries if entry["held_out"]]
    assert 3 * len(held_out) >= len(entries)
    assert not {entry["name"] for entry in held_out} & {entry["name"] for entry in entries if not entry["held_out"]}
    sizes = {entry["name"]: entry["shape"] for entry in entries if "shape" in entry and not entry["of_model"]}
    assert len(sizes) > 20
    assert all(entry["rejected"] > 0 for entry in entries if entry["name"] in sizes and "shape" in entry)
    # The two parts of a data set are all of it: 1,797 digits and 178 wines.
    assert sizes["digits"][0] + sizes["digits, other third"][0] == 1797
    assert sizes["wine"][0] + sizes["wine, other third"][0] == 178


@pytest.mark.slow
def test_every_instance_of_the_model_can_be_built(entries: list[dict[str, Any]]) -> None:
    pytest.importorskip("transformers")
    sizes = {entry["name"]: entry["shape"] for entry in entries if "shape" in entry and entry["of_model"]}
    assert len(sizes) > 10
    assert sizes["vocabulary row 7000"] == [1, 30522, 384, 1]
    assert sizes["MiniLM head 4.7, T = 256"] == [256, 256, 384, 385]


@pytest.mark.slow
def test_a_row_runs_and_becomes_a_table(tmp_path: Path) -> None:
    out = tmp_path / "real.md"
    process = python(FOLDER / "real.py", "--only", "wine, other third, frobenius", "--out", out)
    assert (process.returncode, process.stderr) == (0, "")
    (row,) = [line for line in out.read_text(encoding="utf-8").splitlines() if line.startswith("| wine, other third |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:5] == ["frobenius", "hinge, C = 1", "59, 3, 3, 14", "118"]
    seconds, gap = cells[5].rstrip(")").split(" (")
    assert float(seconds) > 0
    assert float(gap) <= 1e-6
    peers = [entry.split()[0] for entry in cells[8].split(", ")]
    assert peers == ["CLARABEL", "OSQP", "PIQP", "SCS", "LIBLINEAR"]
    assert "failed" not in cells[8]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Import the benchmarks' modules, and forget them afterwards."""
    pytest.importorskip("scs")
    monkeypatch.syspath_prepend(str(FOLDER))
    for name, value in LATER.items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    names = ("peers_sparse", "real_instances", "real")
    for path in FOLDER.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return {name: importlib.import_module(name) for name in names}


def few_words(rng: np.random.Generator) -> SelectionProblem:
    """More dimensions than tokens and queries, so that both are written in bases."""
    return SelectionProblem(
        rng.standard_normal((1, 6, 9)), rng.standard_normal((5, 8)), [0, 1, 2, 3, 4], sequence=[0] * 5
    )


def tied_words(rng: np.random.Generator) -> SelectionProblem:
    return SelectionProblem.from_contexts(np.eye(6), rng.random((6, 9)).argsort(axis=1) < 2)


def many_documents(rng: np.random.Generator) -> SelectionProblem:
    """Few queries and many dense tokens, so that the products with the queries become variables."""
    return SelectionProblem.from_preferences(
        rng.standard_normal((60, 5)), rng.standard_normal((3, 5)), np.eye(3, 60) > 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("C", [None, 0.7])
@pytest.mark.parametrize("make", [few_words, tied_words, many_documents])
def test_a_statement_is_of_the_same_problem(make: Any, C: float | None, modules: dict[str, ModuleType]) -> None:
    sparse = modules["peers_sparse"]
    problem = make(np.random.default_rng(4))
    regularisation = HARD_MARGIN if C is None else Regularisation(C, "squared_hinge", None)
    feasible = C is not None or make is not many_documents
    pairs: tuple[tuple[AnyNorm, str], ...] = (("frobenius", "PIQP"), ("frobenius", "CLARABEL"), ("nuclear", "CLARABEL"))
    for norm, solver in pairs:
        peer = sparse.Statement(sparse.Task(problem, norm, regularisation), solver)
        _, gap = sparse.first_accurate(peer)
        if not feasible:
            assert peer.says_infeasible == (solve(problem, norm).status.name == "INFEASIBLE")
            continue
        # The gap is certified from its W and multipliers in the coordinates of the problem.
        assert gap <= sparse.TOL
        ours = solve(problem, norm, C=C, loss="squared_hinge")
        assert peer.answer().value == pytest.approx(ours.certified.value, rel=2e-6)


@pytest.mark.slow
def test_few_constraints_are_stated_by_the_dual(modules: dict[str, ModuleType]) -> None:
    sparse = modules["peers_sparse"]
    rng = np.random.default_rng(0)
    problem = SelectionProblem(rng.standard_normal((3, 4, 8)), rng.standard_normal((3, 8)), [0, 1, 2])
    for C, loss in ((None, "hinge"), (0.01, "hinge"), (0.01, "squared_hinge")):
        regularisation = HARD_MARGIN if C is None else Regularisation(C, loss, None)
        peer = sparse.Statement(sparse.Task(problem, "frobenius", regularisation), "OSQP")
        assert peer.by_dual
        assert sparse.first_accurate(peer)[1] <= sparse.TOL


def test_ratios_follow_from_the_runs(modules: dict[str, ModuleType]) -> None:
    real = modules["real"]
    (instance, *_) = real.SUITE
    Run, Row = real.Run, real.Row

    def row(ours: Any, **peers: Any) -> Any:
        return Row(instance, (1, 2, 3, 4), 5, ours, peers)

    solved = Run("solved", 2.0, 1e-7)
    # A peer that is not accurate, or calls infeasible what is solved, is not the best.
    ahead = row(solved, OSQP=Run("solved", 0.1, 1e-5), SCS=Run("infeasible", 0.1), PIQP=Run("solved", 4.0, 1e-7))
    assert (ahead.best[0], ahead.ratio, ahead.ratio_text) == ("PIQP", 0.5, "0.5")
    bounded = row(solved, OSQP=Run("limit", 8.0), SCS=Run("too large"))
    assert (bounded.ratio, bounded.ratio_text) == (0.25, "< 0.25")
    undecided = row(Run("limit", 10.0), OSQP=Run("solved", 1.0, 1e-7))
    assert (undecided.ratio, undecided.ratio_text) == (np.inf, "undecided")
    open_to_all = row(Run("limit", 10.0), OSQP=Run("limit", 10.0))
    assert np.isnan(open_to_all.ratio)
    again = real.Row.read(instance, json.loads(ahead.line()))
    assert again == ahead
    line = real.summary([ahead, bounded, undecided, open_to_all], "all")
    assert line.startswith("| all | 4 | 2 | 1 | 0.5 | undecided (digits, frobenius, hard)")


def test_bench_starts_the_real_suite(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src" / "attsvm").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "real.py").write_text("import sys; sys.exit(5 if sys.argv[1:] == ['--quick'] else 6)\n")
    monkeypatch.setattr(attsvm.cli.bench, "__file__", "/a/b/c/d/e")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--real", "--quick"]) == 5
    assert main(["bench", "--real"]) == 6
    assert main(["bench", "--real", "--large"]) == 2
    assert "--real and --large exclude each other" in capsys.readouterr().err
