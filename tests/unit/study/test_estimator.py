"""The scikit-learn face of the solver."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

from attsvm import AttentionSVM, MarginClassifier, SelectionProblem, TokenScaler, UnsolvedError, solve


def planted(n: int, seed: int = 0):
    random = np.random.default_rng(seed)
    W = np.random.default_rng(99).normal(size=(5, 4))
    tokens, queries = random.normal(size=(n, 6, 5)), random.normal(size=(n, 4))
    return tokens, queries, np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(1)


def test_fit_is_solve_and_training_selections_are_met() -> None:
    tokens, queries, selected = planted(20)
    model = AttentionSVM("nuclear", C=None, tol=1e-9).fit(tokens, selected, queries)
    # Two answers with a certified gap of 1e-9; their bits depend on which kernels are compiled by then.
    solution = solve(SelectionProblem(tokens, queries, selected), "nuclear")
    assert model.solution_.objective == pytest.approx(solution.objective, rel=2e-9)
    np.testing.assert_array_equal(model.W_, model.solution_.W)
    assert model.score(tokens, selected, queries) == 1.0


def test_more_data_predict_better() -> None:
    tokens, queries, selected = planted(300, seed=1)
    accuracy = []
    for n in (10, 200):
        train_tokens, train_queries, train_selected = planted(n)
        accuracy.append(
            AttentionSVM(C=None).fit(train_tokens, train_selected, train_queries).score(tokens, selected, queries)
        )
    assert accuracy[1] > accuracy[0] + 0.1


def test_hidden_tokens_are_never_predicted() -> None:
    tokens, queries, selected = planted(20)
    model = AttentionSVM(C=None).fit(tokens, selected, queries)
    mask = np.ones(tokens.shape[:2], dtype=bool)
    mask[np.arange(20), selected] = False
    assert not (model.predict(tokens, queries, mask=mask) == selected).any()


def test_self_attention_is_the_default_query() -> None:
    tokens, _, _ = planted(8)
    selected = np.full(8, 2)
    model = AttentionSVM(C=1.0).fit(tokens, selected)
    np.testing.assert_array_equal(model.predict(tokens), model.predict(tokens, tokens[:, 0]))
    np.testing.assert_array_equal(model.predict(tokens.tolist()), model.predict(tokens))


def test_infeasible_selections_raise_unless_the_margin_is_soft() -> None:
    tokens = np.ones((2, 3, 2))
    with pytest.raises(UnsolvedError, match="No W satisfies"):
        AttentionSVM(C=None).fit(tokens, [0, 1], np.ones((2, 2)))
    assert AttentionSVM(C=1.0).fit(tokens, [0, 1], np.ones((2, 2))).W_.shape == (2, 2)


def test_parameters_are_cloned_and_an_unfitted_model_says_so() -> None:
    model = AttentionSVM("nuclear", tol=1e-6, C=2.0, loss="squared_hinge")
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.predict(np.ones((1, 2, 2)))


def test_packed_rows_carry_their_queries_and_masks() -> None:
    tokens, queries, selected = planted(40)
    mask = np.random.default_rng(1).random(tokens.shape[:2]) < 0.8
    mask[np.arange(40), selected] = True
    X = AttentionSVM.pack(tokens, queries, mask)
    records, separate = (
        AttentionSVM(C=None).fit(X, selected),
        AttentionSVM(C=None).fit(tokens, selected, queries, mask=mask),
    )
    one, other = records.solution_, separate.solution_
    for name in ("tokens", "queries", "mask", "tied", "rejected"):
        np.testing.assert_array_equal(getattr(one.problem, name), getattr(other.problem, name))
    # Two answers to one strictly convex problem lie within sqrt(2 gap) of the solution each.
    apart_by = (np.sqrt(2 * max(one.gap, 0.0)) + np.sqrt(2 * max(other.gap, 0.0)) + 1e-14) * other.objective
    assert np.linalg.norm(records.W_ - separate.W_) <= apart_by
    scores = records.decision_function(X)
    np.testing.assert_array_equal(scores, records.decision_function(tokens, queries, mask=mask))
    order = np.random.default_rng(2).permutation(40)
    np.testing.assert_array_equal(records.predict(X[order]), records.predict(X)[order])


def test_search_and_cross_validation_score_with_the_queries() -> None:
    """The case that used to report .2, the share of the first token's guesses, where the truth is above .9."""
    tokens, queries, selected = planted(240)
    X = AttentionSVM.pack(tokens, queries)
    search = GridSearchCV(AttentionSVM(), {"C": [0.01, 100.0]}, cv=3).fit(X, selected)
    by_hand = []
    for train, test in KFold(3).split(X):
        model = AttentionSVM(C=search.best_params_["C"]).fit(tokens[train], selected[train], queries[train])
        by_hand.append(model.score(tokens[test], selected[test], queries[test]))
    assert search.best_score_ == pytest.approx(np.mean(by_hand))
    assert search.best_score_ > 0.85
    assert search.score(X, selected) == search.best_estimator_.score(tokens, selected, queries)
    train_rows, test_rows, train_selected, truth = train_test_split(X, selected, random_state=0)
    assert make_pipeline(AttentionSVM(C=100.0)).fit(train_rows, train_selected).score(test_rows, truth) > 0.85
    assert cross_val_score(AttentionSVM(C=100.0), X, selected, cv=3, scoring="accuracy").mean() > 0.85


