r"""Proof of an optimum: an exact interval for the smallest norm, or objective.

*Above*: the margins of the floats W are dyadic rationals; when the smallest, m, is positive, W/m is feasible and
:math:`\|W\|/m` bounds the optimum. Tied tokens must score exactly the same: W is moved a little
(:mod:`attsvm.proofs.tie_moves`), and the norm of the move is added. Losses are rational too, and beside a prior
:math:`\|W/m - W_0\| \le \|W - W_0\| + (1/m - 1)\|W\|` for m < 1.

*Below*: any multipliers that are nonnegative on rejected tokens give :math:`1^\top\lambda / \|A^\top\lambda\|_*`, and
with losses or a prior the bound of :mod:`attsvm.proofs.objective`. With :math:`M = A^\top\lambda` exact,
:math:`c^\top\lambda = \sum_{rejected}\lambda - \langle W_0, M\rangle`; half the square of the Frobenius norm needs no
root at all, any other norm divides by an upper bound on the dual norm of M.

W and the multipliers are the solver's floats as they are; nothing else of the solver is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.norm_bounds import dual_norm_above, norm_above, root_above
from attsvm.proofs.objective import PLAIN, Regularisation
from attsvm.proofs.tie_moves import Move, TieEquations, bounded_move, exact_move


def differences(problem: SelectionProblem, i: int) -> Dyadic:
    """Return x_{i alpha_i} - x_it for every token of query i, (T, d)."""
    tokens = Dyadic.of(problem.tokens[problem.sequence[i]])
    selection = tokens.numbers[problem.reference[i]]
    return Dyadic(selection[None, :] - tokens.numbers, tokens.exponent)


def lower_bound(
    problem: SelectionProblem, norm: Norm, dual: np.ndarray, regularisation: Regularisation = PLAIN
) -> Fraction:
    """Bound the smallest norm, or objective, from below with multipliers (n, T); zero when they prove nothing."""
    terms = regularisation.terms(problem, norm)
    dual = terms.clip(dual)
    if not (np.isfinite(dual).all() and dual.any()):
        return Fraction(0)
    weights = Dyadic.of(dual)
    values, adjoint = weights.numbers[problem.rejected], exact_adjoint(problem, weights)
    gain = weights.value(int(values.sum()))
    if regularisation.prior is not None:
        origin = Dyadic.of(regularisation.prior)
        gain -= Fraction(2) ** (adjoint.exponent + origin.exponent) * int((adjoint.numbers * origin.numbers).sum())
    curvature = Fraction(terms.shift) * weights.value(1) ** 2 * int((values * values).sum())
    if terms.squared and norm is FROBENIUS:
        square = adjoint.value(1) ** 2 * int((adjoint.numbers * adjoint.numbers).sum())
        return max(gain - (curvature + square) / 2, Fraction(0))
    length = dual_norm_above(norm, adjoint)
    if terms.squared:
        return max(gain - (curvature + length * length) / 2, Fraction(0))
    if terms.hard:
        return max(gain / length, Fraction(0)) if length > 0 else Fraction(0)
    scale = 1 / max(length, Fraction(1))
    return max(scale * gain - scale * scale * curvature / 2, Fraction(0))


def exact_adjoint(problem: SelectionProblem, dual: Dyadic) -> Dyadic:
    """Sum of dual_it (x_{i alpha_i} - x_it) z_i^T, (d, dz), for multipliers (n, T) with a nonzero one."""
    adjoint: Dyadic | None = None
    queries = Dyadic.of(problem.queries)
    for i in np.flatnonzero((dual.numbers != 0).any(axis=1)).tolist():
        support = np.flatnonzero(dual.numbers[i])
        token = Dyadic(dual.numbers[i, support][None, :], dual.exponent) @ differences(problem, i)[support]
        part = token.T @ Dyadic(queries.numbers[i][None, :], queries.exponent)
        adjoint = part if adjoint is None else adjoint + part
    assert adjoint is not None
    return adjoint


def upper_bound(
    problem: SelectionProblem, norm: Norm, W: np.ndarray, regularisation: Regularisation = PLAIN
) -> tuple[Fraction | None, str]:
    """Bound the smallest norm, or objective, from above with W (d, dz); None and a reason when it proves nothing."""
    if not np.isfinite(W).all():
        return None, "there is no W to check."
    exact, prior = Dyadic.of(W), regularisation.prior
    bounds = exact_margins(problem, exact)
    if isinstance(bounds, str):
        return None, bounds
    margins, move = bounds
    if regularisation.plain and not margins:
        return Fraction(0), ""
    smallest, change, terms = min(margins, default=Fraction(1)), move.above(norm), regularisation.terms(problem, norm)
    length = norm_above(norm, exact) + change
    if regularisation.plain and smallest > 0:
        return length / smallest, ""
    distance = length if prior is None else norm_above(norm, exact - Dyadic.of(prior)) + change
    values = []
    if smallest > 0:
        values.append(terms.of_length(distance + (1 / min(smallest, Fraction(1)) - 1) * length))
    if not terms.hard:
        short = [1 - margin for margin in margins if margin < 1]
        loss = terms.price(sum(short, Fraction(0)), sum((u * u for u in short), Fraction(0)))
        values.append(terms.of_length(distance) + loss)
    return (min(values), "") if values else (None, "the smallest margin of W is not positive.")


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
    on_ties = exact
    if move.change is not None:
        on_ties = Dyadic(exact.numbers * move.denominator, exact.exponent) + move.change
    factor, least = abs(move.denominator), []
    sign = 1 if move.denominator > 0 else -1
    for i, margins in _margins(problem, on_ties):
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
