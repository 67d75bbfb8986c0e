r"""Small changes of W after which tied tokens have exactly equal scores.

The equations of a few ties are solved exactly, by a rational combination of their rows. Many ties get a rounded
solution and a right inverse of the equations, from which :mod:`attsvm.check` bounds the distance to an exactly tied
matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.proofs import linear
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.words import table

# Number of ties up to which exact elimination takes milliseconds.
EXACT_TIES = 32
# Largest number of entries of a right inverse; the checker multiplies it by every equation.
INVERSE_NUMBERS = 200_000


@dataclass(frozen=True, eq=False)
class TieEquations:
    """Token differences (k, d), queries (k, dz) and present margins (k,) of the tied tokens, exactly."""

    left: Dyadic
    right: Dyadic
    margins: Dyadic

    @classmethod
    def of(cls, problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray, W: Dyadic) -> TieEquations:
        """Collect the equations of ties (rows, columns), queries and tokens, each (k,), k >= 1, and their margins."""
        left, right = [], []
        for i, t in zip(rows.tolist(), columns.tolist(), strict=True):
            tokens = Dyadic.of(problem.tokens[problem.sequence[i], [problem.reference[i], t]])
            left.append(Dyadic(tokens.numbers[0] - tokens.numbers[1], tokens.exponent))
            right.append(Dyadic.of(problem.queries[i]))
        equations = common(left), common(right)
        return cls(*equations, margins_of(*equations, W))


@dataclass(frozen=True, eq=False)
class Move:
    """A change of W: ``W + change / denominator`` satisfies the ties."""

    change: Dyadic
    denominator: int

    def fractions(self) -> np.ndarray:
        """Return the change of W, (d, dz) of Fraction."""
        shape = self.change.numbers.shape
        return np.array(self.change.fractions(), dtype=object).reshape(shape) / self.denominator


def tie_witness(problem: SelectionProblem, W: np.ndarray) -> tuple[Any, Any]:
    """Write the change that moves W (d, dz) onto its ties and, for many ties, a right inverse that bounds the residual.

    Returns
    -------
    move : list or None
        Added to W; None if its ties are exact.
    ties : list or None
        Pairs of a constraint's index and a matrix whose margin is near one at this tie and near zero at the others.

    Raises
    ------
    ValueError
        If there are too many equations for an exact solution, and too many or dependent ones for a right inverse.
    """
    rows, columns = np.nonzero(problem.tied)
    equations = TieEquations.of(problem, rows, columns, Dyadic.of(W)) if len(rows) else None
    if equations is None or not equations.margins.numbers.any():
        return None, None
    move = exact_move(equations)
    if move is not None:
        return [[str(x) for x in row] for row in move.fractions().tolist()], None
    numbers = np.flatnonzero(problem.constrained).searchsorted(np.flatnonzero(problem.tied))
    places, inverse = right_inverse_of_ties(equations)
    if inverse is None or inverse.size > INVERSE_NUMBERS:
        raise ValueError(f"problem has {len(rows)} tied tokens; few enough for an exact solution were expected")
    margins = np.array(equations.margins.fractions(), dtype=object)[places].astype(np.float64)
    change = -(inverse @ margins).reshape(W.shape)
    matrices = zip(numbers[places].tolist(), inverse.T.reshape(-1, *W.shape), strict=True)
    return table(change), [[number, table(matrix)] for number, matrix in matrices]


def exact_move(ties: TieEquations) -> Move | None:
    """Solve the equations over the rationals; None when there are too many."""
    left, right = ties.left, ties.right
    gram = np.dot(left.numbers, left.numbers.T) * np.dot(right.numbers, right.numbers.T)
    _, columns = linear.independent(gram)
    if len(columns) > EXACT_TIES:
        return None
    # Independent columns of a Gram matrix are independent rows too, and their square part is nonsingular.
    multipliers = linear.solve(gram[np.ix_(columns, columns)], -ties.margins.numbers[columns])
    if multipliers is None:
        return None
    values, denominator = np.array(multipliers[0], dtype=object), multipliers[1]
    numbers = np.dot((left.numbers[columns] * values[:, None]).T, right.numbers[columns])
    return Move(Dyadic(numbers, ties.margins.exponent - left.exponent - right.exponent), denominator)


def right_inverse_of_ties(ties: TieEquations) -> tuple[np.ndarray, np.ndarray | None]:
    """Find the distinct equations (k,) and, in floats, a right inverse (d dz, k) of them, or None."""
    left, right = _rounded(ties.left), _rounded(ties.right)
    keys = np.concatenate([ties.left.numbers, ties.right.numbers], axis=1)
    distinct: dict[tuple[int, ...], int] = {}
    for k in np.flatnonzero(left.any(axis=1) & right.any(axis=1)).tolist():
        distinct.setdefault(tuple(keys[k].tolist()), k)
    places = np.array(list(distinct.values()), dtype=int)
    rows = constraint_rows(left[places], right[places])
    if rows.shape[0] > rows.shape[1]:
        return places, None
    try:
        return places, np.linalg.pinv(rows)
    except np.linalg.LinAlgError:
        return places, None


def _rounded(exact: Dyadic) -> np.ndarray:
    """Round to the nearest floats."""
    return np.array([float(a) for a in exact.fractions()]).reshape(exact.numbers.shape)


def margins_of(left: Dyadic, right: Dyadic, W: Dyadic) -> Dyadic:
    """Margins (k,) of W (d, dz) at token differences (k, d) and queries (k, dz)."""
    images = left @ W  # (k, dz)
    return Dyadic((images.numbers * right.numbers).sum(axis=1), images.exponent + right.exponent)


def common(parts: list[Dyadic]) -> Dyadic:
    """Stack arrays with a common exponent."""
    least = min(part.exponent for part in parts)
    return Dyadic(np.array([part.at(least) for part in parts], dtype=object), least)
