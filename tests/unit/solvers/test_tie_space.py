"""The space of equal tied scores: projections by the Gram matrix of the ties, against those by an orthonormal basis."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from attsvm import SelectionProblem
from attsvm.core.error_free import EPS
from attsvm.core.reduction import reduce
from attsvm.solvers.common import ties as module
from attsvm.solvers.common.ties import Ties
from attsvm.solvers.tie_equations import smallest_nuclear


def problems() -> dict[str, SelectionProblem]:
    rng = np.random.default_rng(0)
    several = rng.random((6, 9)).argsort(axis=1) < 3
    tokens = rng.standard_normal((6, 9, 5))
    few = several.cumsum(axis=1) <= 1
    few[0] |= several[0].cumsum() == 2
    twice = SelectionProblem.from_contexts(np.tile(rng.standard_normal((3, 4)), (2, 1)), np.tile(several[:3], (2, 1)))
    return {
        "one-hot words": SelectionProblem.from_contexts(rng.standard_normal((6, 7)), several),
        "one-hot words of repeated contexts": twice,
        "dense tokens": SelectionProblem(tokens, rng.standard_normal((6, 4)), several),
        "dense tokens of repeated queries": SelectionProblem(tokens[[0] * 6], np.ones((6, 4)), several[[0] * 6]),
        "no ties": SelectionProblem(tokens, rng.standard_normal((6, 4)), rng.integers(9, size=6)),
        "one tie": SelectionProblem(tokens, rng.standard_normal((6, 4)), several & few),
        "ties that are short": SelectionProblem(
            np.where(several[:, :, None], 1e-9, 1.0) * tokens, rng.standard_normal((6, 4)), several
        ),
    }


@pytest.mark.parametrize("name", problems())
def test_both_projections_are_the_same(name: str) -> None:
    reduced = reduce(problems()[name])
    W = np.random.default_rng(1).standard_normal(reduced.shape)
    by_gram, by_basis = Ties(reduced), Ties(reduced)
    projection = by_gram.project(W)
    assert "_row_space" not in by_gram.__dict__  # the basis needs a decomposition of all rows
    rows = by_basis.basis
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=64 * EPS)
    expected = by_basis.project(W)
    # Ties are well conditioned here, or exactly dependent.
    np.testing.assert_allclose(projection, expected, atol=1e3 * EPS * float(np.linalg.norm(W)))
    margins = np.abs(reduced.apply(projection))[reduced.tied] / reduced.lengths[reduced.tied]
    assert (margins <= 16 * EPS * np.linalg.norm(W)).all()
    assert bool(by_gram) == reduced.tied.any()


def test_nearly_dependent_ties_are_left_to_the_basis() -> None:
    """Queries that differ by 1e-9: the Gram matrix sees one equation, the basis both."""
    queries = np.array([[1.0, 0.0], [1.0, 1e-9]])
    reduced = reduce(SelectionProblem.from_contexts(queries, [[True, True, False]] * 2))
    ties = Ties(reduced)
    W = np.random.default_rng(2).standard_normal(reduced.shape)
    projection = ties.project(W)
    assert len(ties.basis) == 2
    assert np.abs(ties.basis @ projection.ravel()).max() <= 16 * EPS * np.linalg.norm(W)


def test_ties_whose_gram_matrix_has_no_factor_are_left_to_the_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LinAlgError("rounding makes the matrix indefinite")

    reduced = reduce(problems()["dense tokens"])
    W = np.random.default_rng(1).standard_normal(reduced.shape)
    expected = Ties(reduced).project(W)
    monkeypatch.setattr(module, "factor", fail)
    np.testing.assert_allclose(Ties(reduced).project(W), expected, atol=1e3 * EPS * float(np.linalg.norm(W)))


def test_copies_of_a_tied_token_are_no_equation() -> None:
    reduced = reduce(SelectionProblem([[[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]]], [[1.0]], [[True, True, False]]))
    assert reduced.tied.any()
    assert not Ties(reduced)


def test_scores_that_differ_by_more_than_rounding_are_made_equal() -> None:
    """Twice the rounding of the sums, which grows with the root of the sizes, and which a matrix may keep."""
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((2, 60, 40)), rng.standard_normal((2, 40))
    selected = np.arange(60) < np.array([[2], [1]])
    reduced = reduce(SelectionProblem(tokens, queries, selected), rotate=False)
    assert reduced.tied.sum() == 1
    ties, length = Ties(reduced), float(reduced.lengths[reduced.tied][0])
    W = Ties(reduced).project(rng.standard_normal(reduced.shape))
    rounding = module.TIE_ROUNDING * np.sqrt(sum(reduced.shape)) * float(np.linalg.norm(W)) * length
    apart = W + reduced.adjoint(np.where(reduced.tied, 2.0 * rounding / length**2, 0.0))
    assert np.abs(reduced.apply(apart)[reduced.tied]) > 1.5 * rounding
    assert np.abs(reduced.apply(ties.project(apart))[reduced.tied]) <= rounding


@pytest.mark.parametrize("size", [1e-13, 1e9])
def test_the_smallest_matrix_scales_with_its_differences(size: float) -> None:
    """Also where they are below the gap that is asked for, which is relative."""
    rng = np.random.default_rng(3)
    tokens, queries = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 3))
    reduced = reduce(SelectionProblem(tokens, queries, np.ones((3, 2), dtype=bool)))
    start = rng.standard_normal(reduced.shape)
    (one, gap), (other, other_gap) = smallest_nuclear(reduced, start), smallest_nuclear(reduced, size * start)
    assert max(gap, other_gap) <= 1e-11
    assert np.linalg.norm(one, "nuc") < 0.99 * np.linalg.norm(start, "nuc")
    assert np.linalg.norm(other / size, "nuc") == pytest.approx(np.linalg.norm(one, "nuc"), rel=1e-10)
