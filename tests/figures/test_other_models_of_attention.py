"""Selectors, joint training, sequences, layers, similar tokens and regularisation: small runs of each."""

import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.functional import exact_softmax
from attsvm.theory.prompt import v_svm
from attsvm_paper.beyond import (
    adaptive_steps,
    joint_training,
    layered,
    layers,
    overparameterisation,
    query_temperature,
    regularisation,
    sequences,
    token_similarity,
)
from attsvm_paper.beyond.descent import descend
from attsvm_paper.beyond.measures import margin_share
from attsvm_paper.beyond.sparse_selectors import Config as Selectors
from attsvm_paper.published.instances import draw
from attsvm_paper.published.numerics import STEP
from figure_trials import check_report, run


@pytest.mark.parametrize(
    ("config", "least", "field"),
    [
        (adaptive_steps.Config, {"setting": "gaussian", "rule": "plain", "n": 1}, "n"),
        (joint_training.Config, {"d": 2, "head_lr": 0.1, "kind": "planted"}, "d"),
        (overparameterisation.Config, {"n": 1, "T": 2, "d": 1}, "T"),
        (query_temperature.Config, {"setting": "specificity", "n": 2, "T": 2}, "T"),
        (sequences.Config, {"setting": "sequence", "d": 2, "T": 2}, "T"),
    ],
)
def test_the_least_sizes_are_taken_and_smaller_ones_refused(config, least, field):
    assert getattr(config(**least), field) == least[field]
    with pytest.raises(ValueError, match="expected"):
        config(**least | {field: least[field] - 1})


def test_descent_through_a_softmax_is_that_of_train():
    instances = draw([3, 8], 3, 5, 4)
    trace = train(instances.data, instances.v, steps=20, lr=STEP)
    W = descend(instances, lambda logits, noise: (exact_softmax(logits), None), 20, [3, 8])
    # Twenty normalised steps expand rounding by far less than a million.
    np.testing.assert_allclose(W, trace.W[:, -1], atol=1e-10)


def test_the_share_of_the_largest_margin_is_one_for_the_solution_and_unknown_without_one():
    tokens, queries = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2), np.array([[1.0, 2.0]] * 2)
    solution = solve(SelectionProblem(tokens, queries, np.array([0, 0])))
    W = np.asarray(solution.W)
    assert margin_share(solution, 7 * W) == pytest.approx(1, rel=1e-9)
    assert margin_share(solution, -W) == pytest.approx(-1, rel=1e-9)
    assert np.isnan(margin_share(solution, 0 * W))
    # Equal sequences and queries with different tokens.
    assert np.isnan(margin_share(solve(SelectionProblem(tokens, queries, np.array([0, 1]))), W))


@pytest.mark.slow
def test_selectors_agree_and_sparsemax_stops():
    short, long = (run("sparse-selectors", Selectors(10, steps=steps, trials=6)) for steps in (500, 550))
    verdicts = check_report("sparse-selectors", short)
    for selector in ("sparsemax", "gumbel"):
        assert verdicts[f"sequences where {selector} selects as softmax does, d=10"].low > 1 / 8
    before, after = ([row for row in rows if row["selector"] == "sparsemax"] for rows in (short, long))
    # One token a sequence: the gradient is exactly zero and W stays. Softmax goes on.
    still = [(a["norm"], b["norm"]) for a, b in zip(before, after, strict=True) if a["kept"] == 1]
    assert still
    assert all(a == b for a, b in still)
    norms = [[row["norm"] for row in rows if row["selector"] == "softmax"] for rows in (short, long)]
    assert all(a < b for a, b in zip(*norms, strict=True))


def test_a_trained_head_goes_to_the_classifier_of_the_selected_tokens():
    cells = [joint_training.Config(20, rate, steps=200, trials=5) for rate in (0.0, 0.1)]
    verdicts = check_report("joint-training", run("joint-training", *cells))
    name = "correlation of v with the max-margin classifier of the selected tokens, random data, d=20"
    assert verdicts[f"{name}, head step 0.1"].low > verdicts[f"{name}, fixed head"].high


def test_margins_without_support_are_compared_with_those_with_it(monkeypatch):
    traces = []

    def spy(*given, **options):
        traces.append(train(*given, **options))
        return traces[-1]

    monkeypatch.setattr(joint_training, "train", spy)
    rows = run("joint-training", joint_training.Config(20, 0.1, steps=300, trials=6))
    data = draw([row["seed"] for row in rows], 8, 6, 20).data
    compared = 0
    for b, row in enumerate(rows):
        W, selected, at = traces[-1].W[b, -1], traces[-1].selected[b], np.arange(8)
        scores = (data.tokens[b] @ (data.queries[b] @ W.T)[..., None])[..., 0]
        own = scores[at, selected]
        scores[at, selected] = -np.inf
        leads = own - scores.max(-1)
        classifier = v_svm(data.tokens[b, at, selected], data.labels[b])
        support = np.asarray(classifier.margins)[:, 1] < 1 + 1e-6
        if row["relaxed"] is not None:
            compared += 1
            assert row["relaxed"] == pytest.approx(leads[~support].min() / leads[support].min(), rel=1e-9)
    assert compared
    verdicts = {one.quantity: one for one in joint_training.verdicts(rows)}
    (ratio,) = (one for quantity, one in verdicts.items() if "no support of v" in quantity)
    assert (ratio.trials, ratio.discarded) == (6, 6 - compared)


