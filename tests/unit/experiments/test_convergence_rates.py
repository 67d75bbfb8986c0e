"""Rates of convergence to the SVM: records, both errors of a run, exponents of the last decade, verdicts and figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.core.norms import get_norm
from attsvm.data.synthetic import random_trial
from attsvm.plots.style import NARROW, WIDE
from attsvm.theory.tokens import SELECTED
from attsvm.training.run.trace import Trace
from attsvm_paper.beyond.convergence_rates import (
    FAMILIES,
    SMALLEST_ERROR,
    Config,
    figure,
    record_steps,
    slope,
    sweep,
    trials,
)
from attsvm_paper.beyond.convergence_rates import verdicts as verdicts_of
from attsvm_paper.beyond.optimisers import RULES
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import Instances, start_seeds


def test_a_full_run_has_every_rule_and_a_quick_one_omits_two_slow_schedules() -> None:
    full, quick = sweep("full"), sweep("quick")
    assert [one.rule for one in full] == list(RULES)
    assert [one.rule for one in quick] == [one for one in RULES if one not in ("Adam, sqrt", "spectral, sqrt")]
    # What runs outside the compiled loop takes a tenth of the steps.
    assert all((one.steps, one.trials) == ((10_000 if RULES[one.rule].slow else 100_000), 40) for one in full)
    assert all((one.steps, one.trials) == ((1000 if RULES[one.rule].slow else 10_000), 16) for one in quick)
    assert {(one.n, one.T, one.d) for one in (*full, *quick)} == {(6, 8, 10)}


def test_every_rule_is_drawn_in_one_family() -> None:
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(RULES)


def test_unknown_rules_and_less_than_a_decade_are_refused() -> None:
    Config("sign", steps=10)
    with pytest.raises(ValueError, match="steps is 9; at least 10 were expected"):
        Config("sign", steps=9)
    with pytest.raises(ValueError, match="rule is 'newton'"):
        Config("newton")


def test_four_records_a_decade_end_with_the_last_step() -> None:
    assert record_steps(10_000) == [round(10 ** (k / 4)) for k in range(17)]
    assert record_steps(20) == [1, 2, 4, 6, 11, 20]
    assert record_steps(1) == [1]


def of_trial(seed: int, rule: str, n: int, T: int, d: int, steps: int) -> tuple[Any, SelectionProblem, Any]:
    """Trace, selection at the end and SVM of one trial, each by itself."""
    tokens, queries, labels, v = random_trial(np.random.default_rng(seed), n, T, d)
    (start,) = start_seeds([seed])
    trace = train(
        TokenData(tokens, queries, labels), v, optimizer=RULES[rule].optimizer(), steps=steps, seed=int(start),
        parameterization=RULES[rule].parameterization, record_every=record_steps(steps),
    )  # fmt: skip
    problem = SelectionProblem(tokens, queries, np.asarray(trace.selected))
    return trace, problem, solve(problem, RULES[rule].norm, tol=1e-9)


@pytest.mark.parametrize("rule", ["momentum", "sign, sqrt", "(K, Q) relative"])
def test_a_row_compares_every_record_with_the_svm_of_the_selected_tokens(rule: str) -> None:
    config = Config(rule, 3, 4, 3, steps=40)
    seeds = [1, 2, 5]
    for seed, row in zip(seeds, trials(config, seeds), strict=True):
        trace, problem, solution = of_trial(seed, rule, 3, 4, 3, 40)
        errors, lacking = [], []
        norm = get_norm(RULES[rule].norm)
        for W in np.asarray(trace.W)[1:]:
            errors.append(1 - (W * solution.W).sum() / np.sqrt((W**2).sum() * (solution.W**2).sum()))
            lacking.append(1 - problem.apply(W)[problem.rejected].min() * solution.objective / norm.value(W))
        assert (row["seed"], row["step"]) == (seed, record_steps(40))
        assert row["feasible"]
        # The largest margin is known to 1e-9, W itself to the root of that.
        np.testing.assert_allclose(row["error"], errors, atol=1e-5)
        np.testing.assert_allclose(row["lacking"], lacking, atol=1e-7)
        top = np.asarray(trace.attention)[-1].max(-1)
        assert row["settled"] == all(one >= SELECTED for one in top)
        assert row["norm"] == pytest.approx(np.sqrt((np.asarray(trace.W)[-1] ** 2).sum()))


def test_a_run_is_settled_once_every_query_attends_to_one_token() -> None:
    rows = trials(Config("normalised", 3, 4, 3, steps=200), range(6))
    tops = [np.asarray(of_trial(seed, "normalised", 3, 4, 3, 200)[0].attention)[-1].max(-1) for seed in range(6)]
    assert [row["settled"] for row in rows] == [bool((one >= SELECTED).all()) for one in tops]
    assert any(row["settled"] for row in rows)
    # Some queries of a run settle before others.
    assert any((one >= SELECTED).any() and not row["settled"] for one, row in zip(tops, rows, strict=True))


def test_an_infeasible_selection_has_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    # A run that ends between two tokens may be said to select one that no W selects.
    monkeypatch.setattr(Trace, "selected", np.zeros((8, 4), dtype=int))
    rows = trials(Config("normalised", 4, 5, 2, steps=10), range(8))
    for seed, row in enumerate(rows):
        tokens, queries, *_ = random_trial(np.random.default_rng(seed), 4, 5, 2)
        solution = solve(SelectionProblem(tokens, queries, np.zeros(4, dtype=int)))
        assert row["feasible"] == np.isfinite(solution.objective)
        assert (row["error"] is None) == (row["lacking"] is None) == (not row["feasible"])
    assert {row["feasible"] for row in rows} == {True, False}


@pytest.mark.parametrize(
    ("rule", "tol"), [("momentum", 1e-12), ("(K, Q) constant", 1e-12), ("sign", 1e-9), ("mirror p=3", 1e-9)]
)
def test_errors_below_a_billionth_are_measured_against_more_accurate_svms(
    rule: str, tol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    known = Instances.solve

    def watch(self: Instances, selected: np.ndarray, norm: Any = None, tol: float = 0.0) -> Any:
        asked.append((norm, tol))
        return known(self, selected, norm, tol)

    monkeypatch.setattr(Instances, "solve", watch)
    (row,) = trials(Config(rule, 2, 3, 3, steps=10), [0])
    assert asked == [(RULES[rule].norm, tol)]
    # Rounding alone would take an error below zero.
    assert min(row["error"] + row["lacking"]) >= 0


STEPS = [1, 10, 18, 32, 56, 100]


def power(exponent: float, end: float, first: float = 5.0) -> list[float]:
    """Errors of a power of the steps over the last decade, which the first record does not follow."""
    return [first, *(end * (step / STEPS[-1]) ** exponent for step in STEPS[1:])]


def test_the_exponent_is_that_of_the_last_decade() -> None:
    assert slope({"step": STEPS, "error": power(-1.5, 1e-4)}, "error") == pytest.approx(-1.5)
    # A rounded record may lie just below a tenth of the steps.
    assert slope({"step": [1, 100, 300, 1001], "error": [5, 1.0, 300**-2 * 1e4, 1001**-2 * 1e4]}, "error") == (
        pytest.approx(-2)
    )


def test_an_exponent_needs_three_errors_that_floats_resolve() -> None:
    error = power(-2, 1e-3)
    error[-2:] = [SMALLEST_ERROR / 2, 0.0]
    assert slope({"step": STEPS, "error": error}, "error") == pytest.approx(-2)
    error[-3] = SMALLEST_ERROR / 2
    assert np.isnan(slope({"step": STEPS, "error": error}, "error"))


def row_of(rule: str, error: list[float] | None, lacking: list[float] | None, **other: Any) -> Row:
    row = {"rule": rule, "step": STEPS, "error": error, "lacking": lacking, "feasible": error is not None}
    return row | {"settled": True} | other


ROWS = [
    row_of("sign", power(-0.5, 0.2), power(-1, 0.03), settled=False),
    row_of("sign", power(-0.7, 0.4), power(-1.2, 0.05)),
    row_of("momentum", power(-2, 1e-6), power(-1, 1e-3)),
    row_of("momentum", power(-1.8, 3e-6), power(-1.1, 3e-3)),
    row_of("momentum", power(-1.9, 1e-5), power(-1.3, 2e-3)),
    row_of("momentum", [0.0] * 6, [0.5, *[0.0] * 5]),
    row_of("momentum", None, None),
    row_of("gradient", power(-0.1, 0.3), [0.0] * 6),
]


def test_verdicts_are_median_exponents_with_the_errors_at_the_end() -> None:
    found = verdicts_of(ROWS)
    error, lacking = "exponent of 1 - correlation", "exponent of 1 - share of the largest margin"
    # The rules come in their own order, and where nothing could be fitted nothing is said.
    assert [one.quantity for one in found] == [
        f"{error}, gradient, frobenius SVM", f"{error}, momentum, frobenius SVM", f"{lacking}, momentum, frobenius SVM",
        f"{error}, sign, max SVM, experimental", f"{lacking}, sign, max SVM, experimental",
        "least median of 1 - share of the largest margin at the end",
    ]  # fmt: skip
    _, momentum, share, sign, *_, least = found
    ours = estimate([-2, -1.8, -1.9], "median")
    assert (momentum.measured, momentum.low, momentum.high) == pytest.approx((-1.9, ours.low, ours.high))
    assert (momentum.trials, momentum.infeasible, momentum.discarded) == (5, 1, 1)
    # By hand: of 1e-6, 3e-6, 1e-5 and 0 the median is 2e-6.
    assert momentum.note == "1 - correlation falls like k^-1.90 over the last decade and is 2.0e-06 after 100 steps."
    assert share.measured == pytest.approx(-1.1)
    assert share.note == (
        "1 - share of the largest margin falls like k^-1.10 over the last decade and is 1.5e-03 after 100 steps."
    )
    assert (sign.measured, sign.trials, sign.infeasible, sign.discarded) == (pytest.approx(-0.6), 2, 0, 0)
    assert sign.note == (
        "1 - correlation falls like k^-0.60 over the last decade and is 3.0e-01 after 100 steps; 1 of 2 runs still "
        "share attention."
    )
    assert (least.measured, least.trials) == (pytest.approx(1.5e-3), len(ROWS))
    assert least.note == (
        "momentum is closest to the largest margin of its norm, 1 - share 1.5e-03; then sign, 4.0e-02."
    )


def test_one_rule_is_compared_with_no_other() -> None:
    assert len(verdicts_of([row for row in ROWS if row["rule"] == "sign"])) == 2
    assert verdicts_of([row for row in ROWS if row["error"] is None]) == []


def test_three_rules_are_told_from_the_least_on() -> None:
    rows = [row_of(rule, power(-1, end), power(-1, end)) for rule, end in
            (("normalised", 0.3), ("momentum", 0.1), ("Polyak", 0.2))]  # fmt: skip
    *_, least = verdicts_of(rows)
    assert least.measured == pytest.approx(0.1)
    assert "momentum is closest to" in least.note
    assert least.note.endswith("1 - share 1.0e-01; then Polyak, 2.0e-01.")


LONGER = [1, 20, 36, 64, 112, 200]
FIGURE = [
    *ROWS,
    row_of("momentum", power(-1.9, SMALLEST_ERROR), power(-1, 0.1)),
    row_of("(K, Q) apart", [1 / step for step in LONGER], [0.1] * 6, step=LONGER),
    *(row_of(name, power(-1, 1e-2), power(-1, 0.1)) for name in FAMILIES["other norms (* experimental)"][3:]),
]


@pytest.mark.parametrize(("width", "across"), [(WIDE, 2), (NARROW, 1)])
def test_the_figure_has_a_panel_for_every_family_with_rows(width: float, across: int) -> None:
    axes: Any = figure(FIGURE, width).axes
    assert [ax.get_title("left") for ax in axes] == list(FAMILIES)
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == (4 // across, across)
    for ax, last in zip(axes, (100, 100, 100, 200), strict=True):
        assert ax.get_visible()
        assert ax.get_ylabel() == "1 - correlation"
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert ax.get_xlim() == pytest.approx((1, 1.2 * last))
        title, (entry, *_) = ax.get_legend().get_title(), ax.get_legend().get_texts()
        assert title.get_text() == "slope of the last decade"
        assert title.get_fontsize() == entry.get_fontsize()
        for line in ax.get_lines():
            assert 0.5 < line.get_linewidth() < 3 <= line.get_markersize() < 6
    labels = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in axes]
    # A star marks what is experimental; the slope is the median that verdicts state.
    assert labels[0] == ["gradient, -0.10"]
    assert labels[1] == ["momentum, -1.90"]
    assert labels[2] == [
        "sign*, -0.60", "sign, sqrt*, -1.00", "Adam*, -1.00", "Adam, sqrt*, -1.00", "Adam, beta2=0.95*, -1.00",
        "spectral*, -1.00", "spectral, sqrt*, -1.00",
    ]  # fmt: skip
    assert labels[3] == ["(K, Q) apart, -1.00"]
    (line,) = axes[1].get_lines()
    assert list(line.get_xdata()) == STEPS
    errors = [row["error"] for row in FIGURE if row["rule"] == "momentum" and row["feasible"]]
    np.testing.assert_allclose(line.get_ydata(), np.median(errors, axis=0))
    # Six colours are there, and a seventh curve is dashed.
    looks = [(line.get_color(), line.get_linestyle()) for line in axes[2].get_lines()]
    assert len(set(looks)) == len(looks)
    assert [style for _, style in looks] == ["-"] * 6 + ["--"]


def test_errors_below_what_floats_resolve_are_drawn_at_it() -> None:
    ax: Any = figure([row_of("Polyak", power(-2, SMALLEST_ERROR / 5), power(-1, 0.1))]).axes[0]
    (line,) = ax.get_lines()
    assert min(line.get_ydata()) == SMALLEST_ERROR
    assert max(line.get_ydata()) == 5
    # No slope of three resolved errors is left out of the legend.
    ax = figure([row_of("Polyak", [0.0] * 6, [0.0] * 6)]).axes[0]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Polyak"]


@pytest.mark.parametrize(("names", "shape", "hidden"), [
    (["sign"], (1, 1), 0), (["sign", "momentum"], (1, 2), 0), (["sign", "momentum", "gradient"], (2, 2), 1),
    ([], (1, 1), 1),
])  # fmt: skip
def test_families_without_rows_have_no_panel(names: list[str], shape: tuple[int, int], hidden: int) -> None:
    axes: Any = figure([row for row in ROWS if row["rule"] in names]).axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert [ax.get_visible() for ax in axes] == [True] * (len(axes) - hidden) + [False] * hidden
