"""KKT residuals of K and Q: settings, rows by another route, verdicts and curves from rows made by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attsvm import SelectionProblem, train
from attsvm.plots.style import NARROW, WIDE
from attsvm.theory.kkt import kkt_residual
from attsvm.training.optimisers.adaptive import Adam
from attsvm.training.optimisers.descent import NormalizedGD
from attsvm.training.optimisers.momentum import Muon, Signum
from attsvm.training.optimisers.schedule import step_sizes
from attsvm_paper.beyond import parameter_margin
from attsvm_paper.beyond.parameter_margin import NORMS, OWN, Config, figure, optimizer_of, sweep, trials, verdicts
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import draw, start_seeds
from drawn import columns_of, curves, panel_height, place

OPTIMISERS = ("normalised", "signum", "Adam", "Muon")


def test_four_optimisers_run_with_two_decays() -> None:
    """Findings, "KKT points in an optimiser's own norm": twelve instances and 30,000 steps, 2,000 in a quick run."""
    for cells, steps, count in ((sweep("full"), 30_000, 12), (sweep("quick"), 2000, 3)):
        assert [(one.power, one.optimiser) for one in cells] == list(itertools.product((0.5, 0.667), OPTIMISERS))
        assert all(one == Config(one.optimiser, one.power, 6, 6, 8, steps, count) for one in cells)


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimiser is 'lion'; one of normalised, signum, Adam, Muon was expected"):
        Config("lion")


@pytest.mark.parametrize(
    ("name", "kind", "rate"),
    [("normalised", NormalizedGD, 0.5), ("signum", Signum, 0.05), ("Adam", Adam, 0.05), ("Muon", Muon, 0.2)],
)
def test_steps_fall_like_a_power_of_their_number(name: str, kind: type, rate: float) -> None:
    """The rates are those of the findings' table."""
    optimizer = optimizer_of(name, 0.5)
    assert type(optimizer) is kind
    np.testing.assert_allclose(step_sizes(optimizer.lr, optimizer.schedule, 0, 4), rate / np.sqrt([1, 2, 3, 4]))
    if isinstance(optimizer, Adam):
        assert optimizer.betas == (0.9, 0.95)


def test_residuals_are_those_of_the_tokens_that_k_and_q_select_at_each_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def residual(problem: SelectionProblem, K: np.ndarray, Q: np.ndarray, norm: str) -> float:
        calls.append((problem, K, Q, norm))
        return float(len(calls))

    monkeypatch.setattr(parameter_margin, "kkt_residual", residual)
    seeds = np.array([3, 4])
    rows = trials(Config("Muon", 0.5, 2, 3, 4, steps=20), seeds)
    assert [(row["seed"], row["horizon"]) for row in rows] == [(seed, at) for seed in (3, 4) for at in (1, 2, 20)]
    assert [[row[norm] for norm in NORMS] for row in rows] == (1 + np.arange(18.0)).reshape(6, 3).tolist()
    assert [norm for *_, norm in calls] == ["frobenius", "max", "spectral"] * 6
    instances = draw(seeds, 2, 3, 4)
    traces = [
        train(
            instances.data, instances.v, parameterization="KQ", optimizer=Muon(0.2, lambda k: k**-0.5), steps=steps,
            seed=start_seeds(seeds),
        )
        for steps in (1, 2, 20)
    ]  # fmt: skip
    for b, (at, trace) in itertools.product(range(2), enumerate(traces)):
        problem, K, Q, _ = calls[9 * b + 3 * at]
        np.testing.assert_allclose(K, np.asarray(trace.K)[b, -1], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(Q, np.asarray(trace.Q)[b, -1], rtol=1e-8, atol=1e-10)
        logits = np.einsum("ntd,de,ne->nt", instances.data.tokens[b], K @ Q.T, instances.data.queries[b])
        np.testing.assert_array_equal(problem.reference, logits.argmax(-1))
        np.testing.assert_array_equal(problem.tokens, instances.data.tokens[b])
        np.testing.assert_array_equal(problem.queries, instances.data.queries[b])


def test_a_row_has_the_residual_of_the_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_margin, "NORMS", ("frobenius",))
    *_, row = trials(Config("normalised", 0.5, 2, 2, 2, steps=3), [3])
    instances = draw([3], 2, 2, 2)
    optimizer = NormalizedGD(0.5, lambda k: k**-0.5)
    trace = train(
        instances.data, instances.v, parameterization="KQ", optimizer=optimizer, steps=3, seed=start_seeds([3])
    )
    problem = SelectionProblem(instances.data.tokens[0], instances.data.queries[0], np.asarray(trace.selected)[0])
    expected = kkt_residual(problem, np.asarray(trace.K)[0, -1], np.asarray(trace.Q)[0, -1])
    assert row == {"seed": 3, "horizon": 3, "frobenius": pytest.approx(expected, rel=1e-5, abs=1e-8)}


