"""Experiments on later theory: small runs, and what was predicted of them."""

import numpy as np
import pytest

from attsvm_paper import registry
from attsvm_paper.beyond import (
    adaptive_steps,
    benign_overfitting,
    factor_flow,
    parameter_margin,
    query_temperature,
    trained_embeddings,
    weight_decay,
)
from attsvm_paper.beyond.predictions import Prediction, predictions
from figure_trials import check_report, run


def test_a_prediction_is_a_hit_only_if_the_whole_interval_lies_within():
    foreseen = Prediction(0.0, 1.0, "guess", "")
    assert foreseen.outcome(0.0, 1.0) == "hit"
    assert foreseen.outcome(0.5, 1.1) == "undecided"
    assert foreseen.outcome(-1.0, 0.0) == foreseen.outcome(1.0, 2.0) == "undecided"
    assert foreseen.outcome(1.01, 2.0) == "miss"
    assert foreseen.outcome(-2.0, -0.1) == "miss"


def test_predictions_are_of_experiments_that_exist_and_have_bounds():
    for name, entries in predictions().items():
        assert registry.get(name).name == name
        for entry in entries.values():
            assert entry.low < entry.high
            assert entry.basis in ("theorem", "calculation", "guess")
            assert entry.basis != "theorem" or "arXiv" in entry.reason


def test_decay_on_factors_reaches_the_certified_nuclear_minimum():
    cells = [
        weight_decay.Config("margin", 1.0, d=5, n=4, T=4, trials=3),
        weight_decay.Config("attention", 1e-3, trials=3),
    ]
    rows = run("weight-decay", *cells)
    check_report("weight-decay", rows)
    for row in rows:
        # Half the squared norms exceed the nuclear norm by the square of what the descent leaves, 1e-9.
        assert abs(row["balance"]) < 1e-9
        if row["setting"] == "margin":
            # The lower bound is certified with a gap of 1e-9; a descent that stops at a gradient of 1e-9 adds less.
            assert -1e-12 < row["excess"] < 1e-8
            assert row["rank"] == row["reference_rank"]
        else:
            assert row["stationarity"] < 1e-4
            assert row["rank"] < row["reference_rank"]


def test_a_point_that_is_not_balanced_is_told():
    K, Q = np.eye(3), 2 * np.eye(3)
    # Nuclear norm 6, half the squares (3 + 12) / 2.
    assert weight_decay.balance(K, Q) == pytest.approx(0.2)


def test_temperatures_spare_W_the_difference_of_near_queries():
    cells = [query_temperature.Config("specificity", angle=angle, trials=4) for angle in (0.1, 0.01)]
    rows = run("query-temperature", query_temperature.Config("budget", n=3, d=5, T=4, trials=3), *cells)
    verdicts = check_report("query-temperature", rows)
    assert "hit" in verdicts["slope of log norm over log angle of two queries, one temperature for both queries"].note
    assert "hit" in verdicts["slope of log norm over log angle of two queries, a temperature for each"].note
    for row in rows:
        if row["setting"] == "budget" and row["saving_low"] is not None:
            assert 0 <= row["saving_low"] <= row["saving_high"] <= row["saving_low"] + 2e-4


def test_norms_of_near_queries_are_the_least_for_their_margins():
    config = query_temperature.Config("specificity", angle=0.2, d=4, n=2, T=3)
    row = query_temperature.specificity(config, 5)
    rng = np.random.default_rng(5)
    tokens = rng.standard_normal((3, 4)) / 2
    first, second = np.linalg.qr(rng.standard_normal((4, 2)))[0].T
    queries = (first, np.cos(0.2) * first + np.sin(0.2) * second)
    A = np.array([np.outer(tokens[0] - tokens[t], query).ravel() for query in queries for t in (1, 2)])
    for field, sharper in (("plain", query_temperature.SHARPER), ("own", 1.0)):
        margins = np.repeat([1.0, sharper], 2)
        assert row[field] == pytest.approx(np.sqrt(margins @ np.linalg.solve(A @ A.T, margins)), rel=1e-9)


@pytest.mark.slow
def test_the_flow_keeps_aligned_factors_aligned_and_others_not():
    cells = [factor_flow.Config(case, 12.0, n=3, T=4, d=4, trials=3) for case in factor_flow.CASES]
    rows = run("factor-flow", *cells)
    check_report("factor-flow", rows)
    for row in rows:
        assert row["drift"] < 1e-5
        # Data of one direction a sequence, to rounding; random data have none in common.
        assert (row["condition"] < 1e-12) == (row["case"] == "diagonal, aligned")
        # The flow's error of 1e-7 a part, and what close singular values of a rotation lose.
        assert (row["turned"] < 1e-6) == (row["case"] == "diagonal, aligned")


