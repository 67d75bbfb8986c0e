"""Predictions and what they rest on, against training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from attsvm import TokenData, correlation, diagnose, solve, theory, train
from attsvm.data.synthetic import random_data
from attsvm.nn.heads import LambdaHead
from attsvm.theory import Outcome
from attsvm.theory.conditions import initial_gradient
from attsvm.theory.diagnosis import Signature
from attsvm.theory.divergence import has_no_favourite, order_problem


def test_one_sequence_with_equal_losers_is_global_from_any_start() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((1, 4, 5))
    values = np.array([[[1.0], [0.0], [0.0], [0.0]]])
    data = TokenData(tokens, rng.standard_normal((1, 3)), [1.0], values=values)
    trial = theory.Trial.of(data, [1.0])
    for _ in range(3):
        start = 5 * rng.standard_normal((5, 3))
        prediction = theory.predict(trial, init=start)
        assert prediction.outcome is Outcome.GLOBAL
        trace = train(data, [1.0], init=start, steps=20_000)
        observation = theory.observe(trial, trace.W[-1])
        assert theory.agrees(prediction, observation) is True
        # Three constraints of equal weight at margin m: the soft minimum leaves 1 - cos <= (log 3 + 1) / m.
        margins = np.delete(trial.logits(trace.W[-1])[0, 0] - trial.logits(trace.W[-1])[0], 0)
        assert 1 - observation.correlation <= (np.log(3) + 1) / margins.min()


def test_two_sequences_get_no_such_promise() -> None:
    data, v = random_data(None, 2, 2, 4, seed=0)
    prediction = theory.predict(theory.Trial.of(data, v))
    assert prediction.hypotheses["B.2"].holds
    assert prediction.outcome is Outcome.NO_GUARANTEE


def test_a_norm_that_stays_finite_is_predicted_and_seen() -> None:
    """One dimension, one query, opposite labels: going either way serves one sequence and ruins the other."""
    tokens = np.array([[[-1.0], [0.0], [1.0]]] * 2)
    data = TokenData(tokens, np.ones((2, 1)), np.array([1.0, -1.0]))
    trial = theory.Trial.of(data, [1.0])
    start = np.array([[0.3]])
    prediction = theory.predict(trial, init=start, landscape=theory.explore(trial))
    assert prediction.outcome is Outcome.FINITE
    trace = train(data, [1.0], optimizer="gd", lr=0.5, steps=3000, init=start)
    # By symmetry the risk is even in W, and W = 0 its minimum.
    assert abs(trace.W[-1, 0, 0]) < 1e-10
    diagnosis = diagnose(data, [1.0], trace)
    assert diagnosis.agrees is True
    assert {finding.signature for finding in diagnosis.findings} == {Signature.INFEASIBLE, Signature.NOT_SPARSE}
    assert all(finding.certain for finding in diagnosis.findings)


def test_no_bound_is_certified_where_the_norm_diverges() -> None:
    for seed in range(6):
        data, v = random_data(None, 3, 3, 3, seed=seed)
        trial = theory.Trial.of(data, v)
        # d >= n: queries that predict their labels exist, so some matrix orders all tokens as their scores.
        assert theory.norm_diverges(trial).holds
        assert theory.norm_bounded(trial).holds is None


def test_the_order_problem_leaves_no_finite_stationary_point() -> None:
    rng = np.random.default_rng(3)
    for seed in range(4):
        trial = theory.Trial.of(*random_data(None, 3, 4, 4, seed=seed))
        V = solve(order_problem(trial)).W
        logits = trial.logits(V)
        assert (np.argsort(logits, axis=1) == np.argsort(trial.gamma, axis=1)).all()
        for _ in range(20):
            W = 3 * rng.standard_normal((4, 4))
            gradient = initial_gradient(trial, W=W)
            assert (gradient * V).sum() < 0


def test_equal_scores_are_ordered_as_groups() -> None:
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]])
    trial = theory.Trial.of(TokenData(tokens, [[1.0]], [1.0]), [1.0, 1.0])
    problem = order_problem(trial)  # tokens 0 and 1 score 1, tokens 2 and 3 score -1
    assert problem.shape[0] == 2
    assert (problem.mask.sum(axis=1) == 3).all()


def test_nowhere_favoured_needs_positive_multipliers_everywhere() -> None:
    inside = TokenData(np.array([[[0.0], [1.0], [-1.0]]]), [[1.0]], [1.0])
    assert has_no_favourite(theory.Trial.of(inside, [1.0]).problem([0]))
    # The middle of two tokens, and a third off the line: V may still favour the middle over the third.
    flat = TokenData(np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]]), [[1.0]], [1.0])
    assert not has_no_favourite(theory.Trial.of(flat, [1.0, 0.0]).problem([0]))


def test_a_multiplier_of_zero_is_no_proof_whatever_the_solver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*multipliers: float) -> None:
        outcome = SimpleNamespace(x=np.array([*multipliers, 1e-9]))
        monkeypatch.setattr("attsvm.theory.divergence.linprog", lambda *args, **options: outcome)

    inside = TokenData(np.array([[[0.0], [1.0], [-1.0]]]), [[1.0]], [1.0])
    answer(0.5, 0.5)
    assert has_no_favourite(theory.Trial.of(inside, [1.0]).problem([0]))
    # The first two multipliers are a certificate, which says nothing of the third token: it may be avoided.
    flat = TokenData(np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]]), [[1.0]], [1.0])
    answer(0.5, 0.5, 0.0)
    assert not has_no_favourite(theory.Trial.of(flat, [1.0, 0.0]).problem([0]))


@pytest.mark.parametrize("seed", [0, 4])
def test_descent_from_the_cone_of_a_local_direction_stays_and_converges(seed: int) -> None:
    """Theorem 7 from the radius proved, with steps of a fixed share of the norm: the limit comes within reach."""
    data, v = random_data(None, 2, 3, 3, seed=seed)
    trial = theory.Trial.of(data, v)
    landscape = theory.explore(trial)
    rng = np.random.default_rng(seed)
    for direction in landscape.directions:
        constants = theory.local_constants(trial, direction)
        unit = direction.W / np.linalg.norm(direction.W)
        perpendicular = rng.standard_normal(unit.shape)
        perpendicular -= (perpendicular * unit).sum() * unit
        perpendicular /= np.linalg.norm(perpendicular)
        cosine = 1 - 0.99 * constants.mu
        start = 1.01 * constants.radius * (cosine * unit + np.sqrt(1 - cosine**2) * perpendicular)
        prediction = theory.predict(trial, init=start, landscape=landscape)
        assert (prediction.directions[0].selected == direction.selected).all()
        trace = train(data, v, init=start, steps=3000, lr=0.002 * constants.radius, record_every=300)
        along = correlation(trace.W, direction.W)
        # Normalised steps end a step from the limit: the norm grows to about seven radii, a step is 1/500 of one.
        assert along.min() >= 1 - constants.mu
        assert along[-1] >= along[0]
        assert theory.agrees(prediction, theory.observe(trial, trace.W[-1])) is True


@pytest.mark.slow
def test_a_head_that_mixes_is_named() -> None:
    v = np.array([1.0, 0.9, 0.2, 0.1])
    data = TokenData(np.eye(4)[None], [[1.0]], [1.0])
    trace = train(data, LambdaHead(v, 0.5), loss="correlation", steps=2000, lr=0.01, optimizer="gd")
    diagnosis = diagnose(data, LambdaHead(v, 0.5), trace, loss="correlation")
    order, shared = diagnosis.finding(Signature.ORDER), diagnosis.finding(Signature.NOT_SPARSE)
    assert order is not None
    assert order.certain
    assert "svm_equivalent" in order.remedy
    assert shared is not None


def test_plain_gradients_past_saturation_are_named() -> None:
    data, v = random_data(None, 3, 3, 6, seed=0)
    W = 1e3 * theory.Trial.of(data, v).optimal_solution.W
    diagnosis = diagnose(data, v, W).finding(Signature.PRECISION)
    assert diagnosis is not None
    assert not diagnosis.certain
    assert "36.0" in diagnosis.detail  # -log(2.2e-16)
    rough = diagnose(data, v, (1e6 * W).astype(np.float32)).finding(Signature.PRECISION)
    assert rough is not None
    assert rough.certain
    trace = train(data, v, steps=50)
    assert diagnose(data, v, trace).finding(Signature.PRECISION) is None


def test_too_few_dimensions_are_named_with_a_proof() -> None:
    for seed in range(20):
        data, v = random_data(None, 8, 4, 2, seed=seed)
        diagnosis = diagnose(data, v, samples=5, limit=5)
        finding = diagnosis.finding(Signature.INFEASIBLE)
        if finding is not None:
            assert finding.certain
            assert not diagnosis.separability.dimension
            assert diagnosis.trial.optimal_solution.certificate is not None
            assert str(diagnosis).count("\n") > 5
            break
    else:
        pytest.fail("none of 20 instances in the plane was infeasible")


def test_theorem_3_asks_every_sequence_for_b1_or_b2() -> None:
    """Two queries of length one that share an axis: B.1 in one sequence, B.2 in another, and one with neither."""
    both = TokenData(
        np.array([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]]),
        np.array([[1.0], [1.0]]),
        [1.0, 1.0],
        values=np.array([[[2.0], [1.0], [0.0]], [[2.0], [1.0], [1.0]]]),
    )
    trial = theory.Trial.of(both, [1.0])
    # W^mm = (1, 1): margins 1 and 1 in the first sequence, whose scores differ, 1 and 2 in the second, of equal scores.
    condition = theory.norm_diverges(trial)
    assert condition.holds is True
    assert "Theorem 3" in condition.detail
    values = np.array([[[2.0], [1.0], [0.0]], [[2.0], [1.0], [0.5]]])
    neither = theory.Trial.of(TokenData(both.tokens, both.queries, both.labels, values=values), [1.0])
    assert "Theorem 3" not in theory.norm_diverges(neither).detail


def test_no_divergence_is_claimed_without_a_preferred_token() -> None:
    level = TokenData(np.array([[[1.0, 0.0], [1.0, 1.0]]]), [[1.0]], [1.0])
    condition = theory.norm_diverges(theory.Trial.of(level, [1.0, 0.0]))
    assert condition.holds is None
    assert "prefers" in condition.detail
    single = TokenData(np.ones((1, 1, 2)), [[1.0]], [1.0])
    assert "prefers" in theory.norm_diverges(theory.Trial.of(single, [1.0, 0.0])).detail


def test_a_token_that_stands_twice_is_no_division_by_zero() -> None:
    twice = TokenData(np.array([[[0.0], [1.0], [-1.0], [0.0]]]), [[1.0]], [1.0])
    assert has_no_favourite(theory.Trial.of(twice, [1.0]).problem([0]))


def test_the_sublevel_set_is_that_of_the_start() -> None:
    trial = theory.Trial.of(*random_data(None, 2, 3, 3, seed=1))
    for W in (None, 3 * np.eye(3)):
        logits = trial.logits(np.zeros((3, 3)) if W is None else W)
        s = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        risk = np.log1p(np.exp(-(s * trial.gamma).sum(axis=1))).mean()
        assert theory.norm_bounded(trial, W).value == pytest.approx(risk, rel=1e-12)


def test_a_bound_is_sought_among_few_selections_only() -> None:
    trial = theory.Trial.of(*random_data(None, 2, 3, 3, seed=0))
    assert "more than 8" in theory.norm_bounded(trial, limit=8).detail
    assert "more than" not in theory.norm_bounded(trial, limit=9).detail


# --- where a trained W stands ---


def counterexample() -> theory.Trial:
    """Directions (1, 0), local, and (1, 3), global; scores (1, 0) and (1.5, 0)."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
    return theory.Trial.of(TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2)), [1.0, 3.5])


