"""Which norm's margin training maximises: known answers, verdicts, and words for what the steps do not decide."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure

from attsvm import MarginPath, SelectionProblem, TokenData, margin_path, margin_report, solve, train
from attsvm.core.types import AnyNorm
from attsvm.theory import margin_report as reports
from real_classes import classes, descent

NORMS = ("frobenius", "spectral", "max", "nuclear")
STEPS = np.array([100, 316, 1000, 3162, 10_000, 31_623, 100_000])
# One margin, W_1 + 3 W_2: the Frobenius and nuclear norms coincide, and (1, 1) has the largest margin in the max norm.
SINGLE = SelectionProblem([[[1.0, 3.0], [0.0, 0.0]]], [[1.0]], [0])
# Each solution has at most 0.98 of the other norms' largest margins.
RANDOM = SelectionProblem.from_classes(np.random.default_rng(3).standard_normal((10, 5)), np.arange(10) % 4)


def course(target: str | float, steps: np.ndarray = STEPS, shortfall: float = 30.0) -> list[np.ndarray]:
    """Matrices that tend to the solution of a norm like 1/k, from another one."""
    end, other = np.asarray(solve(RANDOM, target).W), np.asarray(solve(RANDOM, 1.5).W)
    return [end + shortfall / step * (other - end) for step in steps]


def with_shares(shares: Sequence[float], norms: Sequence[AnyNorm] = ("frobenius",)) -> MarginPath:
    """A path with these shares in the Frobenius norm: cosines of angles to the solution."""
    along, across = np.array([[1.0], [3.0]]), np.array([[3.0], [-1.0]])
    matrices = [share * along + np.sqrt(1 - share**2) * across for share in shares]
    return margin_path(matrices, STEPS[: len(shares)], SINGLE, norms)


@pytest.mark.parametrize("norm", NORMS)
def test_training_that_tends_to_a_solution_maximises_its_margin(norm: str) -> None:
    path = margin_path(course(norm), STEPS, RANDOM, NORMS)
    assert path.nearest == norm
    assert path[norm].verdict == "tends to 1"
    assert path.sentence.startswith(f"Training maximises the margin in the {norm} norm: from 100,000 steps, the limit")
    for other in set(NORMS) - {norm}:
        # The solution's share in the other norm is the limit there.
        limit = margin_report(solve(RANDOM, norm).W, RANDOM, [other])[other].share
        assert path[other].low - 1e-3 <= limit <= path[other].high + 1e-3
        assert path[other].verdict != "tends to 1"


def test_shares_are_those_of_reports_and_each_norm_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counting(problem: SelectionProblem, norm: object, **options: object) -> object:
        calls.append(norm)
        return solve(problem, norm, **options)

    monkeypatch.setattr(reports, "solve", counting)
    matrices = course("max")
    path = margin_path(matrices, STEPS, RANDOM, NORMS)
    assert len(calls) == len(NORMS)
    for W, report in zip(matrices, path.reports, strict=True):
        single = margin_report(W, RANDOM, NORMS)
        for ours, theirs in zip(report.shares, single.shares, strict=True):
            assert (ours.low, ours.high, ours.margin) == (theirs.low, theirs.high, theirs.margin)


def test_a_path_of_a_mixture_names_no_norm_and_says_none() -> None:
    mixture = 0.5 * np.asarray(solve(RANDOM, "max").W) + 0.5 * np.asarray(solve(RANDOM, "nuclear").W)
    path = margin_path([mixture] * len(STEPS), STEPS, RANDOM, NORMS)
    assert all(limit.verdict == "stays below" for limit in path.limits)
    assert path.nearest is None
    assert path.sentence.startswith("Training maximises the margin in none of these norms")


def on_wine(marks: Sequence[int]) -> MarginPath:
    X, y = classes("wine")
    return margin_path(descent(X, y, marks), marks, SelectionProblem.from_classes(X, y), NORMS)


def test_plain_descent_on_wine_is_undecided_between_frobenius_and_nuclear() -> None:
    path = on_wine([30, 100, 316, 1000, 3162])
    assert path.nearest is None
    assert path["frobenius"].verdict == path["nuclear"].verdict == "undecided"
    words = (
        "The nuclear and frobenius norms cannot be told apart on these data from 3,162 steps: their own solutions have"
    )
    assert path.sentence.startswith(words)
    assert "nan" not in str(path)


def test_too_few_records_are_said_with_the_steps_that_are_enough() -> None:
    path = margin_path(course("max")[:2], STEPS[:2], RANDOM, NORMS)
    # Two more records, half a decade apart, after step 316.
    assert [(limit.verdict, limit.train_to) for limit in path.limits] == [("undecided", 3000)] * 4
    # Three more, and 10^3.5 to one digit.
    assert margin_path(course("max")[:1], STEPS[:1], RANDOM, ["max"])["max"].train_to == 3000
    assert path["max"].low == -np.inf
    assert "at most 1.000" in str(path)
    assert json.loads(path.to_json())["norms"]["max"]["limit"] == [None, 1.0]


def test_records_before_the_margin_is_positive_do_not_count() -> None:
    before, after = -course("max")[-1], course("max")[:3]
    path = margin_path([before, before, *after], STEPS[:5], RANDOM, ("max",))
    # Three of the four records that a limit needs: one more, half a decade after step 10,000.
    limit = path["max"]
    assert (limit.low, limit.high, limit.verdict, limit.train_to) == (-np.inf, 1.0, "undecided", 30_000)
    path = margin_path([*course("max")[:5], before], STEPS[:6], RANDOM, ("max",))
    assert path.sentence == "W breaks a constraint: its smallest margin is not positive."
    limit = path["max"]
    assert (limit.low, limit.high, limit.verdict, limit.train_to) == (-np.inf, 1.0, "undecided", None)


def test_a_share_on_its_way_is_told_how_long_to_train() -> None:
    path = margin_path(course("max", shortfall=90.0)[:4], STEPS[:4], RANDOM, NORMS)
    assert "norms cannot be told apart yet: the share may tend to 1 in both" in path.sentence
    undecided = [limit for limit in path.limits if limit.verdict == "undecided"]
    assert undecided
    for limit in undecided:
        assert str(limit) == f"undecided, train to about {limit.train_to:,} steps"
        assert limit.train_to is not None
        assert limit.train_to > STEPS[3]
        # The share s + g (r + ... + r^j) is decided at 0.99, or when fifty times its last gain does not lift it there.
        second, gain = np.diff(path.shares(limit.norm)[-3:])
        r = gain / second
        course_ahead = [(path.shares(limit.norm)[-1] + gain * r * (1 - r**j) / (1 - r), gain * r**j) for j in range(9)]
        decided = [share >= 0.99 or share + 50 * abs(last) < 0.99 for share, last in course_ahead]
        assert limit.train_to == float(f"{STEPS[3] * (STEPS[3] / STEPS[2]) ** decided.index(True, 1):.0e}")


def test_gains_that_grow_are_expected_to_stay() -> None:
    path = with_shares([0.5, 0.52, 0.55, 0.6, 0.68])
    # The last gain 0.08 lifts the share from 0.68 above 0.99 in four more records, half a decade apart.
    assert (path["frobenius"].verdict, path["frobenius"].train_to) == ("undecided", 1_000_000)


@pytest.mark.parametrize("limit", [1.0005, 1.0015])
def test_norms_that_coincide_on_the_data_are_not_told_apart(limit: float) -> None:
    """The shares rise towards a limit that exceeds one by rounding, or by more."""
    path = with_shares([limit - (limit - 0.999) * 2**j for j in range(4, -1, -1)], ("frobenius", "nuclear", "max"))
    for one in path.limits[:2]:
        assert (one.low, one.verdict) == (round(limit - 0.0005, 3), "undecided")


def test_a_limit_of_at_least_099_is_one_and_a_limit_below_it_is_not() -> None:
    rising = with_shares([0.9905 - 0.08 * 0.1**j for j in range(5)])["frobenius"]
    assert (rising.low, rising.verdict) == (0.99, "tends to 1")
    # Bounds are rounded outwards: a share at rest at 0.9895 has the bounds 0.989 and 0.99.
    for share, high, verdict in ((0.9895, 0.99, "undecided"), (0.9885, 0.989, "stays below")):
        limit = with_shares([share] * 5)["frobenius"]
        assert (limit.high, limit.verdict) == (high, verdict)


def test_one_norm_is_enough_where_no_matrix_separates_the_data() -> None:
    # Rows 0 and 1 contradict each other, and row 2 does not.
    rows = np.array([[1.0, 0.0], [-2.0, 0.0], [3.0, 1.0]])
    problem = SelectionProblem(np.stack([rows, np.zeros_like(rows)], axis=1), np.ones((3, 1)), [0, 0, 0])
    path = margin_path([[[1.0], [1.0]]] * 2, [1, 10], problem, ["frobenius"])
    assert path.sentence.startswith("No W satisfies the constraints: rows 0 and 1 contradict each other. On the 1 of 3")


def test_a_notebook_lists_the_norms_by_their_share() -> None:
    path = margin_path(course("max"), STEPS, RANDOM, NORMS)
    shares = {norm: path.shares(norm)[-1] for norm in NORMS}
    listed = re.findall(r"<th[^>]*>(\w+)</th>", path._repr_html_())
    assert listed == sorted(NORMS, key=lambda norm: -shares[norm])


def test_data_that_are_not_separable_get_shares_on_the_part_that_is() -> None:
    X, y = classes("iris")
    marks = [30, 100, 316, 1000]
    path = margin_path(descent(X, y, marks), marks, SelectionProblem.from_classes(X, y), ["frobenius", "max"])
    assert path.sentence.startswith("No W satisfies the constraints: rows")
    assert "On the 200 of 300 constraints in no contradiction: The" in path.sentence
    assert "soft_margin_path(" in path.sentence
    assert "nan" not in str(path)
    assert path.nearest is None
    part = path.separable
    assert part is not None
    # Training separates the first class from the others; theory says in the Frobenius norm, like 1/log k.
    assert 0.5 < part.shares("frobenius")[-1] < 0.9
    assert part["frobenius"].verdict == "undecided"
    assert part.nearest is None
    read = json.loads(path.to_json())
    assert read["separable"]["norms"]["frobenius"]["low"] == [report["frobenius"].low for report in part.reports]
    assert path.to_frame()["low"].notna().all()
    assert len(path.to_frame()) == 2 * len(marks)
    ax = path.plot(Figure().subplots())
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), part.shares("frobenius"))
    assert len(str(path).splitlines()) == 4


def test_a_trace_has_its_own_steps_and_problem() -> None:
    rng = np.random.default_rng(1)
    tokens, queries = rng.standard_normal((3, 4, 6)), rng.standard_normal((3, 6))
    data = TokenData(tokens, queries, np.ones(3))
    marks = [10, 32, 100, 316, 1000]
    trace = train(data, rng.standard_normal(6), steps=1000, record_every=marks)
    path = margin_path(trace, norms=("frobenius", "max"))
    assert path.steps.tolist() == marks
    given = margin_path(trace.W[1:], marks, data.problem(trace.selected), ("frobenius", "max"))
    np.testing.assert_array_equal(path.shares("max"), given.shares("max"))
    assert path.sentence == given.sentence


def test_dense_records_are_thinned_to_ten_per_decade() -> None:
    steps = np.arange(0, 1001)
    path = margin_path(np.tile(course("max")[-1], (1001, 1, 1)), steps, RANDOM, ("max",))
    assert path.steps[-1] == 1000
    assert len(path.steps) <= 31
    assert path.nearest == "max"


def test_frame_json_and_picture_have_a_row_for_each() -> None:
    path = margin_path(course("max"), STEPS, RANDOM, NORMS)
    table = path.to_frame()
    assert len(table) == len(STEPS) * len(NORMS)
    assert list(table.columns) == ["step", "norm", "margin", "low", "high"]
    read = json.loads(path.to_json())
    assert read["nearest"] == "max"
    assert read["norms"]["max"]["low"] == [report["max"].low for report in path.reports]
    ax = path.plot(Figure().subplots())
    rates = ["rate 1/log k", "rate 1/sqrt(k)", "rate 1/k"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*NORMS, *rates]
    # The course has the shortfall of 1/k: its rate is the nearest to the shares before the last, through which all go.
    shares, distances = path.shares("max"), []
    for line in ax.lines[-3:]:
        drawn = np.interp(np.log(STEPS[-3:]), np.log(line.get_xdata()), line.get_ydata())
        assert drawn[-1] == pytest.approx(shares[-1], abs=1e-3)
        distances.append(abs(drawn[0] - shares[-3]))
    assert np.argmin(distances) == 2
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), path.shares("frobenius"))


@pytest.mark.parametrize(
    ("matrices", "steps", "problem", "words"),
    [
        (course("max")[:2], [1], RANDOM, "2 increasing numbers"),
        (course("max")[:2], [2, 1], RANDOM, "2 increasing numbers"),
        (course("max")[:2], [1, 2], None, "steps or problem is None"),
        ([np.zeros((4, 5))], [1], RANDOM, "all zero or at step 0"),
    ],
)
def test_wrong_arguments_are_named(
    matrices: list[np.ndarray], steps: list[int], problem: SelectionProblem | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        margin_path(matrices, steps, problem)
