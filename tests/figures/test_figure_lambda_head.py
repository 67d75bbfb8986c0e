"""Figures 9 and 12: a concave head keeps sparsemax of the scores, and W its SVM equivalent."""

import numpy as np

from attsvm.experiments.figures.lambda_head import Config, best_attention, instance
from figure_trials import check_report, run


def test_training_keeps_what_lemma_6_says():
    cells = [Config(0.2, steps=3000, trials=20), Config(1.0, steps=3000, trials=20), Config(2.0, "lemma", trials=200)]
    rows = run("lambda-head", *cells)
    found = check_report("lambda-head", rows)
    trained = [row for row in rows if row["numerics"] == "exact"]
    # Normalised steps of 0.1 change the logits of unit tokens by at most 0.1, and attention by a quarter of it.
    assert np.mean([row["off"] for row in trained]) < 0.025
    assert np.mean([row["equivalent"] < row["mm"] for row in trained if row["equivalent"] is not None]) > 0.8
    assert found["tokens selected, lambda=0.2"].verdict == "agrees"
    assert found["tokens that Lemma 6 keeps, lambda=2"].verdict == "differs"


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