def test_every_outcome_has_an_example() -> None:
    trial = counterexample()
    top, detour = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 0.0]])
    observation = theory.observe(trial, 10 * top)
    assert observation.outcome is Outcome.GLOBAL
    assert observation.selected.tolist() == [0, 0]
    assert observation.correlation == pytest.approx(1.0)
    assert observation.least_attention == pytest.approx(1 / (1 + np.exp(-10.0)))
    local = theory.observe(trial, 10 * detour)
    assert local.outcome is Outcome.LOCAL
    assert local.selected.tolist() == [0, 1]
    # Both tokens that score nothing: each has a better one beside it at margin one.
    worst = theory.observe(trial, -10 * top)
    assert worst.outcome is Outcome.NOT_LOCAL
    assert worst.correlation == pytest.approx(float(correlation(-top, worst.locality.W)))
    # The second sequence alone is still shared: margins 20 and 1.
    shared = theory.observe(trial, np.array([[20.0, 0.0], [41.0, 0.0]]))
    assert shared.outcome is Outcome.SHARED
    assert shared.least_attention == pytest.approx(1 / (1 + np.exp(-1.0)))
    for threshold, outcome in ((0.73, Outcome.GLOBAL), (0.74, Outcome.SHARED)):
        assert theory.observe(trial, np.array([[20.0, 0.0], [41.0, 0.0]]), selected_above=threshold).outcome is outcome
    assert np.isnan(theory.observe(middle(), [[0.0]]).correlation)