def test_routed_metadata_reach_fit_and_score() -> None:
    tokens, queries, selected = planted(90)
    X = AttentionSVM.pack(tokens, queries)
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_validate(AttentionSVM(), tokens, selected, cv=3, params={"queries": queries})
    np.testing.assert_array_equal(scores["test_score"], cross_val_score(AttentionSVM(), X, selected, cv=3))


def test_queries_that_fit_had_are_never_guessed() -> None:
    tokens, queries, selected = planted(40)
    for model in (
        AttentionSVM(C=None).fit(tokens, selected, queries),
        AttentionSVM(C=None).fit(AttentionSVM.pack(tokens, queries), selected),
        AttentionSVM(C=1.0).fit(tokens, selected, tokens[:, 1]),  # of the tokens' own dimension: shapes do not tell
    ):
        for call in (model.predict, model.decision_function, lambda X, model=model: model.score(X, selected)):
            with pytest.raises(ValueError, match="queries is missing"):
                call(tokens)


def test_tags_say_three_dimensions() -> None:
    tags = get_tags(AttentionSVM())
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
    assert tags.target_tags.required


def test_input_that_does_not_fit_is_named() -> None:
    tokens, queries, selected = planted(8)
    X = AttentionSVM.pack(tokens, queries)
    model = AttentionSVM(C=None).fit(X, selected)
    for call, word in (
        (lambda: AttentionSVM.pack(tokens[0], queries), "tokens has shape"),
        (lambda: AttentionSVM.pack(tokens, queries, np.ones((8, 6))), "mask has shape"),
        (lambda: model.fit(X, selected, queries), "not both"),
        (lambda: model.fit(X[["tokens", "mask"]], selected), "fields tokens, mask"),
        (lambda: model.predict(tokens, queries[:, :2]), "queries has shape"),
        (lambda: AttentionSVM(C=None).fit(tokens[0], selected), "X has shape"),
    ):
        with pytest.raises(ValueError, match=word):
            call()


def test_a_pipeline_routes_what_its_model_asks_for() -> None:
    tokens, queries, selected = planted(60)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_pipeline(AttentionSVM(C=10.0)).fit(tokens, selected, queries=queries)
        shared = model.score(tokens, selected, queries=queries)
    assert shared == AttentionSVM(C=10.0).fit(tokens, selected, queries).score(tokens, selected, queries)


