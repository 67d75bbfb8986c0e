"""Theorems 4 and 5 of arXiv 2308.16898 v1 fail for two sequences; this is the instance, worked out by hand.

With z_1 = z_2 = e_1 only w = W e_1 matters. Selecting tokens (0, 0) asks for w_1 >= 1 and w_2 >= 1 + 2 w_1: (1, 3),
both tight. Selecting (0, 1) asks for w_1 >= 1 and w_2 <= 2 w_1 - 1: (1, 0), the second not tight. (1, 0) asks for
w_1 <= -1 and w_2 >= 1 + 2 w_1: (-1, 0), tight in the first sequence, where the rejected token is the better one; (1, 1)
likewise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attsvm import TokenData, correlation, diagnose, theory, train
from attsvm.theory import Outcome
from attsvm.theory.conditions import initial_gradient
from attsvm.theory.diagnosis import Signature
from errata_numbers import falsified, numbers, settings

SCORES = np.array([1.0, 3.5])  # token scores (1, 0) and (1.5, 0)
(START,) = settings("Global convergence", r"from (\d+) e₁e₁ᵀ, ")
TRAP = np.array([[START, 0.0], [0.0, 0.0]])


@pytest.fixture(scope="module")
def data() -> TokenData:
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
    return TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2))


@pytest.fixture(scope="module")
def trial(data: TokenData) -> theory.Trial:
    return theory.Trial.of(data, SCORES)


@pytest.fixture(scope="module")
def landscape(trial: theory.Trial) -> theory.Landscape:
    return theory.explore(trial)


def test_the_hypotheses_of_the_false_theorems_hold(trial, landscape) -> None:
    conditions = theory.check_conditions(trial, landscape=landscape)
    assert np.array_equal(trial.gamma, [[1.0, 0.0], [1.5, 0.0]])
    assert conditions["B.1"].holds
    assert conditions["B.2"].holds
    assert conditions["A"].holds
    assert conditions["D"].holds is False


def test_the_local_directions_are_those_derived_by_hand(landscape) -> None:
    assert landscape.exhaustive
    assert landscape.feasible.all()
    result = {tuple(direction.selected.tolist()): direction for direction in landscape.directions}
    assert set(result) == {(0, 0), (0, 1)}
    # Solutions are certified to a gap of a few eps, directions to its root.
    assert np.allclose(result[0, 0].W, [[1, 0], [3, 0]], atol=1e-7)
    assert np.allclose(result[0, 1].W, [[1, 0], [0, 0]], atol=1e-7)
    assert not result[0, 1].neighbours[1].any()
    rows = landscape.to_frame().set_index("selected")["local"]
    assert rows.to_dict() == {(0, 0): True, (0, 1): True, (1, 0): False, (1, 1): False}


def test_a_direction_that_selects_some_optimal_tokens_is_not_the_optimal_one(landscape) -> None:
    only = {tuple(d.selected.tolist()): replace(landscape, directions=(d,)) for d in landscape.directions}
    assert only[0, 0].only_optimal
    assert not only[0, 1].only_optimal
    assert not landscape.only_optimal


@falsified("train")
def test_descent_from_zero_finds_the_global_direction_and_from_elsewhere_never_does(data, trial, landscape) -> None:
    for start, outcome, selected in ((np.zeros((2, 2)), Outcome.GLOBAL, [0, 0]), (TRAP, Outcome.LOCAL, [0, 1])):
        trace = train(data, SCORES, optimizer="gd", lr=1.0, steps=20_000, init=start)
        observation = theory.observe(trial, trace.W[-1])
        assert observation.outcome is outcome
        assert observation.selected.tolist() == selected
        assert landscape.index(observation.selected) >= 0
    # cos((1, 0), (1, 3)) = 1/sqrt(10) = 0.316; the W that was caught sits at (w_1, 0).
    one, square, limit = numbers("Global convergence", r"(\d)/√(\d+) = ([\d.]+)\.")
    assert float(correlation(trace.W[-1], trial.optimal_solution.W)) == pytest.approx(one / np.sqrt(square), abs=0.01)
    assert round(one / np.sqrt(square), 2) == limit
    # A single sequence gives its optimal token from the same start.
    true, false = numbers("Global convergence", r"true for n = (\d) and false for n ≥ (\d)\.")
    assert len(data.tokens) == false
    single = TokenData(*(part[: int(true)] for part in (data.tokens, data.queries, np.ones(2))))
    trace = train(single, SCORES, optimizer="gd", lr=1.0, steps=20_000, init=TRAP)
    assert theory.observe(theory.Trial.of(single, SCORES), trace.W[-1]).outcome is Outcome.GLOBAL


def weights(w1: np.ndarray, w2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """c_1 and c_2 of docs/counterexample.md: minus the gradient in w is c_1 (1, 0) + c_2 (-2, 1)."""
    m = w2 - 2 * w1
    s1, s2 = 1 / (1 + np.exp(-w1)), 1 / (1 + np.exp(-m))
    return (
        0.5 / (1 + np.exp(s1)) * s1 / (1 + np.exp(w1)),
        0.75 / (1 + np.exp(1.5 * s2)) * s2 / (1 + np.exp(m)),
    )


def test_the_weights_of_the_proof_are_those_of_the_gradient(trial) -> None:
    for w1, w2 in ((4.0, 0.0), (5.0, -2.0), (0.3, 0.7)):
        gradient = initial_gradient(trial, W=np.array([[w1, 0.0], [w2, 0.0]]))
        c1, c2 = weights(np.array(w1), np.array(w2))
        assert -gradient[:, 0] == pytest.approx(np.array([c1 - 2 * c2, c2]), rel=1e-9)


def test_the_inequalities_of_the_proof_hold_in_the_region() -> None:
    """c_2 <= 0.06 c_1 wherever w_1 >= 4 and w_1 - w_2 >= 4, so that every step of any size stays there."""
    w1, w2 = np.meshgrid(np.linspace(4, 300, 600), np.linspace(4, 300, 600))
    c1, c2 = weights(w1, w1 - w2)
    assert (c1 >= 0.12 * np.exp(-w1)).all()
    assert (c2 <= 0.007 * np.exp(-w1)).all()
    assert (c2 <= 3.2 * np.exp(-w2) * c1).all()
    assert (c1 <= 1.3 * (c1 - 3 * c2)).all()


def test_any_step_keeps_to_the_region(data) -> None:
    for lr in (0.1, 1.0, 100.0):
        W = train(data, SCORES, optimizer="gd", lr=lr, steps=500, init=TRAP, record_every=20).W[..., 0]
        assert (np.diff(W[:, 0]) > 0).all()
        assert (np.diff(W[:, 1]) >= 0).all()
        assert (np.diff(W[:, 0] - W[:, 1]) > 0).all()
        assert (W[:, 0] - W[:, 1] >= 4).all()


def test_nothing_is_promised_and_two_directions_are_expected(trial, landscape) -> None:
    for start in (None, TRAP):
        prediction = theory.predict(trial, init=start, landscape=landscape)
        assert prediction.outcome is Outcome.NO_GUARANTEE
        assert prediction.expected is Outcome.LOCAL
        assert prediction.hypotheses["norm diverges"].holds


def test_a_start_in_the_cone_of_the_wrong_direction_is_promised_to_stay(trial, landscape) -> None:
    wrong = next(d for d in landscape.directions if d.selected.tolist() == [0, 1])
    constants = theory.local_constants(trial, wrong)
    # Theta = 1/||(1, 0)||; the one non-neighbour has margin 2; the longest token has length sqrt(5).
    assert constants.Theta == pytest.approx(1.0)
    assert constants.delta == pytest.approx(0.5)
    assert np.sqrt(5) == pytest.approx(constants.A)
    assert constants.mu == pytest.approx(1 / 160)
    prediction = theory.predict(trial, init=1.01 * constants.radius * wrong.W, landscape=landscape)
    assert prediction.outcome is Outcome.LOCAL
    assert "Theorem 7" in prediction.rests_on


def test_diagnose_names_the_trap(data) -> None:
    trace = train(data, SCORES, optimizer="gd", lr=0.1, steps=5000, init=TRAP)
    diagnosis = diagnose(data, SCORES, trace)
    assert diagnosis.agrees is None
    trap = diagnosis.finding(Signature.LOCAL)
    assert trap is not None
    assert trap.certain
    assert "C fails" in trap.detail
    before = diagnose(data, SCORES).finding(Signature.LOCAL)
    assert before is not None
    assert not before.certain


def test_both_basins_are_seen(trial, landscape) -> None:
    starts = np.array([[[a, 0.0], [b, 0.0]] for a in (-4.0, 4.0) for b in (-4.0, 4.0)])
    basins = theory.map_basins(trial, starts, landscape=landscape, steps=4000)
    where = [landscape.directions[k].selected.tolist() for k in basins.destination]
    # From (4, -4) the second sequence starts with 12 on its worse token; from elsewhere it can still be turned.
    assert where == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert basins.share.sum() == pytest.approx(1.0)
    assert basins.correlation.min() > 0.99


def test_basins_name_the_direction_most_starts_went_to(trial, landscape) -> None:
    starts = np.array([[[a, 0.0], [b, 0.0]] for a in (-4.0, 4.0) for b in (-4.0, 4.0)])
    basins = theory.map_basins(trial, starts, landscape=landscape, steps=4000)
    assert f"direction {landscape.index(np.array([0, 0]))}, 75.0%" in repr(basins)
    # Attention is one at most.
    nowhere = theory.map_basins(trial, starts, landscape=landscape, steps=1, selected_above=1.5)
    assert nowhere.share.tolist() == [0.0, 0.0, 1.0]
    assert "none, 100.0%" in repr(nowhere)


def test_one_start_is_enough_and_attention_of_one_is_at_least_one(trial, landscape) -> None:
    """At 1e4 (1, 3) every other token has probability e^-10000, which is zero."""
    start = 1e4 * np.array([[[1.0, 0.0], [3.0, 0.0]]])
    basins = theory.map_basins(trial, start, landscape=landscape, steps=1, selected_above=1.0)
    assert basins.selected.tolist() == [[0, 0]]
    assert basins.destination.tolist() == [landscape.index(np.array([0, 0]))]
    with pytest.raises(ValueError, match=r"starts has shape \(0, 2, 2\)"):
        theory.map_basins(trial, start[:0], landscape=landscape)
