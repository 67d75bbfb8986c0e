"""Which optimiser maximises which margin: settings, rows by another route, verdicts and maps from rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from attsvm import SelectionProblem, TokenData, correlation, solve, train
from attsvm.core.norms import get_norm
from attsvm.plots.style import NARROW, SECOND, WIDE
from attsvm_paper.beyond import optimiser_geometry
from attsvm_paper.beyond.optimiser_geometry import NORMS, Config, by_rule, figure, means, own_norm, sweep, trials
from attsvm_paper.beyond.optimisers import RULES
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import Instances, draw, start_seeds
from drawn import heat_map, ticks

# Rules that run outside the compiled loop, by the docstring of `sweep`.
SLOW = {"Polyak", "spectral", "Adam", "Adam, beta2=0.95", "Adam, sqrt", "(K, Q) apart"}


def test_runs_outside_the_compiled_loop_are_shorter_and_quick_runs_have_fewer_trials() -> None:
    full, quick = sweep("full"), sweep("quick")
    assert {one.rule for one in full} - {one.rule for one in quick} == {"Adam, sqrt"}
    for cells, compiled, slow, count in ((full, 100_000, 20_000, 40), (quick, 10_000, 1000, 16)):
        assert all(one == Config(one.rule, 6, 8, 10, slow if one.rule in SLOW else compiled, count) for one in cells)
        assert len({one.rule for one in cells}) == len(cells)
        # Every norm has a rule that is matched with it.
        assert {own_norm(one.rule) for one in cells} == set(NORMS)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'x'"):
        Config("x")


@pytest.mark.parametrize("name", ["momentum", "(K, Q) relative"])
def test_the_end_of_a_run_is_compared_with_the_svm_of_its_own_tokens(name: str) -> None:
    seeds = np.array([3, 4])
    rows = trials(Config(name, 2, 3, 3, steps=15), seeds)
    instances, rule = draw(seeds, 2, 3, 3), RULES[name]
    W = train(
        instances.data, instances.v, optimizer=rule.optimizer(), parameterization=rule.parameterization, steps=15,
        seed=start_seeds(seeds),
    ).W[:, -1]  # fmt: skip
    for b, row in enumerate(rows):
        assert (row["seed"], row["feasible"]) == (seeds[b], True)
        logits = np.einsum("ntd,de,ne->nt", instances.data.tokens[b], W[b], instances.data.queries[b])
        for key, norm in NORMS.items():
            solution = solve(
                SelectionProblem(instances.data.tokens[b], instances.data.queries[b], logits.argmax(-1)), norm
            )
            margin = np.sort(logits, axis=-1)
            least = float((margin[:, -1] - margin[:, -2]).min())
            share = least * solution.objective / get_norm(norm).value(W[b])
            assert row[f"{key}_efficiency"] == pytest.approx(share, rel=1e-6)
            assert row[f"{key}_correlation"] == pytest.approx(
                float(correlation(W[b], np.asarray(solution.W))), rel=1e-5
            )


def test_a_run_that_stays_at_zero_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a head no token is better than another, and the gradient is zero."""

    def headless(seeds: Any, n: int, T: int, d: int) -> Instances:
        one = draw(seeds, n, T, d)
        return Instances(TokenData(one.data.tokens, one.data.queries, one.data.labels), one.v * [[1.0], [0.0]])

    monkeypatch.setattr(optimiser_geometry, "draw", headless)
    first, second = trials(Config("normalised", 2, 3, 3, steps=5), [3, 4])
    assert first["feasible"] is True
    assert None not in first.values()
    assert second == {"seed": 4, "feasible": False} | {
        f"{norm}_{key}": None for norm in NORMS for key in ("efficiency", "correlation")
    }


@pytest.mark.parametrize("name", ["normalised", "Adam"])
def test_a_run_of_no_steps_is_at_zero(name: str) -> None:
    (one,) = trials(Config(name, 2, 3, 3, steps=0), [3])
    assert (one["feasible"], one["max_efficiency"]) == (False, None)


