"""The atlas: its settings, what it measures of a run, and what its verdicts say of hand-made rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import solve, train
from attsvm.core.norms import get_norm
from attsvm.theory.limits import LIMIT_FLOOR
from attsvm_paper.beyond import atlas, atlas_models
from attsvm_paper.beyond.atlas import SIZES, Cell, Config, horizons, outcomes, sweep, trials
from attsvm_paper.beyond.atlas import verdicts as verdicts_of
from attsvm_paper.beyond.atlas_cells import MODELS, NORMS, OPTIMISERS, optimizer_of, parameterization_of
from attsvm_paper.beyond.atlas_models import Sizes, problem_of, training_set
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import start_seeds


@pytest.mark.parametrize(("effort", "steps", "count"), [("quick", 10_000, 8), ("full", 100_000, 20)])
def test_every_optimiser_runs_on_every_model(effort: Any, steps: int, count: int) -> None:
    """docs/findings.md: 10,000 steps, eight instances, and the sizes of each model."""
    cells = sweep(effort)
    assert [(one.model, one.optimiser) for one in cells] == [
        (model, name) for model in MODELS for name in OPTIMISERS[parameterization_of(model)]
    ]
    assert {(one.steps, one.trials) for one in cells} == {(steps, count)}
    assert {one.model: (one.n, one.T, one.d) for one in cells} == {
        "attention": (6, 6, 8), "factors": (6, 6, 8), "multiclass": (15, 5, 8), "next-token": (8, 6, 8)
    }  # fmt: skip
    assert horizons(10_000, 2) == [100, 316, 1000, 3162, 10_000]


@pytest.fixture
def few_norms(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str | float]]:
    """Certify margins in three norms alone; the cache does not know which were."""
    norms = {name: NORMS[name] for name in ("frobenius", "l_1", "max")}
    for module in (atlas, atlas_models):
        monkeypatch.setattr(module, "NORMS", norms)
    atlas_models._smallest_norms.cache_clear()
    yield norms
    atlas_models._smallest_norms.cache_clear()


@pytest.mark.parametrize(("model", "name"), [("attention", "sign"), ("factors", "normalised"), ("multiclass", "Muon")])
def test_a_row_is_the_certified_share_in_every_norm(model: str, name: str, few_norms: dict[str, str | float]) -> None:
    n, T, d, seeds, steps = 2, 3, 3, [5, 6], 60
    sizes = Sizes(model, n, T, d)
    data = training_set(seeds, sizes)
    marks = horizons(steps, 2)
    trace = train(
        data.data, data.head, loss=data.loss, optimizer=optimizer_of(model, name), record_every=marks, steps=steps,
        parameterization=parameterization_of(model), seed=start_seeds(seeds),
    )  # fmt: skip
    rows = trials(Config(model, name, n, T, d, steps=steps), seeds)
    assert [(row["seed"], row["horizon"]) for row in rows] == [(seed, mark) for seed in seeds for mark in marks]
    for at, row in enumerate(rows):
        b, record = divmod(at, len(marks))
        W = np.asarray(trace.W)[b, record + 1]
        selected = np.asarray(trace.attention)[b, record + 1].argmax(-1)
        assert not row["ended"]
        problem = problem_of(seeds[b], sizes, selected)
        for key, norm in few_norms.items():
            low, high = row[f"{key}_low"], row[f"{key}_high"]
            certified = solve(problem, get_norm(norm), tol=1e-6).certified
            assert (low is None) == (not np.isfinite(certified.upper_bound)), key
            if low is not None:
                unit = problem.apply(W)[problem.rejected].min() / get_norm(norm).value(W)
                assert low <= high
                # Both are certified to 1e-6.
                assert low == pytest.approx(unit * certified.lower_bound, rel=3e-6)
                assert high == pytest.approx(unit * certified.upper_bound, rel=3e-6)


def test_a_run_without_a_margin_has_no_share(
    monkeypatch: pytest.MonkeyPatch, few_norms: dict[str, str | float]
) -> None:
    """The W of a fake run are zero, then of length two and four; the tokens of its last records cannot be selected."""
    sizes, seed = Sizes("attention", 2, 3, 1), 1
    # On the line W selects by its sign alone.
    one, none = [0, 1], [1, 0]
    sign = np.sign(solve(problem_of(seed, sizes, np.array(one))).W)
    selections = [one, one, one, one, none, none]
    trace = SimpleNamespace(
        W=np.stack([0 * sign, 0 * sign, 2 * sign, 4 * sign, sign, sign])[None],
        attention=np.eye(3)[np.array(selections)][None],
        last_step=np.array([30]),
    )
    monkeypatch.setattr(atlas, "train", lambda *_, **__: trace)
    rows = trials(Config("attention", "sign", 2, 3, 1, steps=100), [seed])
    assert [row["horizon"] for row in rows] == [1, 3, 10, 32, 100]
    assert [row["ended"] for row in rows] == [False, False, False, True, True]
    for row in (rows[0], *rows[3:]):
        assert all(row[f"{name}_{end}"] is None for name in few_norms for end in ("low", "high"))
    for row in rows[1:3]:
        # The one direction there is has the largest margin, in every norm.
        for name in few_norms:
            assert row[f"{name}_low"] <= 1 + 1e-9
            assert row[f"{name}_low"] == pytest.approx(1, abs=2e-6)
            assert row[f"{name}_high"] == pytest.approx(1, abs=2e-6)


def test_a_negative_share_has_its_bounds_in_order(
    monkeypatch: pytest.MonkeyPatch, few_norms: dict[str, str | float]
) -> None:
    sizes, seed, selected = Sizes("attention", 2, 3, 2), 0, np.array([0, 1])
    problem = problem_of(seed, sizes, selected)
    W = -solve(problem).W
    trace = SimpleNamespace(
        W=np.stack([W] * 6)[None], attention=np.eye(3)[np.array([selected] * 6)][None], last_step=np.array([100])
    )
    monkeypatch.setattr(atlas, "train", lambda *_, **__: trace)
    for row in trials(Config("attention", "sign", 2, 3, 2, steps=100), [seed]):
        assert all(row[f"{name}_low"] <= row[f"{name}_high"] < 0 for name in few_norms)
        assert not row["ended"]


@pytest.mark.parametrize(("interval", "outcome"), [
    ((LIMIT_FLOOR, 1.0), "one"), ((0.5, LIMIT_FLOOR), "undecided"), ((0.9, 1.0), "undecided"), ((0.5, 0.98), "below"),
])  # fmt: skip
def test_a_share_tends_to_one_from_the_floor_on(interval: tuple[float, float], outcome: str) -> None:
    assert Cell(np.zeros((1, 5)), interval).outcome == outcome


FAST, STILL, LOGARITHM = (0.9, 0.97, 0.99, 0.997, 0.999), (0.5,) * 5, (0.2, 0.35, 0.47, 0.57, 0.65)


def rows_of(model: str, name: str, count: int = 3, **shares: tuple[float | None, ...]) -> list[Row]:
    """Rows of `count` instances of three trials; shares of norms that are not named stand still at one half."""
    rows = []
    for at, horizon in enumerate((1, 3, 10, 32, 100)):
        ends: Row = {}
        for norm in NORMS:
            share = shares.get(norm, STILL)[at]
            ends |= {f"{norm}_low": None if share is None else share - 0.01,
                     f"{norm}_high": None if share is None else share + 0.01}  # fmt: skip
        rows += [
            {"model": model, "optimiser": name, "seed": seed, "horizon": horizon, "trials": 3} | ends
            for seed in range(count)
        ]
    return rows


def found(rows: list[Row]) -> dict[str, Verdict]:
    return {one.quantity: one for one in verdicts_of(rows)}


COURSE = "Shares at the horizons: 0.9000, 0.9700, 0.9900, 0.9970, 0.9990. "


def test_a_settled_cell_is_told_with_the_norms_that_are_excluded() -> None:
    rows = rows_of("multiclass", "sign", 2, max=FAST, l_3=FAST, spectral=LOGARITHM)
    one = found(rows)["limit of the share in the max norm, sign, multiclass classification (theorem)"]
    low, high = limit_interval(np.array([FAST, FAST]))
    assert (one.low, one.high) == pytest.approx((low, high))
    assert one.measured == pytest.approx((low + high) / 2)
    assert (one.trials, one.infeasible) == (3, 1)
    # Those of l_3 and of the spectral norm still rise.
    assert one.note == (
        COURSE + "arXiv 2502.04664: normalised steepest descent on linear multiclass models. The intervals of 5 of 7 "
        "other norms exclude 1."
    )


def test_a_slow_cell_is_told_with_its_rate() -> None:
    one = found(rows_of("next-token", "gradient", frobenius=FAST))[
        "limit of the share in the frobenius norm, gradient, next-token prediction (theorem)"
    ]
    assert one.note == (
        COURSE + "arXiv 2402.18551; its rate is 1/log k, and no horizon shows the limit. The intervals of 7 of 7 other "
        "norms exclude 1."
    )


def test_the_norm_of_the_largest_share_is_told_with_what_was_expected() -> None:
    sign = found(rows_of("attention", "sign", max=FAST, rows=STILL))
    one = sign["limit of the largest share, sign, attention, W"]
    assert one.measured == pytest.approx(np.mean(limit_interval(np.array([FAST] * 3))))
    assert one.note == COURSE + "In the max norm. Expected: max. No miss."
    missed = found(rows_of("attention", "sign", max=STILL, l_1=FAST, nuclear=FAST))
    one = missed["limit of the largest share, sign, attention, W"]
    assert one.note == COURSE + "In the nuclear norm. Expected: max. Missed: nuclear, l_1, max."
    none = found(rows_of("next-token", "normalised", l_1=(0.1, 0.2, 0.3, 0.3, 0.3), max=(0.3, 0.4, 0.45, 0.48, 0.6)))
    one = none["limit of the largest share, normalised, next-token prediction"]
    # The last horizon decides.
    assert one.note.endswith("0.6000. In the max norm. Expected: none. No miss.")


def test_scores_are_told_for_all_models_and_for_each() -> None:
    """By hand: 16 open cells; one of two norms expected at 1 gets there, the other is open like one control."""
    rows = rows_of("attention", "sign", max=FAST, l_3=LOGARITHM) + rows_of("next-token", "gradient")
    rows += rows_of("attention", "signum", max=LOGARITHM)
    table = found(rows)
    names = [
        "predictions of a share that tends to 1 that came out",
        'open cells that the baseline "never 1" gets right',
        "open cells that came out as predicted",
    ]
    quantities = [name for name in table if name.startswith(("predictions", "open"))]
    assert quantities == [
        *(f"{name}, all models" for name in names), *(f"{name}, attention, W" for name in names),
        *(f"{name}, next-token prediction" for name in names[1:]),
    ]  # fmt: skip
    first = table[f"{names[0]}, attention, W"]
    assert (first.measured, (first.low, first.high)) == (1.0, wilson_interval(1, 1))
    assert (first.trials, first.discarded, first.note) == (2, 1, "1 hit, 0 misses, 1 undecided.")
    # One norm of gradient descent is settled by a theorem.
    never, every = (table[f"{name}, all models"] for name in names[1:])
    assert (never.measured, never.trials, never.discarded) == (pytest.approx(20 / 21), 23, 2)
    assert never.note == "20 hits, 1 miss, 2 undecided."
    assert (every.measured, every.trials, every.discarded) == (1, 23, 2)
    assert every.note == "21 hits, 0 misses, 2 undecided."
    other = table[f"{names[2]}, next-token prediction"]
    assert (other.measured, other.trials, other.note) == (1, 7, "7 hits, 0 misses, 0 undecided.")


def test_a_pair_without_an_instance_that_has_shares_is_left_out() -> None:
    empty = rows_of("attention", "Lion", 3, **dict.fromkeys(NORMS, (None,) * 5))
    assert list(outcomes(empty)) == verdicts_of(empty) == verdicts_of([]) == []
    rows = rows_of("attention", "sign", max=FAST)
    assert verdicts_of(rows + empty) == verdicts_of(rows)


def test_horizons_are_read_in_their_order() -> None:
    rows = rows_of("attention", "sign", max=FAST)
    assert verdicts_of(rows[::-1]) == verdicts_of(rows)


def test_sizes_are_given_for_every_model() -> None:
    assert list(SIZES) == list(MODELS)
