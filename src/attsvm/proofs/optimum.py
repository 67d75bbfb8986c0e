r"""Proof of an optimum: an exact interval for the smallest norm.

*Above*: the margins of the floats W are dyadic rationals; when the smallest, m, is positive, W/m is feasible and
:math:`\|W\|/m` bounds the optimum. Tied tokens must score exactly the same: W is moved a little
(:mod:`attsvm.proofs.tie_moves`), and the norm of the move is added.

*Below*: any multipliers that are nonnegative on rejected tokens give :math:`1^\top\lambda / \|A^\top\lambda\|_*`.

W and the multipliers are the solver's floats, taken at face value; nothing else of the solver is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.norm_bounds import dual_norm_above, norm_above, root_above
from attsvm.proofs.tie_moves import Move, TieEquations, bounded_move, exact_move


def differences(problem: SelectionProblem, i: int) -> Dyadic:
    """Return x_{i alpha_i} - x_it for every token of query i, (T, d)."""
    tokens = Dyadic.of(problem.tokens[problem.sequence[i]])
    selection = tokens.numbers[problem.reference[i]]
    return Dyadic(selection[None, :] - tokens.numbers, tokens.exponent)


def lower_bound(problem: SelectionProblem, norm: Norm, dual: np.ndarray) -> Fraction:
    """Bound the smallest norm from below with multipliers (n, T); zero when they say nothing."""
    dual = np.where(problem.rejected, np.maximum(dual, 0.0), np.where(problem.tied, dual, 0.0))
    if not np.isfinite(dual).all():
        return Fraction(0)
    weights = Dyadic.of(dual)
    total = weights.value(int(weights.numbers[problem.rejected].sum()))
    if total <= 0:
        return Fraction(0)
    length = dual_norm_above(norm, exact_adjoint(problem, weights))
    return total / length if length > 0 else Fraction(0)


def exact_adjoint(problem: SelectionProblem, dual: Dyadic) -> Dyadic:
    """Sum of dual_it (x_{i alpha_i} - x_it) z_i^T, (d, dz), for multipliers (n, T) with a nonzero one."""
    adjoint: Dyadic | None = None
    queries = Dyadic.of(problem.queries)
    for i in np.flatnonzero((dual.numbers != 0).any(axis=1)).tolist():
        used = np.flatnonzero(dual.numbers[i])
        token = Dyadic(dual.numbers[i, used][None, :], dual.exponent) @ differences(problem, i)[used]
        part = token.T @ Dyadic(queries.numbers[i][None, :], queries.exponent)
        adjoint = part if adjoint is None else adjoint + part
    assert adjoint is not None
    return adjoint


def upper_bound(problem: SelectionProblem, norm: Norm, W: np.ndarray) -> tuple[Fraction | None, str]:
    """Bound the smallest norm from above with W (d, dz); None and a reason when it proves nothing."""
    if not np.isfinite(W).all():
        return None, "there is no W to check."
    exact = Dyadic.of(W)
    length = norm_above(norm, exact)
    bounds = exact_margins(problem, exact)
    if isinstance(bounds, str):
        return None, bounds
    margins, move = bounds
    if not margins:
        return Fraction(0), ""
    smallest = min(margins)
    if smallest <= 0:
        return None, "the smallest margin of W is not positive."
    return (length + move.above(norm)) / smallest, ""


def exact_margins(problem: SelectionProblem, exact: Dyadic) -> tuple[list[Fraction], Move] | str:
    """Bound the margins of rejected tokens from below, under a W next to the given one whose ties hold.

    Returns
    -------
    margins : list of Fraction
    move : Move
        From the given W (d, dz) to that one.
    reason : str
        Instead of both, where the ties could not be restored.
    """
    ties = _tie_equations(problem, exact)
    move = exact_move(ties) if ties is not None else Move()
    if move is None and ties is not None:
        move = bounded_move(ties)
    if move is None:
        return "the equations of the tied tokens could not be solved."
    # The margins below are those of denominator * W + change, at most reach * |delta||z| from those of the W that ties.
    corrected = exact
    if move.change is not None:
        corrected = Dyadic(exact.numbers * move.denominator, exact.exponent) + move.change
    factor, least = abs(move.denominator), []
    sign = 1 if move.denominator > 0 else -1
    for i, margins in _margins(problem, corrected):
        if not move.reach and np.any(margins.numbers[problem.tied[i]] != 0):
            return "the tied tokens do not score the same."
        for t in np.flatnonzero(problem.rejected[i]).tolist():
            margin = margins.value(sign * margins.numbers[t]) / factor
            least.append(margin - move.reach * _length_above(problem, i, t) if move.reach else margin)
    return least, move


def _length_above(problem: SelectionProblem, i: int, t: int) -> Fraction:
    delta = differences(problem, i)[t]
    square = delta.value(1) ** 2 * sum(a * a for a in delta.numbers.tolist())
    z = Dyadic.of(problem.queries[i])
    return root_above(square * z.value(1) ** 2 * sum(a * a for a in z.numbers.tolist()))


def _margins(problem: SelectionProblem, W: Dyadic) -> Iterator[tuple[int, Dyadic]]:
    """Yield each query's index and exact margins (T,)."""
    queries = Dyadic.of(problem.queries)
    for i in range(len(problem.queries)):
        if (problem.rejected[i] | problem.tied[i]).any():
            u = W @ Dyadic(queries.numbers[i], queries.exponent)  # (d,)
            yield i, differences(problem, i) @ u


def _tie_equations(problem: SelectionProblem, W: Dyadic) -> TieEquations | None:
    """Gather all ties, where W does not satisfy every one exactly by itself; None when it does."""
    rows, columns = np.nonzero(problem.tied)
    equations = TieEquations.of(problem, rows, columns, W) if len(rows) else None
    return equations if equations is not None and equations.margins.numbers.any() else None
