r"""Newton with conjugate gradients for squared hinges over one-hot tokens in the Frobenius norm.

Let :math:`V = W - W_0` and let :math:`u = \max(0, c - A(V))` be the shortfalls. The objective is
:math:`\tfrac12\|V\|_F^2 + \sum C_i u_{it}^2`. Its gradient is :math:`V - A^\top\lambda` with the multipliers
:math:`\lambda = 2 C_i u`. The gap of V and these multipliers is :math:`\tfrac12\|V - A^\top\lambda\|_F^2`, so it falls
with the square of the gradient. Newton's matrix is :math:`I + \sum 2 C_i a_{it} a_{it}^\top` over the margins that fall
short (Keerthi and DeCoste, JMLR 6, 2005). Conjugate gradients solve for a step to a share of the gradient (Lin, Weng
and Keerthi, JMLR 9, 2008). The preconditioner is the inverse of the diagonal blocks, one per token. While many margins
fall short and conjugate gradients are few, multiples of one matrix stand for the blocks.

C grows to its value tenfold at a time, since steps are short while many margins fall short by far.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.reduction import SMALLEST
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.words.margins import Matrix, Point, Words, within_range

# Largest share of the gradient that a step leaves, largest number of steps, and of conjugate gradients in a step.
RESIDUAL, NEWTON_STEPS, CONJUGATE_STEPS = 0.1, 300, 500
# Number of conjugate gradients after which preconditioners take every block.
MANY_STEPS = 30
# The first C over the C at which norm and losses of the first multipliers are equal, the share of the objective that a
# step promises to take off where C grows, and its factor.
FIRST, STAGE, GROWTH = 10.0, 0.1, 10.0
# Ratio of slopes at which a search along a step ends, and its largest number of trials.
FLAT, SEARCHES = 0.03, 30
# Share of the margins that fall short up to which they are entries of a sparse matrix.
FEW_SHORT = 0.05


def memory_of(program: Program) -> int:
    """Estimate the bytes of margins, their changes and multipliers, and of diagonal blocks."""
    n, T, _, dz = program.problem.shape
    return 8 * (3 * n * T + 3 * T * dz**2)


@within_range
def truncated_newton(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise a program that :func:`suits_words`; return W (d, dz) and multipliers (n, T).

    Returns None if squares leave the range of floats; methods that scale the problem go on.
    """
    control.enter("truncated Newton")
    words = Words(program)
    margins = words.start(program.origin)
    V = np.zeros(words.shape)
    share = min(1.0, FIRST * words.at(V, margins, 1.0).scale)
    if not share > SMALLEST:
        return None
    point, most, decrease = words.at(V, margins, share), 0, math.inf
    for _ in range(NEWTON_STEPS):
        if not math.isfinite(point.value):
            return None
        if share < 1.0 and decrease < STAGE * point.value:
            share = min(1.0, share * GROWTH)
            point = words.at(V, margins, share)
        # The adjoint takes the place of the multipliers, whose copy would be as large as the margins.
        best = (V, point.value, point.adjoint, point.bound) if share == 1.0 else (None, np.inf, None, 0.0)
        if control.observe(*best):
            break
        inverse = preconditioner(words, point, share, exact=most > MANY_STEPS)
        step, count = newton_step(words, V, point, share, inverse)
        most, decrease = max(most, count), 0.5 * float(np.vdot(point.adjoint - V, step))
        change = words.margins(step)
        length = step_length(words, V, point, step, margins, change, share)
        words.advance(margins, change, length)
        V = V + length * step
        point = words.at(V, margins, share)
    control.W = control.dual = None
    return program.origin + words.lift(V), words.multipliers(margins, share)


def preconditioner(words: Words, point: Point, share: float, *, exact: bool) -> Matrix:
    """Products with the inverse of an approximation of Newton's matrix; ``exact`` asks for every block."""
    if exact or _few_fall_short(point):
        blocks = words.blocks(point.active, share)
        blocks[:, range(blocks.shape[1]), range(blocks.shape[1])] += 1.0
        inverses = np.linalg.inv(blocks)
        return lambda S: np.matmul(inverses, S[:, :, None])[:, :, 0]
    moment, counts = words.multiples(point.active, share)
    sizes, vectors = np.linalg.eigh(moment)
    sizes = 1.0 + counts * np.maximum(sizes, 0.0)
    return lambda S: (S @ vectors / sizes) @ vectors.T


def newton_step(words: Words, V: np.ndarray, point: Point, share: float, inverse: Matrix) -> tuple[np.ndarray, int]:
    """Solve for Newton's step (T, dz) by conjugate gradients to a share of the gradient; return it and their number."""
    curvature = (words.sparse_curvature if _few_fall_short(point) else words.dense_curvature)(point.active, share)
    residual = point.adjoint - V
    step, direction = np.zeros(words.shape), inverse(residual)
    square = float(np.vdot(residual, direction))
    last, count = min(RESIDUAL**2, point.gap) * square, 0
    for _ in range(CONJUGATE_STEPS):
        count += 1
        image = direction + curvature(direction)
        steepness = float(np.vdot(direction, image))
        if not steepness > 0:  # rounding
            break
        length = square / steepness
        step += length * direction
        residual -= length * image
        image = inverse(residual)
        before, square = square, float(np.vdot(residual, image))
        if not square > last:
            break
        direction = image + (square / before) * direction
    return step, count


def _few_fall_short(point: Point) -> bool:
    return bool(np.count_nonzero(point.active) <= FEW_SHORT * point.active.size)


def step_length(
    words: Words, V: np.ndarray, point: Point, step: np.ndarray, margins: np.ndarray, change: np.ndarray, share: float
) -> float:
    """Minimise the objective along a step (T, dz) by safeguarded Newton steps."""
    steepest, low, high, length = float(np.vdot(V - point.adjoint, step)), 0.0, math.inf, 1.0
    first, second = float(np.vdot(V, step)), float(np.vdot(step, step))
    for _ in range(SEARCHES):
        slope, curvature = words.slope(margins, change, length, share)
        slope, curvature = slope + first + length * second, curvature + second
        if abs(slope) <= FLAT * abs(steepest):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        new = length - slope / curvature
        length = new if low < new < high else 0.5 * (low + high) if math.isfinite(high) else 2.0 * length
    return length
