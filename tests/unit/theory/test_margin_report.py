"""Shares of the largest margin: ties, norms without a word of their own, and matrices without a share."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from attsvm import SelectionProblem, margin_report, solve
from attsvm.theory.margin_report import REPORT_NORMS, TOL

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
        assert len(report.to_frame()) == len(norms)
        assert len(report.plot(Figure().subplots()).patches) == len(norms)
        assert report[report.nearest] in report.shares
