"""The atlas: its instances are the models they stand for, its shares one where they must be, its limits limits."""

import re

import numpy as np
import pytest
import torch

from attsvm import solve
from attsvm.training.optimisers.steepest import MirrorDescent
from attsvm.training.risk.objective import Objective
from attsvm_paper.beyond.atlas import (
    LIMIT_FLOOR,
    SIZES,
    Config,
    Score,
    cells,
    horizons,
    outcomes,
    scores,
    trials,
    verdicts,
)
from attsvm_paper.beyond.atlas_cells import (
    MODELS,
    NORMS,
    OPTIMISERS,
    THEOREMS,
    expectations,
    optimizer_of,
    parameterization_of,
)
from attsvm_paper.beyond.atlas_models import _NOISE, Sizes, margin, problem_of, smallest_norms, training_set

SEEDS = [3, 4]


def sizes(model):
    return Sizes(model, *SIZES[model])


def test_every_pair_is_expected_once_and_there_are_as_many_as_promised():
    assert len(expectations()) == sum(len(OPTIMISERS[parameterization_of(model)]) for model in MODELS)
    assert all(len(names) >= 15 for names in OPTIMISERS.values())
    assert len(NORMS) == 8
    assert all(expectations()[pair].from_theorem for pair in THEOREMS)
    assert all(case.reason for case in expectations().values())