def test_queries_count_by_their_weight() -> None:
    tokens, queries, selected = planted(40)
    model = AttentionSVM(C=None).fit(tokens, selected, queries)
    wrong = np.where(np.arange(40) < 10, (selected + 1) % tokens.shape[1], selected)
    assert model.score(tokens, wrong, queries) == 0.75
    weight = np.where(np.arange(40) < 10, 3.0, 1.0)
    assert model.score(tokens, wrong, queries, sample_weight=weight) == 0.5
    with pytest.raises(ValueError, match=r"sample_weight has shape \(3,\); \(40,\) was expected"):
        model.score(tokens, selected, queries, sample_weight=np.ones(3))


def test_an_intercept_is_a_query_coordinate_of_one() -> None:
    tokens, queries, selected = planted(30)
    model = AttentionSVM(fit_intercept=True).fit(tokens, selected, queries)
    with_one = np.concatenate([queries, np.ones((30, 1))], axis=1)
    plain = AttentionSVM().fit(tokens, selected, with_one)
    np.testing.assert_array_equal(np.column_stack([model.W_, model.intercept_]), plain.W_)
    np.testing.assert_array_equal(model.predict(tokens, queries), plain.predict(tokens, with_one))
    scores = np.einsum("ntd,nd->nt", tokens, queries @ model.W_.T + model.intercept_)
    np.testing.assert_allclose(model.decision_function(tokens, queries), scores, rtol=0, atol=1e-12)


def test_estimators_share_their_defaults() -> None:
    attention, classifier = AttentionSVM().get_params(), MarginClassifier().get_params()
    shared = set(attention) & set(classifier) - {"fit_intercept"}
    assert shared == {"norm", "C", "loss", "tol", "time_limit"}
    assert {name: attention[name] for name in shared} == {name: classifier[name] for name in shared}


def test_a_selection_that_cannot_be_met_names_the_soft_margin() -> None:
    tokens = np.array([[[0.0], [1.0], [-1.0]]])
    with pytest.raises(UnsolvedError, match=r"give C=1\.0"):
        AttentionSVM(C=None).fit(tokens, [0], np.ones((1, 1)))
    assert AttentionSVM().fit(tokens, [0], np.ones((1, 1))).solution_.status.name == "OPTIMAL"


@pytest.mark.parametrize("packed", [True, False])
def test_the_scaler_standardises_visible_tokens_and_queries(packed: bool) -> None:
    tokens, queries, selected = planted(40)
    mask = np.ones(tokens.shape[:2], dtype=bool)
    mask[:10, -1] = not packed
    X = AttentionSVM.pack(7.0 + 3.0 * tokens, queries - 2.0, mask) if packed else 7.0 + 3.0 * tokens
    scaled = TokenScaler().fit_transform(X)
    inside = (scaled["tokens"] if packed else scaled)[mask]
    np.testing.assert_allclose(inside.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(inside.std(axis=0), 1.0, rtol=1e-12)
    if packed:
        np.testing.assert_allclose(scaled["queries"].mean(axis=0), 0.0, atol=1e-12)
        assert X["tokens"].min() > -10.0  # the rows given are not changed
        assert (scaled["mask"] == mask).all()
        search = GridSearchCV(make_pipeline(TokenScaler(), AttentionSVM()), {"attentionsvm__C": [0.1, 10.0]}, cv=3)
        assert search.fit(X, np.where(mask[np.arange(40), selected], selected, 0)).best_score_ > 0.3
    else:
        with pytest.raises(ValueError, match="queries in only one"):
            TokenScaler().fit(X).transform(AttentionSVM.pack(tokens, queries))
    with pytest.raises(ValueError, match=r"X has shape \(40, 4\)"):
        TokenScaler().fit(queries)


def test_the_scaler_is_cloned_and_refuses_before_fit() -> None:
    assert clone(TokenScaler(with_std=False)).get_params() == {"with_mean": True, "with_std": False}
    with pytest.raises(NotFittedError):
        TokenScaler().transform(np.zeros((2, 2, 2)))
    assert get_tags(TokenScaler()).input_tags.three_d_array
    assert not get_tags(TokenScaler()).input_tags.two_d_array
