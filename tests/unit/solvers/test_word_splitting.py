"""Splitting over words in the nuclear norm: optima of other methods, its system, its weights, its choice and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import NUCLEAR
from attsvm.proofs.certified import certify
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solvers import solving
from attsvm.solvers.common.control import Control
from attsvm.solvers.words import splitting as module
from attsvm.solvers.words.margins import Words
from attsvm.solvers.words.splitting import Splitting, System, memory_of_splitting, shrink, split
from word_problems import INSTANCES, classes, in_units, unusual_words

TOL = 1e-7


def program_of(problem: SelectionProblem, C: Any, prior: np.ndarray | None = None) -> Program:
    return Program(problem, NUCLEAR, Regularisation(C, "squared_hinge", prior))


def run(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray]:
    pair = split(program, control)
    assert pair is not None
    return pair


@INSTANCES
def test_it_has_the_optimum_of_the_other_methods(problem: SelectionProblem, C: Any, prior: np.ndarray | None) -> None:
    """The gap is certified from the pair alone."""
    program = program_of(problem, C, prior)
    control = Control(TOL)
    certified = certify(program, *run(program, control))
    other = solve(problem, "nuclear", C=C, loss="squared_hinge", prior=prior, tol=TOL)
    assert certified.gap <= 1.01 * TOL
    assert certified.value == pytest.approx(other.certified.value, rel=TOL + other.gap)
    assert control.iterations < module.SPLITTING_STEPS


@pytest.mark.parametrize("problem", [classes(), classes(n=8, K=6), unusual_words()], ids=["classes", "few", "words"])
def test_the_system_is_that_of_all_pairs(problem: SelectionProblem) -> None:
    """Its matrix is formed from one unit matrix of V at a time, rows times the entries of their tokens."""
    words, rng = Words(program_of(problem, 1.0)), np.random.default_rng(2)
    rows, tokens = rng.uniform(0.5, 2.0, len(words.queries)), rng.uniform(0.5, 2.0, words.shape[0])
    units = np.eye(int(np.prod(words.shape))).reshape(-1, *words.shape)
    columns = np.array([words.margins(unit).ravel() for unit in units])
    matrix = (columns * np.outer(rows, tokens).ravel()) @ columns.T + 0.3 * np.eye(len(units))
    right = rng.normal(size=words.shape)
    # The system has the unknowns V times entries, so its right-hand side is divided by them.
    found = System(words, rows, tokens, 0.3).solve(right / words.entries) / words.entries
    np.testing.assert_allclose(found.ravel(), np.linalg.solve(matrix, right.ravel()), atol=1e-10)


@pytest.mark.parametrize("shape", [(7, 4), (3, 5)])
def test_singular_values_are_lowered_by_the_threshold(shape: tuple[int, int]) -> None:
    V = np.random.default_rng(0).normal(size=shape)
    U, sigma, Vt = np.linalg.svd(V, full_matrices=False)
    threshold = float(np.median(sigma))
    np.testing.assert_allclose(shrink(V, threshold), (U * np.maximum(sigma - threshold, 0.0)) @ Vt, atol=1e-12)
    assert not shrink(np.zeros(shape), 1.0).any()


@pytest.mark.parametrize("prior", [None, np.random.default_rng(5).normal(size=(6, 4))], ids=["no prior", "prior"])
def test_value_bound_and_adjoint_are_those_of_the_terms(prior: np.ndarray | None) -> None:
    problem = classes()
    program = program_of(problem, np.linspace(0.5, 2.0, 40), prior)
    steps = Splitting(program)
    for _ in range(7):
        steps.step()
    value, bound, adjoint = steps.look(steps.renew())
    dual, terms = steps.pairs.multipliers(), program.terms
    margins = problem.apply(program.origin + steps.words.lift(steps.V))
    assert value == pytest.approx(np.linalg.norm(steps.V, "nuc") + terms.loss(1.0 - margins), rel=1e-12)
    length = np.linalg.norm(problem.adjoint(dual), 2)
    scale, expected = terms.bound(dual, problem.adjoint(dual), float(length))
    assert bound == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(steps.words.lift(adjoint), scale * problem.adjoint(dual), atol=1e-10)
    assert (dual >= 0).all()
    assert not dual[~problem.rejected].any()


def test_new_weights_leave_multipliers() -> None:
    """Afterwards they give multipliers and margins the same size, over all and nearly so for each token."""
    problem = classes(n=60)
    steps = Splitting(program_of(problem, 1.0))
    for _ in range(5):
        steps.step()
    pairs, dual = steps.pairs, steps.pairs.multipliers()
    steps.balance()
    np.testing.assert_allclose(pairs.multipliers(), dual, atol=1e-12)
    weights, moves = np.outer(pairs.rows, pairs.tokens), steps.words.margins(steps.V) - 1.0
    assert (dual**2 / weights).sum() == pytest.approx((weights * moves**2).sum(), rel=1e-10)
    ratios = np.sqrt((dual**2 / weights).sum(axis=0) / (weights * moves**2).sum(axis=0))
    np.testing.assert_allclose(ratios, 1.0, atol=0.01)


@pytest.mark.parametrize(
    ("errors", "factor"),
    [
        ([(1.0, 31.0)] * 2, 0.5),
        ([(1.0, 31.0), (1.0, 29.0)], 1.0),
        ([(0.0, 29.0), (1.0, 31.0)], 1.0),
        ([(1.0, 0.9)], 1.0),
    ],
)
def test_the_common_factor_is_halved_while_the_bound_lags(errors: list[tuple[float, float]], factor: float) -> None:
    """Then it is doubled again, not above the weights of equal size."""
    steps = Splitting(program_of(classes(), 1.0))
    for _ in range(5):
        steps.step()
    rows, dual = steps.pairs.rows, steps.pairs.multipliers()
    steps._errors[:] = errors
    steps.change_factor()
    np.testing.assert_allclose(steps.pairs.rows, factor * rows)
    np.testing.assert_allclose(steps.pairs.multipliers(), dual, atol=1e-12)
    steps._errors.extend([(1.0, 0.9)] * 2)
    for _ in range(2):
        steps.change_factor()
        np.testing.assert_allclose(steps.pairs.rows, rows)
    steps._errors.extend([(1.0, 31.0)] * 2)
    for _ in range(10):
        steps.change_factor()
    np.testing.assert_allclose(steps.pairs.rows, module.LEAST_FACTOR * rows)


@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_a_unit_of_the_inputs_changes_no_answer(unit: float) -> None:
    """C in the unit gives the same V over the unit."""
    W, dual = run(program_of(classes(), 1.0), Control(TOL))
    scaled, scaled_dual = run(program_of(in_units(classes(), unit), 1.0 / unit), Control(TOL))
    np.testing.assert_allclose(scaled * unit, W, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaled_dual * unit, dual, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [2.0**-530, 2.0**530])
def test_squares_beyond_the_range_of_floats_are_left_to_others(unit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    problem = in_units(classes(), unit)
    with np.errstate(all="ignore"):
        assert split(program_of(problem, 1.0), Control(TOL)) is None
    solution = solve(problem, "nuclear", C=1.0, loss="squared_hinge")
    assert solution.status is (Status.OPTIMAL if unit < 1.0 else Status.UNDECIDED)


def test_contexts_without_a_length_only_add_their_losses() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(30, 3))
    vectors[:3] = 0.0
    problem = SelectionProblem.from_contexts(vectors, np.eye(8, dtype=bool)[rng.integers(8, size=30)])
    program = program_of(problem, 1.0)
    assert certify(program, *run(program, Control(TOL))).gap <= 1.01 * TOL


def test_limits_end_it_and_other_methods_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "STREAM_BYTES", 100)
    monkeypatch.setattr(solving, "WORD_BYTES", 100)
    problem, options = classes(), {"norm": "nuclear", "C": 1.0, "loss": "squared_hinge", "tol": 1e-6}
    solution = solve(problem, **options)
    assert (solution.status, solution.method) == (Status.OPTIMAL, "splitting over words")
    assert solve(problem, max_iter=1, **options).status is Status.MAX_ITERATIONS
    assert solve(problem, callback=lambda state: True, **options).status is Status.CANCELLED
    monkeypatch.setattr(module, "SPLITTING_STEPS", module.LOOK)
    solution = solve(problem, **options)
    assert solution.status is Status.OPTIMAL
    assert solution.method != "splitting over words"
    size = memory_of_splitting(program_of(problem, 1.0))
    assert size == 8 * (3 * 240 + 10 * 46 * 4)
    monkeypatch.setattr(Control, "affords", lambda self, seconds, needed: needed < size)
    assert "splitting" not in solve(problem, **options).method


@pytest.mark.parametrize(("d", "uses"), [(4, True), (5, False)])
def test_nuclear_norms_use_it_sooner_over_more_words_than_dimensions(
    d: int, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over six words, in four dimensions at most."""
    problem = classes(K=6, d=d)
    size = 8 * int(problem.rejected.sum()) * 6
    for most, expected in ((size - 1, uses), (size, False)):
        monkeypatch.setattr(solving, "WORD_BYTES", most)
        solution = solve(problem, "nuclear", C=1.0, loss="squared_hinge", tol=1e-6)
        assert solution.status is Status.OPTIMAL
        assert (solution.method == "splitting over words") is expected