def row(rule: str, seed: int, efficiency: Sequence[float], feasible: bool = True) -> Row:
    """Make a row whose correlations are half the efficiencies, in reverse order of the norms."""
    given = {f"{norm}_efficiency": value for norm, value in zip(NORMS, efficiency, strict=True)}
    given |= {f"{norm}_correlation": value / 2 for norm, value in zip(NORMS, efficiency[::-1], strict=True)}
    return {"rule": rule, "seed": seed, "feasible": feasible} | (given if feasible else dict.fromkeys(given))


# Norms: nuclear, l1.75, frobenius, l3, spectral, max.
ROWS = [
    row("sign", 1, (0.1, 0.2, 0.3, 0.4, 0.5, 0.9)),
    row("momentum", 1, (0.3, 0.6, 0.8, 0.6, 0.4, 0.2)),
    row("sign", 2, (0.1, 0.2, 0.3, 0.4, 0.7, 0.6)),
    row("momentum", 2, (0.4, 0.5, 0.99, 0.5, 0.4, 0.2)),
    row("sign", 3, (0,) * 6, False),
    row("(K, Q) gradient", 1, (0.2, 0.3, 0.9996, 0.5, 0.6, 0.7)),
]


def verdicts(rows: Sequence[Row]) -> dict[str, Verdict]:
    result = optimiser_geometry.verdicts(rows)
    by_quantity = {one.quantity: one for one in result}
    assert len(by_quantity) == len(result)
    assert {one.experiment for one in result} <= {"optimiser-geometry"}
    return by_quantity


def test_rules_come_in_the_order_of_the_figures_and_rows_without_an_svm_are_left_out() -> None:
    groups = by_rule(ROWS)
    assert list(groups) == ["momentum", "sign", "(K, Q) gradient"]
    assert [one["seed"] for one in groups["sign"]] == [1, 2]
    expected = [[0.35, 0.55, 0.895, 0.55, 0.4, 0.2], [0.1, 0.2, 0.3, 0.4, 0.6, 0.75], [0.2, 0.3, 0.9996, 0.5, 0.6, 0.7]]
    np.testing.assert_allclose(means(ROWS, "efficiency"), expected, rtol=1e-12)
    np.testing.assert_allclose(means(ROWS, "correlation"), np.array(expected)[:, ::-1] / 2, rtol=1e-12)


def test_a_rule_is_judged_in_its_norm_and_its_best_norm_is_named() -> None:
    found = verdicts(ROWS)
    own = found["efficiency in its norm (max), sign, experimental"]
    middle = estimate([0.9, 0.6], "bootstrap")
    assert (own.measured, own.low, own.high) == (middle.value, middle.low, middle.high)
    assert (own.trials, own.infeasible, own.verdict) == (3, 1, "measured")
    assert own.note == (
        "sign is nearest to the largest max margin, its own by mean efficiency: nuclear 0.1000, l1.75 0.2000, "
        "frobenius 0.3000, l3 0.4000, spectral 0.6000, max 0.7500."
    )
    other = found["correlation in its norm (max), sign, experimental"]
    assert other.measured == pytest.approx(0.05)
    assert other.note == (
        "sign is nearest to the largest nuclear margin, not its own, max, by mean correlation: nuclear 0.3750, "
        "l1.75 0.3000, frobenius 0.2000, l3 0.1500, spectral 0.1000, max 0.0500."
    )
    plain = found["efficiency in its norm (frobenius), momentum"]
    assert (plain.measured, plain.trials, plain.infeasible) == (pytest.approx(0.895), 2, 0)


