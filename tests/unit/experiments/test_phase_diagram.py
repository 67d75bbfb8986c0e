"""Phase diagrams: settings and rows by another route."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve, solve_batch, train
from attsvm.theory import Trial, condition_b1, local_optimality
from attsvm.theory.tokens import compare_with_neighbours
from attsvm_paper.beyond import phase_diagram
from attsvm_paper.beyond.phase_diagram import Config, sweep, trials
from attsvm_paper.published.instances import draw, start_seeds

FULL = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32), (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
QUICK = (2, 4, 7, 12, 20), (2, 3, 4, 6, 10, 16, 28, 56, 112)


@pytest.mark.parametrize(
    ("effort", "values", "counts"), [("full", FULL, (100, 16, 16, 16)), ("quick", QUICK, (30, 5, 6, 6))]
)
def test_both_planes_are_covered_and_few_dimensions_trained(
    effort: Any, values: tuple[tuple[int, ...], ...], counts: tuple[int, ...]
) -> None:
    sizes, dimensions = values
    parts: tuple[tuple[Any, int], ...] = (("conditions", 0), ("D", 0), ("W", 3000), ("KQ", 1000))
    shapes = {(n, 5) for n in sizes} | {(5, T) for T in sizes}
    cells = sweep(effort)
    expected = {
        Config(n, T, d, part, steps, count)
        for (part, steps), count in zip(parts, counts, strict=True)
        for (n, T), d in itertools.product(shapes, dimensions)
        # Nothing is trained above 48 dimensions.
        if d <= 48 or steps == 0
    }
    assert set(cells) == expected
    assert len(cells) == len(expected)


@pytest.mark.parametrize("change", [{"n": 0}, {"T": 1}, {"d": 0}])
def test_impossible_sizes_are_refused(change: dict[str, Any]) -> None:
    least: dict[str, Any] = {"n": 1, "T": 2, "d": 1}
    assert Config(**least).trials == 100
    with pytest.raises(ValueError, match="at least 1, 2 and 1 were expected"):
        Config(**least | change)


def trial_of(seed: int, n: int, T: int, d: int) -> Trial:
    instances = draw([seed], n, T, d)
    return Trial.of(instances.data[0], instances.v[0])


@pytest.mark.parametrize("size", [(2, 3, 1), (4, 3, 2), (3, 3, 6)])
def test_conditions_are_those_of_the_theory(size: tuple[int, int, int]) -> None:
    seeds = np.arange(16)
    rows = trials(Config(*size), seeds)
    assert [row["seed"] for row in rows] == list(range(16))
    # At d = 1 nearly all are infeasible, and at d = 6 none.
    assert sum(row["feasible"] for row in rows) in ((2, 3) if size[2] == 1 else (16,) if size[2] == 6 else range(4, 14))
    for seed, row in enumerate(rows):
        trial = trial_of(seed, *size)
        strict, slack = condition_b1(trial)
        status = solve(trial.problem(trial.optimal)).status
        picked = np.random.default_rng(int(start_seeds([seed])[0])).integers(size[1], size=size[0])
        assert row == {
            "seed": seed,
            "feasible": status is Status.OPTIMAL,
            "infeasible": status is Status.INFEASIBLE,
            "b1_slack": status is Status.OPTIMAL and slack.holds,
            "b1_strict": status is Status.OPTIMAL and strict.holds,
            "random_feasible": solve(trial.problem(picked)).status is Status.OPTIMAL,
        }


def refutes(trial: Trial, i: int, t: int) -> bool:
    """Decide whether one exchange has an SVM of which the optimal token is no neighbour."""
    selected = trial.optimal.copy()
    selected[i] = t
    solution = solve(trial.problem(selected))
    return solution.status is Status.OPTIMAL and not solution.support[i, trial.optimal[i]]


def exchanges(trial: Trial) -> list[tuple[int, int]]:
    n, T = trial.gamma.shape
    return [(i, t) for i in range(n) for t in range(T) if t != trial.optimal[i]]


@pytest.mark.parametrize("size", [(2, 3, 2), (2, 3, 4), (2, 3, 1)])
def test_d_is_open_if_no_exchange_refutes_it(size: tuple[int, int, int]) -> None:
    seeds = range(10)
    for seed, row in zip(seeds, trials(Config(*size, "D"), list(seeds)), strict=True):
        trial = trial_of(seed, *size)
        refuted = any(refutes(trial, *one) for one in exchanges(trial))
        assert row["d_open"] == (None if not row["feasible"] else not refuted)
        assert "random_feasible" not in row
        assert "global" not in row


def test_some_exchanges_are_drawn_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_diagram, "EXCHANGES", 2)
    drawn = []
    for seed, row in enumerate(trials(Config(2, 3, 2, "D"), range(12))):
        trial = trial_of(seed, 2, 3, 2)
        if row["feasible"]:
            order = np.random.default_rng(int(start_seeds([seed])[0])).permutation(4)[:2]
            picked = [exchanges(trial)[k] for k in order]
            assert row["d_open"] == (not any(refutes(trial, *one) for one in picked))
            drawn.append(row["d_open"] != (not any(refutes(trial, *one) for one in exchanges(trial))))
    # The other two would have refuted some.
    assert any(drawn)


@pytest.mark.parametrize(
    ("part", "options", "norm"),
    [("W", {"lr": 0.1}, "frobenius"), ("KQ", {"parameterization": "KQ"}, "nuclear")],
)
def test_training_ends_at_the_optimal_tokens_at_a_local_direction_or_at_neither(
    part: Any, options: dict[str, Any], norm: Any
) -> None:
    seeds = np.array([0, 1, 5, 7])
    rows = trials(Config(3, 3, 2, part, 20), seeds)
    instances = draw(seeds, 3, 3, 2)
    trace = train(instances.data, instances.v, steps=20, init="torch", seed=start_seeds(seeds), **options)
    for b, row in enumerate(rows):
        trial = trial_of(int(seeds[b]), 3, 3, 2)
        selected = trial.logits(np.asarray(trace.W)[b, -1]).argmax(-1)
        found = bool((selected == trial.optimal).all())
        problem = SelectionProblem(trial.tokens, trial.queries, selected)
        locality = compare_with_neighbours(trial, solve(problem, norm))
        assert (row["global"], row["only_local"], row["neither"]) == (
            found, locality.holds and not found, not (locality.holds or found)
        )  # fmt: skip
        if norm == "frobenius":
            assert locality.holds == local_optimality(trial, selected).holds
    # One of each kind, two for one of them.
    kinds = {(row["global"], row["only_local"], row["neither"]) for row in rows}
    assert kinds == {(True, False, False), (False, True, False), (False, False, True)}


def test_the_norm_that_decides_locality_is_the_one_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    batch = solve_batch

    def spy(problems: Any, norm: Any) -> Any:
        norms.append(norm)
        return batch(problems, norm)

    monkeypatch.setattr(phase_diagram, "solve_batch", spy)
    for part in ("W", "KQ"):
        trials(Config(3, 3, 2, part, 5), [0])
    assert norms == ["frobenius", "nuclear"]


def test_a_batch_whose_runs_are_all_global_has_no_local_one() -> None:
    rows = trials(Config(2, 3, 6, "W", 200), [0, 1])
    assert [(row["global"], row["only_local"], row["neither"]) for row in rows] == [(True, False, False)] * 2
