"""Basins: settings, counts of selections and directions, where starts end, and the plane of a picture."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.data.synthetic import random_trial
from attsvm.data.token_data import TokenData
from attsvm.theory import Trial, explore, map_basins
from attsvm_paper.beyond.basins import (
    DIMENSIONS,
    REACH,
    SCALES,
    Config,
    _of_scale,  # pyright: ignore[reportPrivateUsage]
    plane_basis,
    sweep,
    trials,
)
from attsvm_paper.published.instances import start_seeds


@pytest.mark.parametrize(
    ("effort", "dimensions", "starts", "count", "grid"),
    [("full", DIMENSIONS, 48, 100, 61), ("quick", (2, 4, 6, 12, 16), 16, 24, 31)],
)
def test_a_sweep_has_every_dimension_and_pictures_in_the_plane(
    effort: Any, dimensions: tuple[int, ...], starts: int, count: int, grid: int
) -> None:
    *cells, pictures = sweep(effort)
    assert [(one.d, one.starts, one.trials, one.grid) for one in cells] == [(d, starts, count, 0) for d in dimensions]
    assert (pictures.d, pictures.starts, pictures.trials, pictures.grid) == (2, 1, 8, grid)
    # An odd number of points per side has zero in the middle.
    assert grid % 2 == 1
    # The number of selections, T^n, is small enough for all to be enumerated.
    assert {one.T**one.n for one in (*cells, pictures)} == {27}


def test_the_least_sizes_are_taken_and_smaller_ones_refused() -> None:
    least = {"d": 1, "n": 1, "T": 2, "starts": 1, "grid": 0}
    Config(**least)
    for name, size in least.items():
        with pytest.raises(ValueError, match="T of at least 2 and grid of at least 0 were expected"):
            Config(**least | {name: size - 1})


def trial_of(seed: int, n: int, T: int, d: int) -> Trial:
    tokens, queries, labels, v = random_trial(np.random.default_rng(seed), n, T, d)
    return Trial.of(TokenData(tokens, queries, labels), v)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (2, 1)])
def test_selections_are_counted_by_their_svms(n: int, d: int) -> None:
    T, seeds = 3, [0, 1, 2]
    rows = trials(Config(d, n, T, starts=1, steps=1), seeds)
    for seed, row in zip(seeds, rows, strict=True):
        tokens, queries, labels, v = random_trial(np.random.default_rng(seed), n, T, d)
        scores = labels[:, None] * (tokens @ v)
        best = tuple(scores.argmax(1).tolist())
        lengths, local = {}, {}
        for selected in itertools.product(range(T), repeat=n):
            solution = solve(SelectionProblem(tokens, queries, selected))
            if np.isfinite(solution.objective):
                lengths[selected] = float(solution.objective)
                own = [scores[i, t] for i, t in enumerate(selected)]
                margins = np.array(
                    [(tokens[i, t] - tokens[i]) @ solution.W @ queries[i] for i, t in enumerate(selected)]
                )
                # Its rivals at margin one must have lower scores.
                rivals = np.abs(margins - 1) < 1e-6
                local[selected] = not (rivals & (scores >= np.array(own)[:, None])).any()
        ranked = sorted((one for one in lengths if local[one]), key=lambda one: lengths[one])
        assert (row["seed"], row["selections"]) == (seed, T**n)
        assert row["realisable"] == len(lengths)
        assert row["local"] == len(ranked)
        assert row["feasible"] == (best in lengths)
        assert row["infeasible"] == (best not in lengths)
        assert row["best"] == (ranked.index(best) if best in lengths else -1)
    assert {row["feasible"] for row in rows} == ({True, False} if d == 1 else {True})


@pytest.mark.parametrize(
    ("d", "steps", "seeds"),
    # Of the last two a start of ones would end elsewhere than zero.
    [(2, 300, [0, 1, 2]), (1, 40, [1, 2]), (3, 100, [0, 1, 3])],
)
def test_starts_of_every_length_are_followed_to_their_ends(d: int, steps: int, seeds: list[int]) -> None:
    n, count = 2, 3
    rows = trials(Config(d, n, 3, starts=count, steps=steps), seeds)
    for seed, start, row in zip(seeds, start_seeds(seeds), rows, strict=True):
        trial = trial_of(seed, n, 3, d)
        unit = np.random.default_rng(start).standard_normal((count, d, d))
        ends = []
        for scale in SCALES:
            starts = np.array([scale * one / np.sqrt((one**2).sum()) for one in unit])
            ends.append(map_basins(trial, starts, steps=steps).destination.tolist())
        best = row["best"]
        assert row["to_global"] == [sum(k == best >= 0 for k in one) / count for one in ends]
        assert row["to_none"] == [sum(k == -1 for k in one) / count for one in ends]
        assert row["reached"] == len({k for one in ends for k in one if k != -1})
        (zero,) = map_basins(trial, np.zeros((1, d, d)), steps=steps).destination
        assert row["zero_global"] == (zero == best and best >= 0)
        assert "plane" not in row
    assert any(row["zero_global"] for row in rows)
    assert {share for row in rows for share in row["to_global"]} >= {0.0, 1.0}


def test_a_picture_holds_the_ends_of_a_plane_of_starts_row_by_row() -> None:
    side, seeds, steps = 3, [0, 1, 3], 60
    rows = trials(Config(2, 2, 3, starts=1, grid=side, steps=steps), seeds)
    for seed, row in zip(seeds, rows, strict=True):
        trial = trial_of(seed, 2, 3, 2)
        landscape = explore(trial)
        assert "to_global" not in row
        if len(landscape.directions) == 1:
            assert row["plane"] is None
            continue
        first, second = plane_basis([one.W for one in landscape.directions[:2]])
        places = [-REACH, 0, REACH]
        starts = np.array([x * first + y * second for y in places for x in places])
        assert row["plane"] == map_basins(trial, starts, steps=steps).destination.tolist()
    assert [row["plane"] is None for row in rows] == [True, False, False]
    assert [row["local"] for row in rows] == [1, 3, 2]
    # Far along the shortest direction lies its own basin.
    assert rows[1]["plane"][5] == 0


def test_a_plane_is_spanned_by_its_first_direction_and_what_the_other_adds() -> None:
    rng = np.random.default_rng(2)
    pair = [rng.standard_normal((2, 3)) for _ in range(2)]
    first, second = plane_basis(pair)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert np.linalg.norm(second) == pytest.approx(1)
    assert np.vdot(first, second) == pytest.approx(0)
    np.testing.assert_allclose(np.linalg.norm(pair[0]) * first, pair[0])
    a, b = np.vdot(first, pair[1]), np.vdot(second, pair[1])
    np.testing.assert_allclose(a * first + b * second, pair[1])
    assert b > 0


def test_a_row_does_not_depend_on_the_batch_it_is_computed_in() -> None:
    config = Config(2, 2, 3, starts=2, steps=20)
    assert trials(config, [1, 2])[1:] == trials(config, [2])


def test_starts_count_where_the_optimal_tokens_can_be_selected() -> None:
    row = {"to_global": [0.25, 0.5, 0.75], "feasible": True}
    assert [_of_scale(at)(row) for at in range(3)] == [0.25, 0.5, 0.75]
    assert _of_scale(0)(row | {"feasible": False}) is None
