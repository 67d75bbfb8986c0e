"""Experiments on later theory: small runs, and what was predicted of them."""

import numpy as np
import pytest

from attsvm.experiments.beyond import query_temperature, weight_decay
from attsvm.experiments.beyond.predictions import Prediction
from figure_trials import check_report, run


def test_a_prediction_is_a_hit_only_if_the_whole_interval_lies_within():
    foreseen = Prediction(0.0, 1.0, "guess", "")
    assert foreseen.outcome(0.0, 1.0) == "hit"
    assert foreseen.outcome(0.5, 1.1) == "undecided"
    assert foreseen.outcome(1.01, 2.0) == "miss"
    assert foreseen.outcome(-2.0, -0.1) == "miss"


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
    found = check_report("query-temperature", rows)
    assert "hit" in found["slope of log norm over log angle of two queries, one temperature for both queries"].note
    assert "hit" in found["slope of log norm over log angle of two queries, a temperature for each"].note
    for row in rows:
        if row["setting"] == "budget" and row["saving_low"] is not None:
            assert 0 <= row["saving_low"] <= row["saving_high"] <= row["saving_low"] + 2e-4
