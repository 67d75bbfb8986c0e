"""Figures 9 and 12: a concave head keeps sparsemax of the scores, and the filter of p. 16 raises the printed counts."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm_paper.figures import lambda_verdicts
from attsvm_paper.figures.lambda_head import Config, best_attention, constrained, instance
from attsvm_paper.figures.lambda_verdicts import EDGE, count_points, passes
from figure_trials import check_report, run


@pytest.mark.slow
def test_training_keeps_what_lemma_6_says():
    cells = [Config(lam, steps=3000, trials=40) for lam in (0.2, 1.0, 1.4)] + [Config(2.0, "lemma", trials=200)]
    rows = run("lambda-head", *cells, Config(0.0, "lemma", tau=3, trials=20))
    verdicts = check_report("lambda-head", rows)
    trained = [row for row in rows if row["numerics"] == "exact"]
    # Normalised steps of 0.1 change the logits of unit tokens by at most 0.1, and attention by a quarter of it.
    assert np.mean([row["off"] for row in trained]) < 0.025
    with_svm = [row for row in trained if row["equivalent"] is not None]
    assert np.mean([row["equivalent"][-1] < row["mm"][-1] for row in with_svm]) > 0.8
    assert verdicts["tokens selected, lambda=0.2"].verdict != "differs"
    assert verdicts["tokens that Lemma 6 keeps, lambda=2"].measured < 9.3
    # The filter keeps instances that select every token, and with them a larger mean.
    for lam in (1.0, 1.4):
        cell = [row for row in trained if row["lam"] == lam]
        assert np.mean([row["count"] for row in cell if passes(row, EDGE)]) > np.mean([row["count"] for row in cell])
    tests = {test.reading: test for test in lambda_verdicts.joint(rows) if test.figure == "Fig. 9a"}
    assert len(tests) == 2
    assert len(count_points(trained, 1e-8)) == 3


def test_best_attention_beats_its_neighbours():
    rng = np.random.default_rng(0)
    for seed in range(5):
        tokens, _, v = instance(seed, 6, 8)
        best = best_attention(tokens[None], v[None], 0.5)[0]

        def head(s, tokens=tokens, v=v):
            x = s @ tokens[0]
            return x @ v - 0.5 * (x**2).sum(-1)

        others = rng.dirichlet(np.ones(6), 200)
        assert (head(best) >= head(0.9 * best + 0.1 * others)).all()


def test_the_constraint_on_tau_bounds_what_is_kept():
    for seed in range(20):
        lam, tokens, v = constrained(seed, 4, 10, 10)
        gamma = np.sort(tokens[0] @ v)[::-1]
        assert gamma[0] - gamma[1] < lam < 2 * (gamma[3] - gamma[4])
        assert 2 <= (best_attention(tokens[None], v[None], lam) > 0).sum() <= 4