def made(optimiser: str, power: float, horizon: int, *residuals: float | None) -> list[Row]:
    """Make rows of two trials: the given Frobenius residual and twice it, a tenth of it and a fifth in the others."""
    rows: list[Row] = []
    for seed, value in enumerate(residuals):
        parts = {"frobenius": value, "max": value and value / 10, "spectral": value and value / 5}
        rows.append(
            {"optimiser": optimiser, "power": power, "n": 6, "T": 5, "d": 8, "seed": seed, "horizon": horizon} | parts
        )
    return rows


ROWS = [
    *made("signum", 0.5, 10, 0.8, 0.6), *made("signum", 0.5, 100, 0.5, 0.3), *made("signum", 0.5, 1000, 0.2, 0.1),
    *made("normalised", 0.5, 10, 0.4, 0.4), *made("normalised", 0.5, 100, 0.2, 0.2),
    *made("normalised", 0.5, 1000, 0.01, 0.02, None),
    *made("signum", 0.667, 10, 0.9, 0.9), *made("signum", 0.667, 100, None, None),
    *made("signum", 0.667, 1000, 0.3, 0.3),
    *made("Muon", 0.667, 10, 0.9, 0.8), *made("Muon", 0.667, 100, 0.7, 0.6), *made("Muon", 0.667, 1000, None, None),
]  # fmt: skip


def note(course: str, kind: str, outcome: str) -> str:
    foreseen = predictions()["parameter-margin"][kind]
    bounds = f"{foreseen.low:g} to {foreseen.high:g}"
    return f"At the three horizons: {course}. Predicted by {foreseen.basis}: {bounds}, {outcome}. {foreseen.reason}"


@pytest.mark.parametrize(
    ("quantity", "values", "trials", "expected"),
    [
        ("frobenius norm, signum, steps like k^-0.5", [0.2, 0.1], 2, note("0.7000, 0.4000, 0.1500", "other", "hit")),
        ("max norm, signum, steps like k^-0.5", [0.02, 0.01], 2, note("0.0700, 0.0400, 0.0150", "own", "hit")),
        ("spectral norm, signum, steps like k^-0.5", [0.04, 0.02], 2,
         note("0.1400, 0.0800, 0.0300", "other", "miss")),
        ("frobenius norm, normalised, steps like k^-0.5", [0.01, 0.02], 3,
         note("0.4000, 0.2000, 0.0150", "own", "hit")),
        # A horizon at which nothing was measured is left out.
        ("max norm, signum, steps like k^-0.667", [0.03, 0.03], 2, note("0.0900, 0.0300", "own", "miss")),
    ],
)  # fmt: skip
def test_the_last_horizon_is_judged_and_the_course_is_told(
    quantity: str, values: list[float], trials: int, expected: str
) -> None:
    found = {one.quantity: one for one in verdicts(ROWS)}
    # Nothing was measured of Muon at the last horizon.
    assert len(found) == 9
    one = found[f"KKT residual in the {quantity}, n=6, T=5, d=8"]
    middle = estimate(values, "bootstrap")
    assert (one.experiment, one.trials, one.note) == ("parameter-margin", trials, expected)
    assert (one.measured, one.low, one.high) == pytest.approx((middle.value, middle.low, middle.high))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_panels_are_of_optimisers_and_powers(width: float) -> None:
    drawing = figure(ROWS, width)
    panels = {ax.get_title(loc="left"): ax for ax in drawing.axes}
    assert list(panels) == [f"{name}, p = {p}" for p in (0.5, 0.67) for name in ("normalised", "signum", "Muon")]
    for title, ax in panels.items():
        assert (ax.get_xscale(), ax.get_ylim(), ax.get_ylabel()) == ("log", (0, 1), "residual")
        assert ax.get_xlabel() == f"steps; own: {OWN[title.split(',')[0]]}"
    drawn = curves(panels["signum, p = 0.5"])
    assert list(drawn) == list(NORMS)
    assert drawn["frobenius"].y == pytest.approx([0.7, 0.4, 0.15])
    assert drawn["max"].y == pytest.approx([0.07, 0.04, 0.015])
    last = estimate([0.2, 0.1], "bootstrap")
    assert (drawn["frobenius"].low[2], drawn["frobenius"].high[2]) == pytest.approx((last.low, last.high))
    # The points of a horizon stand apart, around it.
    places = np.array([one.x for one in drawn.values()]) / [10, 100, 1000]
    assert (np.diff(places, axis=0) > 0.02).all()
    np.testing.assert_allclose(places.mean(0), 1, rtol=1e-12)
    assert np.abs(places - 1).max() < 0.2
    assert curves(panels["signum, p = 0.67"])["max"].y == pytest.approx([0.09, 0.03])
    assert len({(one.color, one.marker) for one in drawn.values()}) == 3
    (legend,) = drawing.legends
    assert columns_of(legend) == (3 if width == WIDE else 1)
    assert [text.get_text() for text in legend.get_texts()] == list(NORMS)
    assert 1.3 < panel_height(drawing) < 5
    assert {place(ax)[:2] for ax in drawing.axes} == {(2, 3) if width == WIDE else (6, 1)}


def test_an_optimiser_that_did_not_run_has_no_panel() -> None:
    assert [ax.get_title(loc="left") for ax in figure(made("Adam", 0.8, 10, 0.5)).axes] == ["Adam, p = 0.8"]