def middle() -> theory.Trial:
    """One dimension; the best token lies between two others."""
    values = np.array([[[1.0], [0.0], [0.5]]])
    return theory.Trial.of(TokenData([[[0.0], [1.0], [-1.0]]], [[1.0]], [1.0], values=values), [1.0])


def test_what_is_observed_agrees_with_what_was_predicted_or_says_nothing() -> None:
    trial = counterexample()
    landscape = theory.explore(trial)
    top, detour = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 0.0]])
    forecast = theory.predict(trial, init=1e5 * top, landscape=landscape)
    assert forecast.outcome is Outcome.GLOBAL
    near = theory.predict(trial, init=1e5 * detour, landscape=landscape)
    assert near.outcome is Outcome.LOCAL
    nothing = theory.predict(trial, landscape=landscape)
    assert nothing.outcome is Outcome.NO_GUARANTEE
    observations = {name: theory.observe(trial, W) for name, W in
            (("top", 10 * top), ("aside", 10 * detour), ("shared", 0.1 * top))}  # fmt: skip
    assert theory.agrees(forecast, observations["top"]) is True
    assert theory.agrees(forecast, observations["aside"]) is False
    assert theory.agrees(near, observations["aside"]) is True
    assert theory.agrees(near, observations["top"]) is False
    for prediction in (forecast, near, nothing):
        assert theory.agrees(prediction, observations["shared"]) is None
    assert theory.agrees(nothing, observations["top"]) is None
    either = replace(near, directions=landscape.directions)
    assert len(either.directions) == 2
    assert theory.agrees(either, observations["top"]) is True
    finite = replace(forecast, outcome=Outcome.FINITE)
    assert theory.agrees(finite, observations["shared"]) is True
    assert theory.agrees(finite, observations["top"]) is None