@pytest.mark.parametrize(
    ("quantity", "hits", "count", "infeasible"),
    [
        ("efficiency, sign, experimental", 1, 2, 1),
        ("correlation, sign, experimental", 0, 2, 1),
        ("efficiency, momentum", 2, 2, 0),
        ("efficiency, (K, Q) gradient", 0, 1, 0),
    ],
)
def test_trials_are_counted_in_which_the_own_norm_is_best(
    quantity: str, hits: int, count: int, infeasible: int
) -> None:
    one = verdicts(ROWS)[f"share of trials in which its norm has the highest {quantity}"]
    assert (one.measured, one.trials, one.infeasible) == (hits / count, count + infeasible, infeasible)
    assert (one.low, one.high) == wilson_interval(hits, count)


def test_each_norm_names_its_two_best_rules() -> None:
    found = verdicts(ROWS)
    largest = found["highest mean efficiency in the max norm"]
    assert largest.note == "The max margin is largest under sign, efficiency 0.75000; then (K, Q) gradient, 0.70000."
    assert (largest.measured, largest.trials, largest.infeasible) == (pytest.approx(0.75), 6, 1)
    frobenius = found["highest mean efficiency in the frobenius norm"]
    assert frobenius.note == (
        "The frobenius margin is largest under (K, Q) gradient, efficiency 0.99960; then momentum, 0.89500."
    )
    assert len(found) == 3 * 4 + 6


def test_a_single_rule_has_no_second_and_rows_without_an_svm_say_nothing() -> None:
    one = verdicts(ROWS[1:2])["highest mean efficiency in the l3 norm"]
    assert one.note == "The l3 margin is largest under momentum, efficiency 0.60000."
    two = verdicts([ROWS[1], ROWS[5]])["highest mean efficiency in the l3 norm"]
    assert two.note == "The l3 margin is largest under momentum, efficiency 0.60000; then (K, Q) gradient, 0.50000."
    assert verdicts(ROWS[4:5]) == {}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_maps_have_a_row_for_each_rule_and_frame_its_own_norm(width: float) -> None:
    drawing = figure(ROWS, width)
    left, right = drawing.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == (
        "share of the largest margin", "correlation with the SVM",
    )  # fmt: skip
    names = ["(K, Q) gradient", "sign*", "momentum"]
    for ax, key in ((left, "efficiency"), (right, "correlation")):
        table = means(ROWS, key)[::-1]
        np.testing.assert_array_equal(heat_map(ax), table)
        assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 5.5), (-0.5, 2.5))
        assert ticks(ax.xaxis) == dict(enumerate(NORMS))
        # Side by side, the maps share the names on the left.
        shown = names if ax is left or width == NARROW else [""] * 3
        assert ticks(ax.yaxis) == dict(enumerate(shown))
        frames = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        assert [(f.get_x() + f.get_width() / 2, f.get_y() + f.get_height() / 2) for f in frames] == [
            (pytest.approx(x), pytest.approx(y)) for x, y in ((0, 0), (5, 1), (2, 2))
        ]
        for frame in frames:
            assert 0.5 < frame.get_width() < 1
            assert frame.get_width() == frame.get_height()
            assert frame.get_fill() is False
            assert frame.get_edgecolor()[:3] == pytest.approx([int(SECOND[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        texts = {tuple(map(round, text.get_position())): text.get_text() for text in ax.texts}
        assert texts == {
            (x, y): "1.000" if table[y, x] == 0.9996 else f"{table[y, x]:.3f}" for x in range(6) for y in range(3)
        }


def test_a_map_without_rows_is_empty() -> None:
    left, right = figure(ROWS[4:5]).axes
    assert not left.collections
    assert not right.collections
    assert right.get_title(loc="left") == "correlation with the SVM"


def test_a_map_grows_by_the_height_of_a_label_with_every_rule() -> None:
    none, one, two, three = (figure(rows).get_figheight() for rows in (ROWS[4:5], ROWS[:1], ROWS[:2], ROWS))
    assert none == one
    assert 0.2 < two - one < 0.5  # inches; a label has a ninth of an inch
    assert three - two == pytest.approx(two - one)
