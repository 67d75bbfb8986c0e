"""Reproductions, studies and benchmarks run machine code, whatever is in the cache when they begin."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attsvm
from attsvm.cli import main
from attsvm.data.digits import digits
from attsvm.platform import kernels
from attsvm.study import Settings, study
from attsvm_paper import registry
from attsvm_paper.engine.compute import compute, cut, task_of

# One cell that solves some tens of small problems.
COMMAND = ["reproduce", "query-temperature"]
CELL = {"setting": "budget", "norm": "frobenius", "angle": "0.1", "n": "6", "T": "8", "trials": "3"}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _reproduced(folder: Path, cache: Path) -> tuple[bytes, Any]:
    """Rows and verdicts of a run, without its command and its times."""
    settings = [word for name, value in CELL.items() for word in ("--set", f"{name}={value}")]
    subprocess.run(
        [sys.executable, "-c", "import sys; from attsvm.cli import main; sys.exit(main())", *COMMAND, *settings,
         "--out", str(folder)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, capture_output=True, timeout=1500, check=True,
    )  # fmt: skip
    verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return (folder / COMMAND[1] / "rows.parquet").read_bytes(), _without_times(verdicts)


def _without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_times(one) for one in value]
    if isinstance(value, dict):
        times = ("command", "seconds", "started", "finished", "date")
        return {name: _without_times(one) for name, one in value.items() if name not in times}
    return value


@pytest.mark.slow
def test_a_reproduction_is_the_same_with_an_empty_and_a_full_cache(tmp_path: Path) -> None:
    first = _reproduced(tmp_path / "empty", tmp_path / "cache")
    kept = sorted((tmp_path / "cache").rglob("*.nbc"))
    assert kept
    second = _reproduced(tmp_path / "full", tmp_path / "cache")
    assert sorted((tmp_path / "cache").rglob("*.nbc")) == kept  # nothing was left to compile
    assert first == second


def test_experiments_and_studies_compile_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def trials(config: Any, seeds: Any) -> list[dict[str, Any]]:
        seen.append(kernels._MOMENT.depth > 0)
        return [{"seed": int(seed)} for seed in seeds]

    experiment = registry.get(COMMAND[1])
    task = task_of(experiment, 0, cut([experiment.sweep("quick")[0]], experiment.batch))
    compute(type(task)(task.experiment, trials, task.instance, task.seed, task.batches), 0.0)
    monkeypatch.setattr("attsvm.study.run._fill", lambda result, watch: seen.append(kernels._MOMENT.depth > 0))
    monkeypatch.setattr("attsvm.study.run.accuracies", lambda result: seen.append(kernels._MOMENT.depth > 0))
    study(digits(), Settings(train=10, steps=10, shuffles=1))
    assert seen == [True, True, True]
    assert kernels._MOMENT.depth == 0


def test_inspections_compile_first(monkeypatch: pytest.MonkeyPatch) -> None:
    inspection = pytest.importorskip("attsvm_pretrained.inspection.inspection")

    class Seen(Exception):
        pass

    def inputs(*_: Any) -> None:
        assert kernels._MOMENT.depth > 0
        raise Seen

    monkeypatch.setattr(inspection, "Inputs", inputs)
    with pytest.raises(Seen):
        inspection.inspect_model(None, None, [])
    assert kernels._MOMENT.depth == 0


@pytest.mark.slow
def test_a_comparison_calls_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that there is nothing to compile."""
    monkeypatch.setattr("attsvm.report.study.pictures", lambda study: {})  # a comparison draws its own
    for name in ("one", "two"):
        data = ["study", "digits", "--train", "10", "--steps", "10", "--max-steps", "10", "--shuffles", "1"]
        assert main([*data, "--seed", str(len(name)), "--out", str(tmp_path / name)]) == 0
    monkeypatch.setattr(kernels, "at_hand", lambda function: pytest.fail("a kernel is called"))
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "both")]) == 0


def test_benchmarks_compile_first() -> None:
    """Those that time small solves, each in the processes that it times them in."""
    for name in ("solvers", "soft_margin", "mid_size", "multiclass", "undecided"):
        tree = ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert {"ATTSVM_COMPILE", "first"} <= words, name


def test_what_callers_give_is_what_is_declared() -> None:
    """Other types would be compiled once more, by whoever comes first with them."""
    random = np.random.default_rng(0)
    tokens, queries = random.normal(size=(3, 4, 6)), random.normal(size=(3, 6))
    problem = attsvm.SelectionProblem(tokens, queries, [0, 1, 2])
    with kernels.compiled_first():
        for method in (None, "active_set", "coordinate_newton", "streamed"):
            assert attsvm.solve(problem, method=method).status.name == "OPTIMAL"  # type: ignore[arg-type]
        single = attsvm.SelectionProblem(tokens.astype(np.float32), queries, [0, 1, 2])
        assert attsvm.solve(single, method="streamed").status.name == "OPTIMAL"
        assert attsvm.solve(problem, "nuclear", method="first_order").status.name == "OPTIMAL"
        for norm in ("frobenius", "nuclear"):
            assert attsvm.solve_batch([problem] * 2, norm).status[0].name == "OPTIMAL"
        contradictory = attsvm.SelectionProblem(random.normal(size=(30, 10, 2)), random.normal(size=(30, 2)), [0] * 30)
        assert attsvm.solve_batch([contradictory] * 2).status[0].name == "INFEASIBLE"
        data = attsvm.TokenData(tokens, queries, [1, -1, 1])
        for parameterization in ("W", "KQ"):
            attsvm.train(data, np.ones(6), steps=2, parameterization=parameterization)
    checked = set()
    for function, declaration in kernels.KERNELS.items():
        if declaration.signatures:
            assert set(function.overloads) <= set(declaration.signatures), function.py_func.__name__
            if function.overloads:
                checked.add(function.py_func.__name__)
    needed = {
        "solve_each",
        "solve_one",
        "prove_stack",
        "sweeps",
        "hold",
        "exchange",
        "begin",
        "advance",
        "read",
        "move",
    }
    assert needed | {"_margins", "advance_W", "advance_KQ"} <= checked