def test_a_prediction_says_what_is_proved_and_what_is_not() -> None:
    trial = counterexample()
    landscape = theory.explore(trial)
    expected = theory.predict(trial, landscape=landscape)
    assert expected.expected is Outcome.LOCAL
    assert expected.conjecture == "the norm diverges; 2 directions are locally optimal"
    words = str(expected)
    assert words.startswith("no guarantee: no theorem covers this data and start\nexpected, not proved: one of these")
    assert all(f"\n  {condition}" in words for condition in expected.hypotheses.values())
    prediction = theory.predict(trial, init=1e5 * np.array([[1.0, 0.0], [3.0, 0.0]]), landscape=landscape)
    assert "not proved" not in str(prediction)
    assert prediction.conjecture == ""
    one = theory.predict(trial, landscape=replace(landscape, exhaustive=False, directions=landscape.directions[:1]))
    assert one.conjecture.endswith("1 direction is locally optimal of those searched")


def test_a_start_that_is_not_given_is_zero() -> None:
    trial = counterexample()
    hypotheses = theory.predict(trial).hypotheses
    assert hypotheses["norm bounded"].value == theory.norm_bounded(trial, np.zeros((2, 2))).value
    assert hypotheses["norm bounded"].value != theory.norm_bounded(trial, np.ones((2, 2))).value
    # Leads of 1 and 1.5.
    assert hypotheses["unique optimum"].value == pytest.approx(1.0)
    assert hypotheses["unique optimum"].detail == "smallest lead 1"


def test_one_sequence_that_prefers_a_token_is_enough_to_diverge() -> None:
    values = np.array([[[1.0], [1.0]], [[2.0], [1.0]]])
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    trial = theory.Trial.of(TokenData(tokens, np.eye(2), [1.0, 1.0], values=values), [1.0])
    assert theory.norm_diverges(trial).holds is True
    variant = theory.Trial.of(TokenData(np.ones((1, 1, 2)), [[1.0]], [1.0]), [1.0, 0.0])
    assert has_no_favourite(variant.problem([0]))


