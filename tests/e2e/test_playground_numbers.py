"""The page computes what Python computes: random states, solved and trained by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.playground.frontend import INDEX_PAGE, presets
from attsvm.theory import Trial
from attsvm.theory.margin_report import TOL
from attsvm.theory.tokens import compare_with_neighbours

STATES = 500
NORMS: tuple[Any, ...] = ("frobenius", "nuclear", "spectral", "max", 1, 3)
# Rules with a compiled loop train in milliseconds; the others get few states and steps.
FAST, OTHERS = (
    ("normalized_gd", "gd", "sign", "mirror"),
    ("momentum", "polyak", "adam", "signum", "lion", "muon", "spectral"),
)
MOST_STEPS, FEW_STEPS = 2000, 100
AGREEMENT = 1e-9
# Some trainings are chaotic: where steps overshoot, or an entry of mirror descent changes sign, each step multiplies
# the roundings before it. In twelve such states page and Python were equally far off a training in 60 digits, within a
# factor of six. Python alone tells how far training determines W: data are changed by 2048 roundings. Either program
# rounds about 100 times per step (an estimate), and a random change of 59 numbers has 1/8 of its length along the
# direction that grows most: 2 * 100 * 8 = 1600. With 128 roundings one state was off by 1.2e-9.
CHANGE = 2048 * 2.0**-53
CHANGED = 3
ATTENTION = 0.99


def random_state(index: int) -> dict[str, Any]:
    rng = np.random.default_rng(index)
    n, T, dz = int(rng.integers(1, 4)), int(rng.integers(2, 9)), int(rng.integers(1, 4))
    optimizer = FAST[index % 4] if index % 10 else OTHERS[index // 10 % 7]
    step = int(rng.integers(1, MOST_STEPS if index % 10 else FEW_STEPS))
    keep: Any = ("trained", "trained", "best", rng.integers(0, T, n).tolist())[int(rng.integers(4))]
    return presets()["turn"]["state"] | {
        "tokens": rng.normal(size=(n, T, 2)).round(3).tolist(),
        "queries": rng.normal(size=(n, dz)).round(3).tolist(),
        "labels": rng.choice([-1, 1], n).tolist(),
        "v": rng.normal(size=2).round(3).tolist(),
        "optimizer": optimizer,
        "norm": NORMS[index % 6] if index % 2 else "frobenius",
        "keep": keep,
        "start": None if index % 3 else rng.normal(size=2).round(3).tolist(),
        "step": step,
    }  # fmt: skip


def trained(state: dict[str, Any], parameterization: Any = "W", seed: int | None = None) -> Any:
    """Train in Python, on the data of a state or, with a seed, on changed ones."""
    rng = np.random.default_rng(seed)

    def array(name: str) -> np.ndarray:
        given = np.array(state[name], dtype=float)
        return given if seed is None else given * (1 + CHANGE * rng.choice([-1, 1], given.shape))

    tokens, queries, v = array("tokens"), array("queries"), array("v")
    data = TokenData(tokens, queries, np.array(state["labels"], dtype=float))
    z = queries[0]
    start = None if state["start"] is None else np.outer(array("start"), z / (z @ z))
    return train(
        data, v, parameterization=parameterization, optimizer=state["optimizer"], steps=state["step"], init=start
    )


def close(W: Any, expected: np.ndarray) -> bool:
    """Whether two matrices agree, relative to the largest entry."""
    return bool(np.abs(np.asarray(W) - expected).max() <= AGREEMENT * np.abs(expected).max())


def determined(state: dict[str, Any], parameterization: Any = "W") -> dict[str, Any]:
    """Return the state at the last of its step, half of it, ... at which changes of the data leave W where it is."""
    while True:
        W = np.asarray(trained(state, parameterization).W[-1])
        if all(close(trained(state, parameterization, seed).W[-1], W) for seed in range(CHANGED)):
            return state
        state = state | {"step": state["step"] // 2}


def reference(state: dict[str, Any]) -> dict[str, Any]:
    """What the public functions of attsvm make of a state."""
    trace = trained(state)
    trial = Trial.of(
        TokenData(*(np.array(state[name], dtype=float) for name in ("tokens", "queries", "labels"))), state["v"]
    )
    keep = state["keep"]
    kept = np.asarray(trace.selected) if keep == "trained" else trial.optimal if keep == "best" else np.array(keep)
    solution = solve(trial.problem(kept), state["norm"])
    W = np.asarray(trace.W[-1])
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
    tab.goto(INDEX_PAGE.as_uri())
    expression = "states => states.map((state) => numbersOf(pictureOf(state, trainings())))"
    yield lambda states: tab.evaluate(expression, states)
    tab.close()


@pytest.mark.slow
def test_the_page_computes_what_python_computes(compute) -> None:
    drawn = [random_state(index) for index in range(STATES)]
    states = [determined(state) for state in drawn]
    words: dict[str, int] = {}
    for state, picture in zip(states, compute(states), strict=True):
        run, expected = picture["runs"]["W"], reference(state)
        solution = expected["solution"]
        assert close(run["trained"], expected["trained"]), state
        assert run["kept"] == expected["kept"].tolist()
        assert (run["status"], picture["verdict"]["word"]) == (solution.status.name, expected["word"]), state
        words[expected["word"]] = words.get(expected["word"], 0) + 1
        if run["status"] == "INFEASIBLE":
            continue
        # Each objective is above the smallest one by at most its own gap.
        assert run["gap"] <= AGREEMENT
        assert run["objective"] == pytest.approx(solution.objective, rel=AGREEMENT)
        if state["norm"] == "frobenius":  # other norms may have several solutions
            np.testing.assert_allclose(run["W"], solution.W, rtol=0, atol=AGREEMENT * solution.objective)
            np.testing.assert_allclose(run["margins"], solution.margins, rtol=AGREEMENT, atol=AGREEMENT)
            assert run["support"] == np.asarray(solution.support).tolist()
    assert min(words.get(word, 0) for word in ("Infeasible", "Under way", "Globally optimal")) >= 10, words
    # Nearly all are compared where their training was drawn to end.
    assert sum(state == one for state, one in zip(states, drawn, strict=True)) >= 0.9 * STATES


@pytest.mark.slow
def test_factors_and_their_nuclear_svm_are_those_of_python(compute) -> None:
    states = [
        determined(
            random_state(index) | {"start": None, "optimizer": ("normalized_gd", "gd")[index % 2], "keep": "trained"},
            "KQ",
        )
        for index in range(60)
    ]
    for state, picture in zip(states, compute(states), strict=True):
        run, trace = picture["runs"]["KQ"], trained(state, "KQ")
        assert close(run["trained"], np.asarray(trace.W[-1])), state
        tokens, queries = (np.array(state[name], dtype=float) for name in ("tokens", "queries"))
        solution = solve(SelectionProblem(tokens, queries, np.asarray(trace.selected)), "nuclear")
        assert (run["kept"], run["status"]) == (np.asarray(trace.selected).tolist(), solution.status.name)
        if run["status"] == "OPTIMAL":
            assert run["objective"] == pytest.approx(solution.objective, rel=AGREEMENT)


@pytest.mark.slow
@pytest.mark.parametrize("name", presets())
def test_the_script_prints_the_numbers_of_the_page(name: str, browser, capsys: pytest.CaptureFixture[str]) -> None:
    state = presets()[name]["state"] | {"step": 300 if name == "float32" else 12}
    tab = browser.new_page()
    tab.goto(Path(INDEX_PAGE).as_uri())
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
    if name == "classes":
        shares = [float(line[-1]) for line in lines if line[0] == "share"]
        assert [run["shares"][run["norm"]] for run in runs] == pytest.approx(shares, rel=TOL)  # of the script
        return
    # In single precision the page rounds in another order than torch.
    single = name == "float32"
    correlations = [float(line[1]) for line in lines if line[0] == "correlation"]
    assert [run["correlation"] for run in runs if run["objective"] is not None] == pytest.approx(
        correlations, abs=0.05 if single else 1e-8
    )
    losses = [float(line[1]) for line in lines if line[0] == "loss"]
    assert [run["loss"] for run in runs] == pytest.approx(losses, rel=1e-4 if single else 1e-9)