def test_adaptive_steps_go_farther_than_plain_ones_from_any_start():
    cells = [adaptive_steps.Config("gaussian", rule, n=4, T=4, steps=400, trials=4) for rule in adaptive_steps.RULES]
    rows = run("adaptive-steps", *cells)
    check_report("adaptive-steps", rows)
    assert all(row["selects"] for row in rows)
    # Along the SVM every other token's probability falls by a factor e per norm of its solution.
    assert all(row["sparsification"] == pytest.approx(-1, abs=0.1) for row in rows)
    share = {rule: np.mean([row["share"] for row in rows if row["rule"] == rule]) for rule in adaptive_steps.RULES}
    assert share["plain"] < share["normalised"]
    assert share["plain"] < share["polyak"]


def test_flipped_labels_are_fitted_and_more_signal_helps_fresh_sequences():
    size = {"d": 100, "n": 12, "trials": 3}
    settings = [(setting, ratio) for setting in ("trained", "two tokens") for ratio in (0.1, 1.0)]
    rows = run("benign-overfitting", *(benign_overfitting.Config(*one, **size) for one in settings))
    check_report("benign-overfitting", rows)
    mean = {
        one: np.mean([row["interpolator"] for row in rows if (row["setting"], row["ratio"]) == one]) for one in settings
    }
    assert mean["trained", 1.0] > mean["trained", 0.1] + 0.1
    assert mean["two tokens", 1.0] > mean["two tokens", 0.1]
    assert all(row["train"] == 1 for row in rows if row["setting"] == "trained" and row["ratio"] == 1.0)


def test_weak_signals_are_of_the_own_class_and_of_the_other():
    n, ratio = 6, 1e6
    tokens, labels = benign_overfitting.sequences(np.random.default_rng(0), n, 4, 3, ratio, 0.0)
    expected = np.zeros((n, 4, 3))
    for i, label in enumerate(labels):
        own, other = (0, 1) if label > 0 else (1, 0)
        expected[i, 0, own], expected[i, 1, own], expected[i, 2, other] = (
            1,
            benign_overfitting.WEAK,
            benign_overfitting.WEAK,
        )
    # Gaussian noise beside a signal of a million.
    np.testing.assert_allclose(tokens / (ratio * np.sqrt(3)), expected, atol=1e-5)


def test_sentences_hold_one_to_three_words_of_their_class():
    words, labels = trained_embeddings.sentences(np.random.default_rng(0), 40, 8)
    telling = trained_embeddings.TELLING
    for sentence, label in zip(words, labels, strict=True):
        counts = [int((sentence // telling == kind).sum()) for kind in (0, 1)]
        own, other = counts if label > 0 else counts[::-1]
        assert 1 <= own <= 3
        assert other == 0


def test_the_threshold_lies_between_the_ratios_that_enclose_it():
    assert benign_overfitting.threshold({0.1: 0.9, 0.4: 1.0}) == pytest.approx(0.2)
    assert benign_overfitting.threshold({0.1: 0.96, 0.4: 1.0}) is None


@pytest.mark.slow
def test_each_optimiser_nears_a_kkt_point_of_its_own():
    powers = {"normalised": 0.5, "Muon": 0.667}
    cells = [parameter_margin.Config(*one, n=4, T=4, d=6, steps=1000, trials=3) for one in powers.items()]
    rows = run("parameter-margin", *cells)
    check_report("parameter-margin", rows)
    for name, own in (("normalised", "frobenius"), ("Muon", "spectral")):
        stages = [[row for row in rows if (row["optimiser"], row["horizon"]) == (name, at)] for at in (10, 1000)]
        first, last = (np.mean([row[own] for row in stage]) for stage in stages)
        assert last < first / 2
        assert last < np.mean([row["max"] for row in stages[1]])


def test_the_first_step_writes_signed_frequencies_into_embeddings():
    size = {"n": 20, "T": 6, "d": 16, "steps": 1500, "trials": 3}
    rows = run("trained-embeddings", *(trained_embeddings.Config(start, **size) for start in (0.0, 1.0)))
    check_report("trained-embeddings", rows)
    for row in rows:
        if row["start"] == 0:
            # An identity of the gradient at E = 0.
            assert row["first"] == pytest.approx(1, abs=1e-9)
            # Embeddings along one vector serve one class only.
            assert row["telling"] <= 0.75
    assert np.mean([row["share"] for row in rows if row["start"] == 1]) > 0.9
