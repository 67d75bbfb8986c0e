r"""Moving W a little, so that tied tokens score exactly the same.

A few ties: the combination of their own rows that solves their equations, over the rationals. Many: a proof that some
small solution exists (:mod:`attsvm.proofs.surjective`), whose size is then added to every bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from attsvm.core.error_free import UNIT
from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.core.rounding import gamma
from attsvm.proofs import linear
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.norm_bounds import growth_above, norm_above
from attsvm.proofs.surjective import TINY, right_inverse

# Exact elimination takes milliseconds up to about here.
FEW = 32


@dataclass(frozen=True, eq=False)
class TieEquations:
    """Token differences (k, d), queries (k, dz) and present margins (k,) of the tied tokens, exactly."""

    left: Dyadic
    right: Dyadic
    margins: Dyadic

    @classmethod
    def of(cls, problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray, W: Dyadic) -> TieEquations:
        """Gather the ties of queries and tokens (rows, columns), each (k,), at least one, with their margins at W."""
        left, right = [], []
        for i, t in zip(rows.tolist(), columns.tolist(), strict=True):
            tokens = Dyadic.of(problem.tokens[problem.sequence[i], [problem.reference[i], t]])
            left.append(Dyadic(tokens.numbers[0] - tokens.numbers[1], tokens.exponent))
            right.append(Dyadic.of(problem.queries[i]))
        equations = common(left), common(right)
        return cls(*equations, margins_of(*equations, W))


@dataclass(frozen=True, eq=False)
class Move:
    """The W that ties is ``W + change / denominator + E``, the absolute entries of E summing to at most ``reach``."""

    change: Dyadic | None = None
    denominator: int = 1
    reach: Fraction = Fraction(0)

    def above(self, norm: Norm) -> Fraction:
        """Bound the norm of the whole move."""
        if self.change is None:
            return Fraction(0)
        length = norm_above(norm, self.change) / abs(self.denominator)
        return length + self.reach * growth_above(norm, self.change.numbers.shape) if self.reach else length


def exact_move(ties: TieEquations) -> Move | None:
    """Solve the equations over the rationals; None when there are too many."""
    left, right = ties.left, ties.right
    gram = np.dot(left.numbers, left.numbers.T) * np.dot(right.numbers, right.numbers.T)
    _, columns = linear.independent(gram)
    if len(columns) > FEW:
        return None
    # Independent columns of a Gram matrix are independent rows too, and their square part is nonsingular.
    multipliers = linear.solve(gram[np.ix_(columns, columns)], -ties.margins.numbers[columns])
    if multipliers is None:
        return None
    values, denominator = np.array(multipliers[0], dtype=object), multipliers[1]
    numbers = np.dot((left.numbers[columns] * values[:, None]).T, right.numbers[columns])
    return Move(Dyadic(numbers, ties.margins.exponent - left.exponent - right.exponent), denominator)


def bounded_move(ties: TieEquations) -> Move | None:
    """Prove that a small solution exists; None when rows depend on each other beyond duplicates."""
    left, right = _rounded(ties.left), _rounded(ties.right)
    present = constraint_rows(left != 0, right != 0)
    rows = constraint_rows(left, right)
    distinct = np.flatnonzero(present.any(axis=1))
    if not len(distinct):
        return None
    _, first = np.unique(rows[distinct], axis=0, return_index=True)
    distinct = distinct[np.sort(first)]
    # Duplicates in floats might differ exactly: only those with the same exact margin may go.
    if not (np.abs(rows[present]) > TINY).all() or not _same_margins(ties, rows, distinct):
        return None
    # Rounding a difference to a float, a query (exact), and their product.
    inverse = right_inverse(rows[distinct], 3)
    if inverse is None:
        return None
    # One rounded correction leaves a residual far below rounding of W; the proof is for the remainder.
    margins = np.array([float(ties.margins.value(int(ties.margins.numbers[k]))) for k in distinct])
    change = Dyadic.of(-(inverse.Y @ (inverse.scale * margins)).reshape(left.shape[1], right.shape[1]))
    largest = 0.0
    for k, scale in zip(distinct.tolist(), inverse.scale.tolist(), strict=True):
        step = Dyadic(ties.left.numbers[k], ties.left.exponent) @ (
            change @ Dyadic(ties.right.numbers[k], ties.right.exponent)
        )
        remainder = ties.margins.value(int(ties.margins.numbers[k])) + step.value(int(step.numbers))
        largest = max(largest, float(abs(remainder)) * scale * (1 + 2 * UNIT))
    total = float(np.abs(inverse.Y).sum()) * (1 + gamma(inverse.Y.size))
    return Move(change, reach=Fraction(total * inverse.multiplier(largest) * (1 + 8 * UNIT)))


def _same_margins(ties: TieEquations, rows: np.ndarray, distinct: np.ndarray) -> bool:
    """Tell whether every tie left out repeats a kept one exactly, or is no equation."""
    keys = {_key(ties, k) for k in distinct.tolist()}
    return all(_key(ties, k) in keys or not rows[k].any() for k in range(len(rows)))


def _key(ties: TieEquations, k: int) -> tuple[int, ...]:
    return (*ties.left.numbers[k].tolist(), *ties.right.numbers[k].tolist())


def _rounded(exact: Dyadic) -> np.ndarray:
    """Round to the nearest floats."""
    return np.array([float(a) for a in exact.fractions()]).reshape(exact.numbers.shape)


def margins_of(left: Dyadic, right: Dyadic, W: Dyadic) -> Dyadic:
    """Margins (k,) of W (d, dz) at token differences (k, d) and queries (k, dz)."""
    images = left @ W  # (k, dz)
    return Dyadic((images.numbers * right.numbers).sum(axis=1), images.exponent + right.exponent)


def common(parts: list[Dyadic]) -> Dyadic:
    """Stack arrays under one exponent."""
    least = min(part.exponent for part in parts)
    return Dyadic(np.array([part.at(least) for part in parts], dtype=object), least)