def test_planted_data_are_learned():
    rows = run("joint-training", joint_training.Config(10, 0.1, "planted", n=20, steps=200, trials=4))
    verdicts = check_report("joint-training", rows)
    assert verdicts["accuracy on fresh sequences, planted data, d=10, head step 0.1"].low > 0.6


def test_every_query_has_its_svm():
    cells = [sequences.Config(setting, 10, steps=600, trials=4) for setting in ("sequence", "causal")]
    rows = run("sequences", *cells)
    check_report("sequences", rows)
    for row in rows:
        assert row["correlation"] > 0.9
        assert row["control"] is None or row["correlation"] > row["control"]
    # On the same data and from the same start, only what a query sees tells the settings apart.
    seeds = [row["seed"] for row in rows if row["setting"] == "causal"]
    both, causal = (sequences.every_token(sequences.Config(one, 10, steps=31), seeds) for one in ("sequence", "causal"))
    assert all(one["curve"] != other["curve"] for one, other in zip(both, causal, strict=True))


def test_causal_queries_see_the_tokens_before_them_only(monkeypatch):
    masks = {}
    make = TokenData.from_sequences

    def spy(*arguments, **options):
        data = make(*arguments, **options)
        masks[options["causal"]] = data.mask
        return data

    monkeypatch.setattr(TokenData, "from_sequences", spy)
    for setting in ("sequence", "causal"):
        sequences.every_token(sequences.Config(setting, 5, steps=31, trials=1), [0])
    T = sequences.Config("causal", 5).T
    visible = np.asarray(masks[True]).reshape(-1, T, T)
    assert (visible == np.tri(T, dtype=bool)).all()
    assert masks[False] is None or np.asarray(masks[False]).all()


@pytest.mark.slow
def test_next_tokens_have_a_finite_part_on_cycles_only():
    size = {"d": 6, "n": 48, "T": 4, "vocabulary": 4, "steps": 1200, "trials": 5}
    rows = run("sequences", *(sequences.Config(setting, **size) for setting in ("acyclic", "cyclic")))
    check_report("sequences", rows)
    for row in rows:
        assert row["acyclic"] == (row["finite"] is None)
        if row["setting"] == "acyclic":
            assert row["acyclic"]
            assert row["correlation"] > 0.95
    cycles = [row for row in rows if not row["acyclic"]]
    assert cycles
    # The finite part settles while the norm grows: W = 0 is at distance 1.
    assert np.mean([row["finite"] for row in cycles]) < np.mean([row["finite_early"] for row in cycles])
    assert np.median([row["finite"] for row in cycles]) < 1


def test_chains_lead_where_their_labels_say():
    task = layered.chain_task(np.random.default_rng(3), 50, 6)
    keys, pointers, values = task.tokens[..., :6].argmax(-1), task.tokens[..., 6:12].argmax(-1), task.tokens[..., 12]
    assert task.chain is not None
    for i in range(50):
        at = 0
        for hop in range(2):
            at = int(np.flatnonzero(keys[i] == pointers[i, at])[0])
            assert at == task.chain[i, hop]
        assert task.labels[i] == values[i, at]
    assert (values[:, 0] == 0).all()


@pytest.mark.parametrize("between", ["residual", "linear", "mlp"])
def test_layers_compute_attention_of_each_trial_alone(between):
    seeds = np.array([4, 5])
    model = layered.Layers(seeds, 5, 2, between, first=True)
    tokens = torch.as_tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 5)))
    states, attention = model.states(tokens)
    for b in range(2):
        x = tokens[b]
        for layer in range(2):
            logits = torch.einsum("ntd,de,nqe->nqt", x, model.W[layer][b], x)
            weights = torch.softmax(logits, -1)
            torch.testing.assert_close(attention[layer][b], weights)
            mixture = weights @ x
            maps = [matrix[b] for matrix in model.maps[layer]]
            if between == "linear":
                mixture = mixture @ maps[0]
            elif between == "mlp":
                mixture = torch.relu(mixture @ maps[0]) @ maps[1]
            x = x + mixture
        torch.testing.assert_close(states[-1][b], x)


@pytest.mark.slow
def test_layers_are_closer_to_their_own_svm_than_to_shuffled_ones():
    cells = [
        layers.Config("chain", n=200, steps=60, trials=2),
        layers.Config("digits", n=60, T=16, steps=60, lr=0.01, trials=2),
    ]
    rows = run("layers", *cells)
    check_report("layers", rows)
    lead = [row["svm"] - row["control"] for row in rows]
    assert len(lead) == 8
    assert np.mean(lead) > 3 * np.std(lead, ddof=1) / np.sqrt(len(lead))