def test_no_cone_holds_zero_nor_a_head_that_is_not_linear() -> None:
    trial = counterexample()
    assert not theory.predict(trial, landscape=theory.explore(trial)).hypotheses["start in a cone"].holds
    bent_trial = theory.Trial.of(trial.data, LambdaHead(np.array([1.0, 3.5]), 1e-3))
    start = 1e6 * np.array([[1.0, 0.0], [3.0, 0.0]])
    landscape = theory.predict(bent_trial, init=start, landscape=theory.explore(bent_trial))
    assert landscape.hypotheses["start in a cone"].holds is False
    # One token a sequence: nothing is rejected, there is no direction to converge to.
    variant = theory.Trial.of(TokenData(np.ones((1, 1, 2)), [[1.0]], [1.0]), [1.0, 0.0])
    assert not theory.predict(variant, init=np.ones((2, 1))).hypotheses["start in a cone"].holds
    with pytest.raises(ValueError, match=r"^init has shape \(1, 1\)"):
        theory.predict(trial, init=np.ones((1, 1)))


def test_a_diagnosis_lists_its_findings_or_says_that_there_are_none() -> None:
    trial = counterexample()
    diagnosis = diagnose(trial.data, [1.0, 3.5])
    assert diagnosis.findings
    text, nothing = str(diagnosis), str(replace(diagnosis, findings=()))
    assert text.splitlines()[-len(diagnosis.findings) :] == [f"- {finding}" for finding in diagnosis.findings]
    assert "No failure signature applies." not in text
    assert nothing.splitlines()[-1] == "No failure signature applies."


def test_a_finding_that_is_not_certain_is_called_possible() -> None:
    trial = counterexample()
    possible = diagnose(trial.data, [1.0, 3.5]).finding(Signature.LOCAL)
    assert possible is not None
    assert not possible.certain
    assert str(possible) == f"Possible: {Signature.LOCAL.value} {possible.detail} {possible.remedy}"
    certain = replace(possible, certain=True)
    assert str(certain) == f"{Signature.LOCAL.value} {possible.detail} {possible.remedy}"


def test_the_card_of_a_diagnosis_sorts_the_hypotheses() -> None:
    trial = counterexample()
    diagnosis = diagnose(trial.data, [1.0, 3.5])
    card = ElementTree.fromstring(diagnosis._repr_html_())
    cells = {row[0].text: row[1].text for row in card.iter("tr")}
    for word, holds in (("what holds", True), ("what fails", False), ("undecided", None)):
        names = [condition.name for condition in diagnosis.hypotheses.values() if condition.holds is holds]
        assert names
        assert cells[word] == ", ".join(names)


def test_an_order_that_a_mixture_breaks_is_certain_before_training() -> None:
    data = TokenData(np.eye(4)[None], [[1.0]], [1.0])
    order = diagnose(data, LambdaHead(np.array([1.0, 0.9, 0.2, 0.1]), 0.5), starts=0).finding(Signature.ORDER)
    assert order is not None
    assert order.certain


@pytest.mark.parametrize(("v", "count"), [([0.0], "2 sequences"), ([1.0], "1 sequence")])
def test_sequences_that_share_their_best_score_are_counted(v: list[float], count: str) -> None:
    """The head that is zero scores all tokens the same, with no rounding error."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 2.0], [0.0, 1.0]]])
    values = np.array([[[1.0], [1.0]], [[1.0], [0.0]]])
    shared = diagnose(TokenData(tokens, np.eye(2), [1.0, 1.0], values=values), v, starts=0).finding(
        Signature.NOT_SPARSE
    )
    assert shared is not None
    assert not shared.certain
    assert shared.detail == f"In {count} the best score is shared."


def test_attention_that_is_shared_is_unfinished_where_the_norm_grows_and_final_where_it_does_not() -> None:
    trial = counterexample()
    growing = diagnose(trial.data, [1.0, 3.5], np.array([[0.1, 0.0], [0.3, 0.0]]), starts=0)
    assert growing.hypotheses["norm diverges"].holds
    settled = diagnose(middle().data, [1.0], np.array([[0.0]]), starts=0)
    assert settled.hypotheses["norm diverges"].holds is not True
    for diagnosis, grows in ((growing, True), (settled, False)):
        shared = diagnosis.finding(Signature.NOT_SPARSE)
        assert shared is not None
        assert shared.certain is not grows
        assert ("training is unfinished" in shared.detail) is grows


def test_large_logits_that_are_close_need_no_precision() -> None:
    """Logits of 101 and 100: the margin is one."""
    data = TokenData(np.array([[[100.0, 1.0], [100.0, 0.0]]]), [[1.0]], [1.0])
    assert diagnose(data, [0.0, 1.0], np.ones((2, 1)), starts=0).finding(Signature.PRECISION) is None
    wide = diagnose(data, [0.0, 1.0], np.array([[0.0], [50.0]]), starts=0).finding(Signature.PRECISION)
    assert wide is not None
