"""Gradient flow on factors: its data, rows by a second route, verdicts and figure on rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve, train
from attsvm.core.types import FactorNorm
from attsvm.plots.style import NARROW, WIDE
from attsvm.theory.alignment import condition_alignment, off_diagonal, singular_spaces
from attsvm_paper.beyond import factor_flow
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.beyond.factor_flow import CASES, STEP, Config, diagonal_trial, figure, shares, sweep, trials, verdicts
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, draw_with, start_seeds
from drawn import curves, in_one_column, levels, ticks, titles

SIZE: dict[str, Any] = {"n": 3, "T": 3, "d": 3}


@pytest.mark.parametrize(("effort", "horizon", "count"), [("quick", 150, 8), ("full", 500, 24)])
def test_all_cases_run_to_the_documented_horizon(effort: Any, horizon: float, count: int) -> None:
    """docs/findings.md: "24 instances" up to log time 500, and "log time 150, eight instances"."""
    cells = sweep(effort)
    assert [cell.case for cell in cells] == ["diagonal, aligned", "general, aligned", "general, random"]
    assert {(cell.horizon, cell.trials) for cell in cells} == {(horizon, count)}


def test_other_cases_and_short_horizons_are_refused() -> None:
    assert Config("general, random", 1.0).horizon == 1
    wrong: Any = "diagonal, random"
    with pytest.raises(ValueError, match="case is 'diagonal, random'"):
        Config(wrong)
    for horizon in (0.9, np.nan):
        with pytest.raises(ValueError, match=r"at least 1 was expected"):
            Config("general, random", horizon)


@pytest.mark.parametrize(("n", "d"), [(3, 3), (5, 3), (2, 4)])
def test_diagonal_data_differ_along_the_query_of_their_sequence(n: int, d: int) -> None:
    T = 40
    tokens, queries, labels, v = diagonal_trial(np.random.default_rng(2), n, T, d)
    assert tokens.shape == (n, T, d)
    np.testing.assert_array_equal(labels, np.ones(n))
    # Queries are axes in a rotation, in turn, and the head is between all of them.
    angles = [[float(i % d == j % d) for j in range(n)] for i in range(n)]
    np.testing.assert_allclose(queries @ queries.T, angles, atol=1e-12)
    np.testing.assert_allclose(queries @ v, np.full(n, d**-0.5), atol=1e-12)
    assert np.linalg.norm(v) == pytest.approx(1)
    assert not np.isclose(np.abs(queries), 1).any()
    for x, z in zip(tokens, queries, strict=True):
        along = x @ z
        np.testing.assert_allclose(x, np.outer(along, z), atol=1e-12)
        # The first token is the query itself; the others fall short of it by 0.5 to 2.
        assert along[0] == pytest.approx(1)
        assert -1 <= along[1:].min() < -0.8
        assert 0.3 < along[1:].max() <= 0.5


def check_row(row: Row, config: Config, seed: int, step: int) -> None:
    """Compare a row with a run of its trial alone that ends at its step."""
    data, start = config.case.split(", ")
    size = (config.n, config.T, config.d)
    instances = draw_with([seed], lambda rng: diagonal_trial(rng, *size)) if data == "diagonal" else draw([seed], *size)
    trace = train(
        instances.data, instances.v, parameterization="KQ", optimizer="flow", loss="exponential", lr=STEP, steps=step,
        init="aligned" if start == "aligned" else None, seed=start_seeds([seed]), record_every=step,
    )  # fmt: skip
    K, Q = (np.asarray(part)[0] for part in (trace.K, trace.Q))
    W = K[-1] @ Q[-1].T
    tops = trace.attention[0, -1].argmax(-1)
    problem = SelectionProblem(instances.data.tokens[0], instances.data.queries[0], tops)
    before, after = (k.T @ k - q.T @ q for k, q in ((K[0], Q[0]), (K[-1], Q[-1])))
    drift = np.linalg.norm(after - before) / max((K[-1] ** 2).sum(), 1)
    assert row["horizon_step"] == step
    assert row["drift"] == pytest.approx(drift, rel=1e-3, abs=1e-10)
    assert row["condition"] == pytest.approx(condition_alignment(problem).value, abs=1e-10)
    assert row["turned"] == pytest.approx(off_diagonal(W, *singular_spaces(problem)), abs=1e-6)
    scores = np.array([x @ W @ z for x, z in zip(problem.tokens, problem.queries, strict=True)])
    own = scores[np.arange(config.n), tops]
    scores[np.arange(config.n), tops] = -np.inf
    margin = (own - scores.max(1)).min()
    norms: tuple[tuple[FactorNorm, Any], ...] = (
        ("nuclear", np.linalg.norm(W, "nuc")),
        ("frobenius", np.linalg.norm(W)),
    )
    for norm, length in norms:
        solution = solve(problem, norm)
        share = row[f"{norm}_share"]
        if np.isfinite(solution.objective):
            best = np.asarray(solution.W)
            own_norm = np.linalg.norm(best, "nuc") if norm == "nuclear" else np.linalg.norm(best)
            assert share == pytest.approx(margin / length * own_norm, abs=1e-5)
        else:
            assert share is None


@pytest.mark.parametrize("case", CASES)
def test_every_number_of_a_row_comes_from_its_trial(case: Any) -> None:
    config = Config(case, 2.0, **SIZE)
    rows = trials(config, np.array([1, 4]))
    # Log time 2 takes 20 steps; horizons are 2 per decade up to it, 0.63, 2 and 6.3 rounded.
    assert [(row["seed"], row["horizon_step"]) for row in rows] == [(s, at) for at in (1, 2, 6, 20) for s in (1, 4)]
    for row in rows:
        if row["horizon_step"] in (6, 20):
            check_row(row, config, row["seed"], row["horizon_step"])


def test_without_a_feasible_svm_there_is_no_share() -> None:
    # Tokens on a line are 1 and -1. If all are equal, W stays zero as well.
    rows = trials(Config("general, random", 1.0, n=1, T=2, d=1), np.arange(6))
    # The first two of four horizons of ten steps are one step.
    assert [row["horizon_step"] for row in rows] == [1] * 6 + [3] * 6 + [10] * 6
    missing = [row for row in rows if row["nuclear_share"] is None]
    assert missing
    assert len(missing) < len(rows)
    for row in rows:
        assert (row["nuclear_share"] is None) == (row["frobenius_share"] is None)


SHARES = {0: [0.80, 0.90, 0.95, 0.97], 1: [0.70, 0.85, 0.92, 0.96], 2: [0.60, 0.70, 0.80, 0.95]}
HORIZONS = (16, 50, 158, 500)


def rows_of(case: str, table: dict[int, list[Any]], turned: float = 0.3, **fields: Any) -> list[Row]:
    return [
        {"case": case, "n": 4, "T": 5, "d": 6, "seed": seed, "trial": seed, "horizon_step": step}
        | {"nuclear_share": line[at], "frobenius_share": None if line[at] is None else line[at] / 2}
        | {"turned": turned + 0.01 * seed + 0.1 * at, "drift": 1e-8 * (seed + 1), "condition": 0.01 * seed * at}
        | fields
        for at, step in enumerate(HORIZONS)
        for seed, line in table.items()
    ]


ROWS = rows_of("general, random", SHARES)


def test_shares_are_those_of_seeds_measured_at_every_horizon() -> None:
    np.testing.assert_array_equal(shares(ROWS, "nuclear"), list(SHARES.values()))
    gap = rows_of("general, random", SHARES | {1: [0.7, None, 0.92, 0.96]})
    np.testing.assert_array_equal(shares(gap, "frobenius"), np.array([SHARES[0], SHARES[2]]) / 2)


def verdicts_of(rows: list[Row]) -> dict[str, Verdict]:
    found = verdicts(rows)
    assert len({one.quantity for one in found}) == len(found)
    return {one.quantity: one for one in found}


def note_of(name: str, outcome: str) -> str:
    one = predictions()["factor-flow"][name]
    return f"Predicted by {one.basis}: {one.low:g} to {one.high:g}, {outcome}. {one.reason}"


def test_limits_alignment_and_drift_are_reported_at_the_end() -> None:
    rows = rows_of("general, random", SHARES | {3: [0.7, None, 0.9, 0.96]})
    found = verdicts_of(rows)
    where = "general, random start, n=4, T=5, d=6"
    table = np.array(list(SHARES.values()))
    nuclear, frobenius = (
        found[f"limit of the share of the largest {n} margin, {where}"] for n in ("nuclear", "frobenius")
    )
    for one, values, course in (
        (nuclear, table, "0.7000, 0.8167, 0.8900, 0.9600"),
        (frobenius, table / 2, "0.3500, 0.4083, 0.4450, 0.4800"),
    ):
        low, high = limit_interval(values)
        assert (one.low, one.high, one.measured) == (low, high, pytest.approx((low + high) / 2))
        assert (one.trials, one.infeasible) == (4, 1)
        assert one.note.startswith(f"Shares at the horizons: {course}.")
    assert nuclear.note.endswith(note_of("general", "undecided"))
    assert "Predicted" not in frobenius.note
    turned = found[f"share of W off the diagonal in the data's bases, {where}"]
    ends = [0.6, 0.61, 0.62, 0.63]
    assert turned.measured == pytest.approx(np.mean(ends))
    assert (turned.low, turned.high) == pytest.approx(bootstrap_interval(ends))
    assert turned.note == (
        "Of a constraint matrix up to 0.09; the hypothesis asks for none. " + note_of("alignment-general", "hit")
    )
    drift = found[f"change of the imbalance over the squared norm of K, {where}"]
    assert drift.measured == pytest.approx(2.5e-8)
    assert drift.note == "The flow keeps it; this is the error of the integration."
    assert (turned.trials, drift.trials, len(found)) == (4, 4, 4)


def test_aligned_data_have_predictions_of_their_own() -> None:
    found = list(verdicts(rows_of("diagonal, aligned", SHARES, turned=0.5)))
    assert note_of("diagonal", "undecided") in found[0].note
    assert found[2].note.endswith(note_of("alignment-diagonal", "miss"))


def test_without_four_horizons_or_shares_there_is_no_limit() -> None:
    names = ["share of W off the diagonal in the data's bases", "change of the imbalance over the squared norm of K"]
    three = [row for row in ROWS if row["horizon_step"] > 16]
    for rows in (three, rows_of("general, random", {0: [None] * 4, 1: [None] * 4})):
        assert [one.quantity.split(", ")[0] for one in verdicts(rows)] == names
    assert verdicts([]) == []


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_case_has_a_curve_over_log_time(width: float) -> None:
    cases = {"diagonal, aligned": 0.5, "general, random": 1.0}
    rows = [
        row
        for case, factor in cases.items()
        for row in rows_of(case, {seed: [factor * one for one in line] for seed, line in SHARES.items()})
    ]
    drawn = figure(rows, width)
    assert titles(drawn.axes) == ["nuclear margin", "Frobenius margin", "alignment lost"]
    assert in_one_column(drawn) == (width == NARROW)
    labels = ["share of the largest", "share of the largest", "off the diagonal"]
    # Two to four inches a panel.
    assert 2 < drawn.get_figheight() / (1 if width == WIDE else 3) < 4
    fields = ("nuclear_share", "frobenius_share", "turned")
    for ax, field, label in zip(drawn.axes, fields, labels, strict=True):
        assert ax.get_ylabel() == label
        assert ax.get_xlabel() == "log time"
        assert ax.get_xscale() == "log"
        assert ticks(ax.xaxis) == {1.6: "1.6", 5.0: "5", 15.8: "15.8", 50.0: "50"}
        assert levels(ax) == ({} if field == "turned" else {"": 1.0})
        if field != "turned":
            assert ax.get_ylim()[1] == pytest.approx(1.03)
            level = next(line for line in ax.lines if list(np.asarray(line.get_ydata())) == [1, 1])
            assert 0.3 < level.get_linewidth() < 1.5
        found = curves(ax)
        assert list(found) == list(cases)
        for case in cases:
            look = CASES.index(case)
            assert found[case].look == look
            # Error bars of cases do not cover each other.
            assert found[case].x == pytest.approx([STEP * step * (1 + 0.02 * (look - 1)) for step in HORIZONS])
            for at, step in enumerate(HORIZONS):
                values = [row[field] for row in rows if (row["case"], row["horizon_step"]) == (case, step)]
                expected = estimate(values, "bootstrap" if field == "turned" else "mean")
                assert (found[case].y[at], found[case].low[at], found[case].high[at]) == pytest.approx(
                    (expected.value, expected.low, expected.high)
                )
    (own,) = [ax for ax in drawn.axes if ax.get_legend()]
    assert own.get_title("left") == "nuclear margin"


def test_a_figure_without_shares_has_no_legend() -> None:
    drawn = figure(rows_of("general, random", {0: [None] * 4, 1: [None] * 4}))
    assert all(ax.get_legend() is None for ax in drawn.axes)
    assert factor_flow.NAME == "factor-flow"
