"""The scikit-learn face of the solver."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from attsvm import AttentionSVM, SelectionProblem, UnsolvedError, solve


def planted(n: int, seed: int = 0):
    random = np.random.default_rng(seed)
    W = np.random.default_rng(99).normal(size=(5, 4))
    tokens, queries = random.normal(size=(n, 6, 5)), random.normal(size=(n, 4))
    return tokens, queries, np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(1)


def test_fit_is_solve_and_training_selections_are_met() -> None:
    tokens, queries, selected = planted(20)
    model = AttentionSVM("nuclear").fit(tokens, selected, queries)
    np.testing.assert_array_equal(model.W_, solve(SelectionProblem(tokens, queries, selected), "nuclear").W)
    assert model.score(tokens, selected, queries) == 1.0


def test_more_data_predict_better() -> None:
    tokens, queries, selected = planted(300, seed=1)
    accuracy = []
    for n in (10, 200):
        seen, asked, chosen = planted(n)
        accuracy.append(AttentionSVM().fit(seen, chosen, asked).score(tokens, selected, queries))
    assert accuracy[1] > accuracy[0] + 0.1


def test_hidden_tokens_are_never_predicted() -> None:
    tokens, queries, selected = planted(20)
    model = AttentionSVM().fit(tokens, selected, queries)
    mask = np.ones(tokens.shape[:2], dtype=bool)
    mask[np.arange(20), selected] = False
    assert not (model.predict(tokens, queries, mask=mask) == selected).any()


def test_self_attention_is_the_default_query() -> None:
    tokens, _, _ = planted(8)
    selected = np.full(8, 2)
    model = AttentionSVM(C=1.0).fit(tokens, selected)
    np.testing.assert_array_equal(model.predict(tokens), model.predict(tokens, tokens[:, 0]))


def test_infeasible_selections_raise_unless_the_margin_is_soft() -> None:
    tokens = np.ones((2, 3, 2))
    with pytest.raises(UnsolvedError, match="No W satisfies"):
        AttentionSVM().fit(tokens, [0, 1], np.ones((2, 2)))
    assert AttentionSVM(C=1.0).fit(tokens, [0, 1], np.ones((2, 2))).W_.shape == (2, 2)


def test_parameters_are_cloned_and_an_unfitted_model_says_so() -> None:
    model = AttentionSVM("nuclear", tol=1e-6, C=2.0, loss="squared_hinge")
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.predict(np.ones((1, 2, 2)))