def test_kept_sets_hold_the_mass_and_no_smaller_set_does():
    weights = np.random.default_rng(1).dirichlet(np.full(6, 0.4), 40)
    sets = layers.kept_sets(weights)
    mass = np.where(sets, weights, 0).sum(1)
    assert (mass >= layers.KEPT_SHARE - 1e-12).all()
    smallest = np.where(sets, weights, np.inf).min(1)
    assert (mass - smallest < layers.KEPT_SHARE).all()


@pytest.mark.slow
def test_near_rivals_keep_w_from_its_svm():
    cells = [
        token_similarity.Config(distance, share, classes, n=12, steps=600, trials=4)
        for classes in token_similarity.CLASSES
        for distance, share in ((0.0, 1.0), (1.0, 0.1), (0.01, 0.1))
    ]
    rows = run("token-similarity", *cells)
    verdicts = check_report("token-similarity", rows)
    for data in ("digits", "text"):
        assert verdicts[f"log10 of the change of 1 - correlation, {data}, distance of rivals from 1 to 0.01"].low > 0


def test_weight_decay_is_a_point_of_the_path():
    cells = [regularisation.Config("decay", strength, trials=5) for strength in (1e-2, 1e-5)]
    rows = run("regularisation", *cells)
    verdicts = check_report("regularisation", rows)
    for row in rows:
        # The path's minimiser has the least risk of its norm; both are minimised to about 1e-9.
        assert row["excess"] > -1e-8
        # The descent ends at a gradient of 1e-4 of the decay.
        assert row["path"] <= regularisation.ON_PATH or row["excess"] < 1e-6
        assert row["path"] > regularisation.ON_PATH or row["excess"] > 1e-8
    slope = verdicts["growth of R over the norm of the SVM when weight decay falls by a factor e"]
    assert 0.5 < slope.low < slope.high < 1.0


def test_dropout_of_tokens_costs_margin():
    cells = [regularisation.Config("tokens", rate, steps=400, trials=6) for rate in (0.0, 0.5)]
    rows = run("regularisation", *cells)
    verdicts = check_report("regularisation", rows)
    assert all(row["same"] == 1 for row in rows if row["strength"] == 0)
    name = "margin as a share of the largest, dropout of tokens"
    assert verdicts[f"{name} 0.5"].high < verdicts[f"{name} 0"].measured


def test_sizes_and_early_stops_report():
    cells = [
        regularisation.Config("size", 0.0, d, 3, 4, heads, steps=200, trials=3) for d, heads in ((3, 1), (9, 1), (9, 2))
    ]
    rows = run("regularisation", *cells, regularisation.Config("early", steps=200, trials=3))
    verdicts = check_report("regularisation", rows)
    assert all(row["nuclear_rank"] <= row["rank"] for row in rows if row["rank"] is not None)
    # A trained head has most of the largest margin; one at its start may have none.
    assert all(row["margin"] > 0.5 for row in rows if row["topic"] == "size" and row["margin"] is not None)
    assert all(row["margin"] is not None for row in rows if row["topic"] == "size" and not row["infeasible"])
    assert verdicts["change of largest margin per norm, d from 3 to 9 at T=4"].trials == 6


def size_rows(d, values, heads=1, agree=0.0):
    fields = {"T": 4, "n": 3, "heads": heads, "infeasible": False, "margin": 0.9, "optimal": 1.0, "agree": agree}
    fields |= {"rank": 2, "nuclear_rank": 1, "local_optima": 5}
    return [fields | {"d": d, "largest": value, "local_optima": -value} for value in values]


def test_trends_rise_or_fall_where_two_standard_errors_say_so():
    rows = size_rows(3, [1.0, 1.1, 0.9]) + size_rows(9, [2.0, 2.1, 1.9])
    notes = {one.quantity: one.note for one in regularisation.size(rows)}
    end = "d from 3 to 9 at T=4"
    assert (
        "largest margin per norm rises: 1.00 at d=3, 2.00 at d=9" in notes[f"change of largest margin per norm, {end}"]
    )
    assert "selections falls" in notes[f"change of number of locally optimal selections, {end}"]
    assert "does not measurably change" in notes[f"change of rank of the nuclear SVM, {end}"]


@pytest.mark.parametrize(
    ("agree", "phrase"), [(0.96, "all heads select alike"), (0.95, "heads select different tokens")]
)
def test_heads_select_alike_in_more_than_95_of_a_hundred_sequences(agree, phrase):
    (verdict,) = (
        one for one in regularisation.size(size_rows(3, [1.0, 1.0], heads=2, agree=agree)) if "heads" in one.quantity
    )
    assert verdict.note.startswith(f"In {100 * agree:.0f} % of the sequences all heads agree: {phrase}.")