@pytest.mark.parametrize("model", ["multiclass", "next-token"])
def test_risks_are_cross_entropies_with_the_true_distribution(model):
    data = training_set(SEEDS, sizes(model))
    objective = Objective.from_data(data.data, data.head, data.loss)
    if data.weight is not None:
        objective = objective.weighted(torch.as_tensor(data.weight))
    W = torch.randn(2, SIZES[model][1], 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for b in range(2):
        inputs = torch.as_tensor(data.data.queries[b])
        targets = torch.as_tensor(data.data.values[b, ..., 0])
        weight = torch.ones(len(inputs)) if data.weight is None else torch.as_tensor(data.weight[b])
        entropy = -(targets * torch.log_softmax(inputs @ W[b].T, -1)).sum(-1)
        assert float(objective.value(W)[b]) == pytest.approx(float((weight * entropy).sum() / weight.sum()))
    if model == "next-token":
        # Two rows a context, with probabilities that add up to one.
        np.testing.assert_allclose(data.weight.reshape(2, -1, 2).sum(-1), 1)


@pytest.mark.parametrize("model", MODELS)
def test_the_solution_in_a_norm_has_the_whole_share_and_no_other_matrix_more(model):
    rng = np.random.default_rng(0)
    data = training_set(SEEDS, sizes(model))
    selected = Objective.from_data(data.data, data.head, data.loss).token_scores().argmax(-1).numpy()
    problem = problem_of(SEEDS[0], sizes(model), selected[0])
    bounds = smallest_norms(SEEDS[0], sizes(model), selected[0])
    for name, norm in NORMS.items():
        solution = solve(problem, norm, tol=1e-6)
        low, high = bounds[name]
        length = solution.norm.value(solution.W)
        # Certified to 1e-6; ties of the solution hold to rounding.
        assert margin(problem, solution.W) / length * low <= 1 + 1e-9
        assert margin(problem, solution.W) / length * high >= 1 - 2e-6
        other = solution.W + 0.01 * np.abs(solution.W).max() * rng.standard_normal(solution.W.shape)
        if not problem.has_ties:
            assert margin(problem, other) / solution.norm.value(other) * low <= 1 + 1e-9


def test_the_margin_with_ties_is_that_of_the_worst_selected_word():
    problem = problem_of(SEEDS[0], sizes("next-token"), np.empty(0))
    W = np.random.default_rng(1).standard_normal((6, 8))
    scores = problem.queries @ W.T
    leads = [scores[i][problem.selected[i]].min() - scores[i][~problem.selected[i]].max() for i in range(len(scores))]
    assert margin(problem, W) == pytest.approx(min(leads))


def rows_of(model, name, shares):
    """Rows of two instances whose share in the max norm is given at five horizons, half of it in the others."""
    return [
        {"model": model, "optimiser": name, "seed": seed, "horizon": horizon, "trials": 2, "ended": False}
        | {f"{norm}_{end}": share if norm == "max" else share / 2 for norm in NORMS for end in ("low", "high")}
        for seed in (1, 2)
        for horizon, share in zip((1, 3, 10, 32, 100), shares, strict=True)
    ]


FAST, STILL, LOGARITHM = (0.9, 0.97, 0.99, 0.997, 0.999), (0.5,) * 5, (0.2, 0.35, 0.47, 0.57, 0.65)


def judged():
    rows = rows_of("multiclass", "sign", FAST) + rows_of("multiclass", "Lion", STILL)
    rows += rows_of("multiclass", "Adam", LOGARITHM) + rows_of("multiclass", "gradient", FAST)
    return rows + rows_of("attention", "sign", FAST) + rows_of("attention", "signum", LOGARITHM)


def test_cells_are_judged_against_theorem_and_prediction():
    rows = judged()
    kinds = {(model, name, norm): (cell.outcome, kind) for model, name, norm, cell, kind in outcomes(rows)}
    assert kinds["multiclass", "sign", "max"] == ("one", "settled")
    assert kinds["multiclass", "sign", "l_1"] == ("below", "hit")
    assert kinds["multiclass", "Lion", "max"] == ("below", "miss")
    assert kinds["multiclass", "Adam", "max"] == ("undecided", "undecided")
    assert kinds["multiclass", "gradient", "max"] == ("one", "miss")
    assert kinds["multiclass", "gradient", "frobenius"] == ("below", "slow")
    assert kinds["attention", "sign", "max"] == ("one", "hit")
    low, high = cells(rows)["multiclass", "sign", "max"].interval
    assert LIMIT_FLOOR <= low <= 1 == high
    # Two equal instances: the interval is of the records alone, and records between the horizons count.
    assert cells(rows)["multiclass", "sign", "max"].shares.shape == (2, 5)
    incomplete = [row | ({"max_low": None} if row["horizon"] == 1 and row["seed"] == 1 else {}) for row in rows]
    assert len(cells(incomplete)["multiclass", "sign", "max"].shares) == 1


def test_the_baseline_and_the_predictions_that_reach_one_are_told_first():
    """By hand: of the cells expected at 1, two are theorems; one hits, one misses, one rises like a logarithm."""
    rows = judged()
    score = scores(list(outcomes(rows)))
    assert list(score) == ["reaching 1", "never 1", "all"]
    assert score["reaching 1"] == Score(1, 1, 1)
    # Open cells: 48 less the two theorems. Every cell of Adam and of Signum on attention rises like a logarithm, and of
    # the others "sign" on attention and "gradient" in the max norm reach 1.
    undecided = sum(kind == "undecided" for *_, kind in outcomes(rows))
    assert score["never 1"] == Score(46 - 2 - undecided, 2, undecided)
    assert score["all"].hits + score["all"].misses == 46 - undecided
    first, second, third, *others = verdicts(rows)
    assert first.quantity == "predictions of a share that tends to 1 that came out, all models"
    assert first.note == "1 hit, 1 miss, 1 undecided."
    assert first.measured == 0.5
    assert second.quantity == 'open cells that the baseline "never 1" gets right, all models'
    assert third.quantity == "open cells that came out as predicted, all models"
    assert not any("all models" in one.quantity for one in others)


def test_the_verdicts_of_a_row_count_its_own_norms_and_name_the_expected_one() -> None:
    notes = {one.quantity: one.note for one in verdicts(judged())}
    (theorem,) = (note for quantity, note in notes.items() if "max norm, sign, " in quantity)
    # Half the share of the max norm stays below 1 in each of the others.
    others = len(NORMS) - 1
    assert f"The intervals of {others} of {others} other norms exclude 1." in theorem
    for (model, name), case in expectations().items():
        note = notes.get(f"limit of the largest share, {name}, {MODELS[model]}")
        assert note is None or f"Expected: {case.norm or 'none'}. " in note
    assert {"Expected: none.", "Expected: max."} <= {
        found for note in notes.values() for found in re.findall(r"Expected: \w+\.", note)
    }


def test_horizons_rise_over_two_decades_at_equal_ratios() -> None:
    assert horizons(10_000) == [100, 1000, 10_000]
    assert horizons(10_000, 2) == [round(100 * 10 ** (k / 2)) for k in range(5)]
    assert horizons(1, 2) == [1, 2, 3, 4, 5]


def test_a_rule_with_a_power_in_its_name_has_that_power() -> None:
    rule = optimizer_of("attention", "mirror, p=3")
    assert isinstance(rule, MirrorDescent)
    assert rule.p == 3


def test_inputs_lie_around_the_means_of_their_classes() -> None:
    data = training_set(SEEDS, sizes("multiclass")).data
    n, T, _ = SIZES["multiclass"]
    for inputs in data.queries:
        # Means have length one.
        assert (np.abs(np.linalg.norm(inputs, axis=-1) - 1) <= _NOISE).all()
        for label in range(T):
            own = inputs[np.arange(n) % T == label]
            assert (np.linalg.norm(own[:, None] - own, axis=-1) <= 2 * _NOISE).all()


def test_a_row_does_not_depend_on_the_batch_it_is_computed_in():
    config = Config("next-token", "normalised", *SIZES["next-token"], steps=50, trials=2)
    both, single = trials(config, SEEDS), trials(config, SEEDS[1:])
    assert [row["horizon"] for row in single] == horizons(50, 2)
    for one, two in zip([row for row in both if row["seed"] == SEEDS[1]], single, strict=True):
        assert all(one[f"{norm}_low"] is not None for norm in NORMS)
        for key, value in one.items():
            # Fifty normalised steps expand rounding by less than 1e6.
            assert value == pytest.approx(two[key], abs=1e-10)


def test_cells_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="model is 'rnn'"):
        Config("rnn", "sign", 1, 1, 1)
    with pytest.raises(ValueError, match="optimiser is 'momentum'"):
        Config("factors", "momentum", 1, 1, 1)
