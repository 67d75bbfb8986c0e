"""The page computes what Python computes: random states, solved and trained by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.playground.frontend import PAGE, presets
from attsvm.theory import Trial
from attsvm.theory.tokens import compare_with_neighbours

STATES = 500
NORMS: tuple[Any, ...] = ("frobenius", "nuclear", "spectral", "max", 1, 3)
# Rules with a compiled loop train in milliseconds; the others get few states.
FAST, OTHERS = (
    ("normalized_gd", "gd", "sign", "mirror"),
    ("momentum", "polyak", "adam", "signum", "lion", "muon", "spectral"),
)
# Training that oscillates amplifies rounding: states are compared before it reaches 1e-9. With momentum, Polyak's step,
# and joint normalisation of K and Q that is early.
MOST_STEPS, FEW_STEPS = 100, 12
ATTENTION = 0.99


def random_state(index: int) -> dict[str, Any]:
    rng = np.random.default_rng(index)
    n, T, dz = int(rng.integers(1, 4)), int(rng.integers(2, 9)), int(rng.integers(1, 4))
    optimizer = FAST[index % 4] if index % 10 else OTHERS[index // 10 % 7]
    steps = int(rng.integers(1, FEW_STEPS if index % 10 == 0 else MOST_STEPS))
    keep: Any = ("trained", "trained", "best", rng.integers(0, T, n).tolist())[int(rng.integers(4))]
    return presets()["turn"]["state"] | {
        "tokens": rng.normal(size=(n, T, 2)).round(3).tolist(),
        "queries": rng.normal(size=(n, dz)).round(3).tolist(),
        "labels": rng.choice([-1, 1], n).tolist(),
        "v": rng.normal(size=2).round(3).tolist(),
        "optimizer": optimizer,
        "norm": NORMS[index % 6] if index % 2 else "frobenius",
        "steps": steps + 1,
        "step": steps,
        "keep": keep,
        "start": None if index % 3 else rng.normal(size=2).round(3).tolist(),
    }  # fmt: skip


def reference(state: dict[str, Any]) -> dict[str, Any]:
    """What the public functions of attsvm make of a state."""
    tokens, queries, labels, v = (np.array(state[name], dtype=float) for name in ("tokens", "queries", "labels", "v"))
    data = TokenData(tokens, queries, labels)
    trial = Trial.of(data, v)
    start = None if state["start"] is None else np.outer(state["start"], queries[0] / (queries[0] @ queries[0]))
    trace = train(data, v, optimizer=state["optimizer"], steps=state["step"], init=start)
    W = np.asarray(trace.W[-1])
    keep = state["keep"]
    kept = np.asarray(trace.selected) if keep == "trained" else trial.optimal if keep == "best" else np.array(keep)
    solution = solve(trial.problem(kept), state["norm"])
    return {"trained": W, "kept": kept, "solution": solution, "word": word_of(trial, trace, solution, kept)}


def word_of(trial: Trial, trace: Any, solution: Any, kept: np.ndarray) -> str:
    attention = np.asarray(trace.attention)[-1]
    if solution.status.name == "INFEASIBLE":
        return "Infeasible"
    if attention.max(axis=1).min() < ATTENTION:
        return "Under way"
    if (attention.argmax(axis=1) != kept).any():
        return "Elsewhere"
    if (kept == trial.optimal).all():
        return "Globally optimal"
    return "Locally optimal" if compare_with_neighbours(trial, solution).holds else "Not locally optimal"


@pytest.fixture(scope="module")
def compute(browser):
    """Compute pictures of states in the page."""
    tab = browser.new_page()
    tab.goto(PAGE.as_uri())
    expression = "states => states.map((state) => numbersOf(pictureOf(state, trainings())))"
    yield lambda states: tab.evaluate(expression, states)
    tab.close()


@pytest.mark.slow
def test_the_page_computes_what_python_computes(compute) -> None:
    states = [random_state(index) for index in range(STATES)]
    words: dict[str, int] = {}
    for state, picture in zip(states, compute(states), strict=True):
        run, expected = picture["runs"]["W"], reference(state)
        solution = expected["solution"]
        size = np.abs(expected["trained"]).max()
        np.testing.assert_allclose(run["trained"], expected["trained"], rtol=0, atol=1e-9 * max(size, 1e-300))
        assert run["kept"] == expected["kept"].tolist()
        assert (run["status"], picture["verdict"]["word"]) == (solution.status.name, expected["word"]), state
        words[expected["word"]] = words.get(expected["word"], 0) + 1
        if run["status"] == "INFEASIBLE":
            continue
        # Each objective is above the smallest one by at most its own gap.
        assert run["gap"] <= 1e-9
        assert run["objective"] == pytest.approx(solution.objective, rel=1e-9)
        if state["norm"] == "frobenius":  # other norms may have several solutions
            np.testing.assert_allclose(run["W"], solution.W, rtol=0, atol=1e-9 * solution.objective)
            np.testing.assert_allclose(run["margins"], solution.margins, rtol=1e-9, atol=1e-9)
            assert run["support"] == np.asarray(solution.support).tolist()
    assert min(words.get(word, 0) for word in ("Infeasible", "Under way", "Globally optimal")) >= 10, words


@pytest.mark.slow
def test_factors_and_their_nuclear_svm_are_those_of_python(compute) -> None:
    states = [
        random_state(index) | {"start": None, "optimizer": ("normalized_gd", "gd")[index % 2], "keep": "trained"}
        | ({"steps": FEW_STEPS, "step": FEW_STEPS} if index % 2 == 0 else {})
        for index in range(60)
    ]  # fmt: skip
    for state, picture in zip(states, compute(states), strict=True):
        run = picture["runs"]["KQ"]
        data = TokenData(*(np.array(state[name], dtype=float) for name in ("tokens", "queries", "labels")))
        trace = train(
            data, np.array(state["v"]), parameterization="KQ", optimizer=state["optimizer"], steps=state["step"]
        )
        W = np.asarray(trace.W[-1])
        np.testing.assert_allclose(run["trained"], W, rtol=0, atol=1e-9 * np.abs(W).max())
        solution = solve(SelectionProblem(data.tokens, data.queries, np.asarray(trace.selected)), "nuclear")
        assert (run["kept"], run["status"]) == (np.asarray(trace.selected).tolist(), solution.status.name)
        if run["status"] == "OPTIMAL":
            assert run["objective"] == pytest.approx(solution.objective, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", presets())
def test_the_script_prints_the_numbers_of_the_page(name: str, browser, capsys: pytest.CaptureFixture[str]) -> None:
    state = presets()[name]["state"] | {"step": 300 if name == "float32" else 12}
    tab = browser.new_page()
    tab.goto(Path(PAGE).as_uri())
    script, picture = tab.evaluate("state => [scriptOf(state), numbersOf(pictureOf(state, trainings()))]", state)
    tab.close()
    exec(script, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line[1:] for line in lines if line[0] == "SVM"]
    runs = (
        picture["races"]
        if name == "classes"
        else [picture["runs"][key] for key in ("W", "KQ") if key in picture["runs"]]
    )
    assert len(rows) == len(runs)
    for run, (status, *numbers) in zip(runs, rows, strict=True):
        assert run["status"] == status
        if run["objective"] is not None:
            assert run["objective"] == pytest.approx(float(numbers[1]), rel=1e-9)
    # In single precision the page rounds in another order than torch.
    tolerance = 0.05 if name == "float32" else 1e-8
    correlations = [float(line[1]) for line in lines if line[0] == "correlation"]
    assert [run["correlation"] for run in runs if run["objective"] is not None] == pytest.approx(
        correlations, abs=tolerance
    )
    if name != "classes":
        losses = [float(line[1]) for line in lines if line[0] == "loss"]
        assert [run["loss"] for run in runs] == pytest.approx(losses, rel=1e-4 if name == "float32" else 1e-9)
