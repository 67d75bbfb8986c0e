"""Shares of the largest margin: ties, norms without a word of their own, and matrices without a share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.optimize import linprog

from attsvm import SelectionProblem, Status, margin_report, solve
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.theory.contradiction import contradictions, separable_part
from attsvm.theory.finite_part import growing_part
from attsvm.theory.margin_report import REPORT_NORMS, TOL, share_of
from real_classes import classes, descent

TIED = SelectionProblem([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]], [[1.0]], [[True, True, False]])


def random_ties(dtype: type = np.float64) -> SelectionProblem:
    """Three queries that select two of four tokens each; entries of 24 bits, so that every dtype holds them."""
    rng = np.random.default_rng(0)
    tokens, queries = (rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in ((3, 4, 6), (3, 6)))
    return SelectionProblem(tokens, queries, np.array([[True, True, False, False]] * 3))


def test_a_broken_tie_is_said_and_has_no_share() -> None:
    # Token 1 scores 0.1 and token 0 scores 1: the smallest margin is that of token 1, 0.1, and the tie misses 0.9.
    report = margin_report(np.array([[1.0], [0.1]]), TIED)
    assert all(np.isnan([share.low, share.high]).all() for share in report.shares)
    assert report.tie_residual == pytest.approx(0.9, rel=1e-14)
    expected = "W breaks a tie and has no share: scores of tied tokens differ by 0.9 times its smallest margin"
    assert report.sentence.startswith(expected)
    assert str(report).startswith(f"MarginReport: {expected}")


@pytest.mark.parametrize("unit", [2.0**-60, 1.0, 2.0**60])
def test_the_tolerance_of_ties_has_no_unit(unit: float) -> None:
    """Half the tolerance counts as tied and twice the tolerance does not, in any unit of W, tokens or queries."""
    for excess, has_share in ((0.5, True), (2.0, False)):
        W = np.array([[1.0 + excess * TOL], [1.0]])
        scaled = SelectionProblem(unit * TIED.tokens, TIED.queries / unit**2, TIED.selected)
        for report in (margin_report(unit * W, TIED, ["max"]), margin_report(W, scaled, ["max"])):
            # W = (1, 1) has the largest margin; the tie moves the share by at most its own size.
            assert (abs(report["max"].share - 1.0) <= 2 * TOL) is has_share
            assert np.isnan(report["max"].share) is not has_share


def test_a_tolerance_of_the_caller_is_that_of_ties_too() -> None:
    W = np.array([[1.01], [1.0]])
    assert np.isnan(margin_report(W, TIED, ["max"])["max"].share)
    assert np.isfinite(margin_report(W, TIED, ["max"], tol=0.02)["max"].share)


def test_rounding_W_to_its_dtype_breaks_no_tie() -> None:
    """Tied scores of a float32 matrix differ by some 1e-7 |delta| |z| |W|, more than 1e-8 of the smallest margin."""
    for problem in (random_ties(np.float32), random_ties()):
        W = np.asarray(solve(problem).W).astype(np.float32)
        margins = problem.apply(W.astype(np.float64))
        assert np.abs(margins[problem.tied]).max() > 1e-8 * margins[problem.rejected].min()
        report = margin_report(W, problem, ["frobenius"], tol=1e-8)
        # Rounding to float32 moves a margin by 6e-8 |delta| |z| |W| at most, here less than 1e-5 of it.
        assert report["frobenius"].share == pytest.approx(1.0, abs=1e-5)


def test_a_broken_tie_beside_a_broken_constraint() -> None:
    report = margin_report(np.array([[-1.0], [1.0]]), TIED, ["frobenius"])
    assert report.tie_residual == np.inf
    assert report.sentence.endswith("scores of tied tokens differ, and its smallest margin is not positive.")
    assert np.isnan(report["frobenius"].share)
    assert report["frobenius"].margin < 0


@pytest.mark.parametrize("norm", REPORT_NORMS)
def test_the_nearest_norm_may_be_any(norm: str | float) -> None:
    problem = SelectionProblem.from_classes(np.random.default_rng(4).standard_normal((6, 8)), [0, 1, 2, 0, 1, 2])
    report = margin_report(solve(problem, norm).W, problem)
    best = report[norm]
    assert report.nearest == best.norm
    assert report[report.nearest] is best
    assert str(report).startswith(f"MarginReport: W has 100 % of the largest margin in the {best.norm} norm")


def _contradiction() -> SelectionProblem:
    return SelectionProblem([[[1.0, 0.0], [1.0, 0.0]]], [[1.0]], [0])


def _nothing_rejected() -> SelectionProblem:
    return SelectionProblem([[[1.0, 0.0], [0.0, 1.0]]], [[1.0]], [[True, True]])


@pytest.mark.parametrize(
    ("W", "problem", "words"),
    [
        ([[-1.0], [0.0]], SelectionProblem([[[1.0, 0.0], [0.0, 0.0]]], [[1.0]], [0]), "W breaks a constraint"),
        ([[0.0], [1.0]], _contradiction(), "No W satisfies"),
        ([[1.0], [1.0]], _nothing_rejected(), "No token is rejected"),
        ([[1.0], [0.1]], TIED, "W breaks a tie"),
    ],
    ids=["negative", "infeasible", "nothing to reject", "tie"],
)
def test_a_report_without_a_share_shows_itself(W: list, problem: SelectionProblem, words: str) -> None:
    for norms in (REPORT_NORMS, (1.0,), (3.0, 1.5)):
        report = margin_report(np.array(W), problem, norms)
        assert report.sentence.startswith(words)
        for text in (str(report), repr(report), report._repr_html_()):
            assert words in text
        assert len(report.to_frame()) == len(report.known)
        assert len(report.plot(Figure().subplots()).patches) == len(report.known)
        assert len(report.known) == (0 if "No W" in words else len(norms))
        assert report.nearest is None
        assert "nan" not in str(report)


def test_bounds_of_a_negative_share_are_in_order() -> None:
    # With one margin, minus the solution has the share -1.
    single = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    for share in margin_report(np.array([[-3.0], [-4.0]]), single, ("frobenius", "nuclear")).shares:
        assert -1.0 - 2 * TOL <= share.low <= -1.0 <= share.high <= -1.0 + 2 * TOL


def test_a_norm_that_was_not_solved_hides_no_other_in_a_notebook() -> None:
    single = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    report = margin_report(np.array([[3.0], [4.0]]), single, ("frobenius", "max"))
    unsolved = replace(report["max"], low=np.nan, high=np.nan)
    assert "<svg" in replace(report, shares=(report["frobenius"], unsolved))._repr_html_()
    assert "<svg" not in replace(report, shares=(unsolved,))._repr_html_()


def test_a_solution_without_a_matrix_has_no_share() -> None:
    assert share_of(solve(_contradiction()), solve(TIED)) == 0.0


def test_plain_descent_on_wine_names_no_norm_before_its_share_is_near_one() -> None:
    """The nuclear share is ahead of the Frobenius share, whose margin gradient descent maximises, by 0.004."""
    X, y = classes("wine")
    problem = SelectionProblem.from_classes(X, y)
    for W in descent(X, y, [300, 3000]):
        report = margin_report(W, problem, ("frobenius", "nuclear", "max"))
        assert report["nuclear"].low > report["frobenius"].high
        assert report.nearest is None
        assert "nuclear and frobenius norms cannot be told apart by this matrix: their own solutions" in str(report)


def test_a_matrix_that_breaks_constraints_names_no_norm() -> None:
    problem = SelectionProblem.from_classes(np.random.default_rng(4).standard_normal((6, 8)), [0, 1, 2, 0, 1, 2])
    report = margin_report(-np.asarray(solve(problem).W), problem, ("frobenius", "max"))
    assert all(share.high < 0 for share in report.shares)
    assert report.nearest is None


def test_a_clear_lead_is_named_and_a_small_one_is_not() -> None:
    """On the way from the Frobenius solution to the spectral one, no norm is named in between."""
    problem = SelectionProblem.from_classes(np.random.default_rng(4).standard_normal((6, 8)), [0, 1, 2, 0, 1, 2])
    names = ("frobenius", "spectral")
    first, last = (np.asarray(solve(problem, name).W) for name in names)
    between = [margin_report((1 - t) * first + t * last, problem, names) for t in np.linspace(0, 1, 11)]
    named = [report.nearest for report in between]
    assert named[0] == "frobenius"
    assert named[-1] == "spectral"
    assert None in named
    assert [name for name in named if name] == sorted(name for name in named if name)
    for report in between:
        lacks = sorted(1 - share.share for share in report.shares)
        # The certified gap of 1e-6 moves either side by no more than three times as much.
        assert (report.nearest is None) == (lacks[1] <= 2 * lacks[0]) or abs(lacks[1] - 2 * lacks[0]) < 3 * TOL


def test_rows_of_iris_that_contradict_each_other_are_named() -> None:
    X, y = classes("iris")
    problem = SelectionProblem.from_classes(X, y)
    report = margin_report(np.eye(3, 4), problem)
    first, *others = report.contradictions
    assert [len(one) for one in report.contradictions] == sorted(len(one) for one in report.contradictions)
    assert not any(set(first) & set(other) for other in others)
    # Classes 1 and 2 overlap; their differences have rank 4, so a vertex has five rows at most.
    assert len(first) <= 5
    names = f"rows {', '.join(map(str, first[:-1]))} and {first[-1]}"
    assert report.sentence.startswith(f"No W satisfies the constraints: {names} contradict each other. On the 200 of")
    assert str(report).count("\n") == len(report.contradictions) + len(report.known)
    assert "nan" not in str(report)
    assert report.sentence.endswith(
        "soft_margin_path(problem, [0.1, 1.0, 10.0]) allows violations: the soft margin, in any norm."
    )
    assert report.nearest is None
    assert {share.norm for share in report.shares} == {share.solution.norm.name for share in report.shares}
    assert all(share.solution.verify() for share in report.shares)


def overlapping() -> SelectionProblem:
    """Binary rows, of which 0 and 1 contradict each other in the first coordinate."""
    rows = np.array([[1.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [3.0, 1.0, 2.0], [-1.0, 2.0, 1.0]])
    tokens = np.stack([rows, np.zeros_like(rows)], axis=1)
    return SelectionProblem(tokens, np.ones((4, 1)), np.zeros(4, int))


def test_the_separable_part_ties_the_contradicting_rows_alone() -> None:
    problem = overlapping()
    part = separable_part(problem)
    assert part is not None
    assert part.rejected.any(axis=1).tolist() == [False, False, True, True]
    # On the part W = (0, w) has the margins (1, 2) w and (2, 1) w: the largest is that of w = (1, 1) / 3.
    report = margin_report(np.array([[7.0], [1.0], [1.0]]), problem, ["frobenius", "max"])
    assert report.separable is not None
    assert report.separable["frobenius"].share == pytest.approx(1.0)
    assert report.separable["frobenius"].solution.objective == pytest.approx(np.sqrt(2) / 3)
    assert "On the 2 of 4 constraints in no contradiction: W has 100 %" in report.sentence
    assert report.to_frame()["low"].between(0.999, 1.0).all()
    # A W that breaks row 3 there has no positive share.
    assert "W breaks a constraint" in margin_report(np.array([[0.0], [-1.0], [1.0]]), problem).sentence
    np.testing.assert_allclose(growing_part(part, np.array([[7.0], [1.0], [1.0]])), [[0.0], [1.0], [1.0]], atol=1e-12)


def test_a_problem_all_of_whose_constraints_contradict_has_no_separable_part() -> None:
    problem = overlapping()
    pair = SelectionProblem(problem.tokens[:2], problem.queries[:2], [0, 0])
    assert separable_part(pair) is None
    report = margin_report(np.ones((3, 1)), pair, ["frobenius"])
    assert report.separable is None
    assert len(report.to_frame()) == 0
    feasible = SelectionProblem(problem.tokens[2:], problem.queries[2:], [0, 0])
    whole = separable_part(feasible)
    assert whole is not None
    assert not whole.tied.any()


@pytest.mark.parametrize(("largest", "found"), [(12, True), (11, False)])
def test_a_separable_part_is_sought_up_to_a_size(monkeypatch: pytest.MonkeyPatch, largest: int, found: bool) -> None:
    """Four rows of three coordinates are twelve entries."""
    monkeypatch.setattr("attsvm.theory.contradiction.LARGEST_PROGRAM", largest)
    assert (separable_part(overlapping()) is not None) == found


@pytest.mark.parametrize("left_out", range(5))
def test_no_row_of_a_contradiction_can_be_left_out(left_out: int) -> None:
    X, y = classes("iris")
    solution = solve(SelectionProblem.from_classes(X, y))
    assert solution.certificate is not None
    rows = contradictions(solution.certificate)[0]
    assert solve(SelectionProblem.from_classes(X[rows], y[rows], classes=3)).status is Status.INFEASIBLE
    rest = np.delete(rows, min(left_out, len(rows) - 1))
    assert solve(SelectionProblem.from_classes(X[rest], y[rest], classes=3)).status is Status.OPTIMAL


def test_a_contradiction_of_ties_and_one_of_a_single_row() -> None:
    # Token 2 is the middle of tied tokens 0 and 1, and must score less than both.
    tied = SelectionProblem([[[1.0], [-1.0], [0.0]]], [[1.0]], [[True, True, False]])
    certificate = solve(tied).certificate
    assert isinstance(certificate, FarkasCertificate)
    assert [one.tolist() for one in contradictions(certificate)] == [[0]]
    assert "tokens of row 0 contradict each other" in margin_report(np.ones((1, 1)), tied).sentence


def two_contradictions() -> tuple[SelectionProblem, FarkasCertificate]:
    """Rows 0 and 1 contradict each other, rows 2 and 3 too, and row 4 is in no contradiction; a proof of both."""
    rows = np.array([[1.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    problem = SelectionProblem(np.stack([rows, np.zeros_like(rows)], axis=1), np.ones((5, 1)), np.zeros(5, int))
    certificate = FarkasCertificate(problem, np.array([[0.0, 2.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]))
    assert certificate.verify()
    return problem, certificate


def test_contradictions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, certificate = two_contradictions()
    assert sorted(one.tolist() for one in contradictions(certificate)) == [[0, 1], [2, 3]]
    # As many rows as are printed leave no others.
    monkeypatch.setattr("attsvm.theory.margin_report.PRINTED", 2)
    words = str(margin_report(np.ones((3, 1)), problem, ["frobenius"]))
    assert "rows 0 and 1" in words
    assert "rows 2 and 3" in words


def test_rows_of_very_different_lengths_contradict_each_other_all_the_same() -> None:
    """Linear programs have an absolute tolerance of 1e-7."""
    problem, certificate = two_contradictions()
    lengths = np.array([1e-6, 1e-6, 1.0, 1.0, 1.0])
    scaled = SelectionProblem(lengths[:, None, None] * problem.tokens, problem.queries, np.zeros(5, int))
    one = FarkasCertificate(scaled, certificate.dual)
    assert one.verify()
    assert sorted(rows.tolist() for rows in contradictions(one)) == [[0, 1], [2, 3]]


def test_ties_that_follow_from_each_other_hide_no_contradiction() -> None:
    """Three tied tokens of row 4 on a line: multipliers of their ties may grow for ever."""
    problem, certificate = two_contradictions()
    tokens = np.concatenate([problem.tokens, 2 * problem.tokens[:, :1]], axis=1)
    selected = np.array([[True, False, False]] * 4 + [[True, True, True]])
    mask = np.array([[True, True, False]] * 4 + [[True, True, True]])
    tied = SelectionProblem(tokens, problem.queries, selected, mask=mask)
    one = FarkasCertificate(tied, np.pad(certificate.dual, ((0, 0), (0, 1))))
    assert one.verify()
    assert sorted(rows.tolist() for rows in contradictions(one)) == [[0, 1], [2, 3]]


def test_a_multiplier_of_rounding_size_is_no_part_of_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(*args: Any, **options: Any) -> Any:
        outcome = linprog(*args, **options)
        if outcome.x is not None:
            outcome.x = np.where(outcome.x == 0, 1e-12, outcome.x)
        return outcome

    monkeypatch.setattr("attsvm.theory.contradiction.linprog", rounded)
    _, certificate = two_contradictions()
    assert sorted(one.tolist() for one in contradictions(certificate)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("W", [[[1.0], [np.nan]], [[np.inf], [1.0]], [[0.0], [0.0]]], ids=["nan", "infinite", "zero"])
def test_a_matrix_without_a_direction_is_refused(W: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"^W is zero or not finite; a direction was expected\.$"):
        margin_report(np.array(W), TIED)


def test_large_problems_give_the_rows_of_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.theory.contradiction.LARGEST_PROGRAM", 0)
    monkeypatch.setattr("attsvm.theory.margin_report.PRINTED", 2)
    X, y = classes("iris")
    report = margin_report(np.eye(3, 4), SelectionProblem.from_classes(X, y), ("frobenius",))
    certificate = report["frobenius"].solution.certificate
    assert certificate is not None
    (rows,) = report.contradictions
    assert rows.tolist() == np.flatnonzero(certificate.dual.any(axis=1)).tolist()
    assert f"rows {rows[0]}, {rows[1]} and {len(rows) - 2} others contradict" in report.sentence
