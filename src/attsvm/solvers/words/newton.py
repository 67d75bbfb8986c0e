r"""Newton with conjugate gradients for squared hinges over one-hot tokens: classes or words, and many entries of W.

Let :math:`V = W - W_0` and let :math:`u = \max(0, c - A(V))` be the shortfalls. The objective is
:math:`f(V) + \sum C_i u_{it}^2`; f is half the squared Frobenius norm, or the nuclear norm, smoothed
(:mod:`attsvm.solvers.words.penalties`). Its gradient is :math:`\nabla f(V) - A^\top\lambda` with the multipliers
:math:`\lambda = 2 C_i u`. In the Frobenius norm the gap of V and these multipliers is :math:`\tfrac12\|V -
A^\top\lambda\|_F^2`, so it falls with the square of the gradient. Newton's matrix is :math:`\nabla^2 f + \sum 2 C_i
a_{it} a_{it}^\top` over the margins that fall short (Keerthi and DeCoste, JMLR 6, 2005). Conjugate gradients solve for
a step to a share of the gradient (Lin, Weng and Keerthi, JMLR 9, 2008). The preconditioner is the inverse of the
diagonal blocks, one per token. While many margins fall short and conjugate gradients are few, multiples of one matrix
stand for the blocks.

C grows to its value tenfold at a time, since steps are short while many margins fall short by far.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from attsvm.core.norms import FROBENIUS, NUCLEAR
from attsvm.core.reduction import SMALLEST
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.words.margins import Point, Words
from attsvm.solvers.words.penalties import Matrix, Penalty, penalty_of, times

# Largest share of the gradient that a step leaves, largest number of steps, and of conjugate gradients in a step.
RESIDUAL, NEWTON_STEPS, CONJUGATE_STEPS = 0.1, 300, 500
# Number of conjugate gradients after which preconditioners take every block and the whole Hessian of the penalty.
MANY_STEPS = 30
# The first C over the C at which norm and losses of the first multipliers are equal, the share of the objective that a
# step promises to take off where C grows, and its factor.
FIRST, STAGE, GROWTH = 10.0, 0.1, 10.0
# Ratio of slopes at which a search along a step ends, and its largest number of trials.
FLAT, SEARCHES = 0.03, 30
# Share of the margins that fall short up to which they are entries of a sparse matrix.
FEW_SHORT = 0.05


def suits_words(program: Program) -> bool:
    """Tell whether a program is a squared hinge in the Frobenius or nuclear norm over one-hot tokens, without ties."""
    problem = program.problem
    is_smooth = program.norm in (FROBENIUS, NUCLEAR) and program.terms.shift > 0
    return is_smooth and not problem.has_ties and problem.one_hot is not None


def memory_of(program: Program) -> int:
    """Estimate the bytes of margins, their changes and multipliers, and of diagonal blocks."""
    n, T, _, dz = program.problem.shape
    return 8 * (3 * n * T + 3 * T * dz**2)


def truncated_newton(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise a program that :func:`suits_words`; return W (d, dz) and multipliers (n, T).

    Returns None if squares leave the range of floats; methods that scale the problem go on.
    """
    control.enter("truncated Newton")
    try:
        return _minimise(program, control)
    except np.linalg.LinAlgError:  # LAPACK was given infinite squares
        return None


def _minimise(program: Program, control: Control) -> tuple[np.ndarray, np.ndarray] | None:
    words = Words(program)
    margins = words.start(program.origin)
    V = np.zeros(words.shape)
    start = words.at(penalty_of(program.norm, V, 1.0), margins, 1.0)
    share = min(1.0, FIRST * start.scale)
    if not share > SMALLEST:
        return None
    penalty = penalty_of(program.norm, V, start.value * start.scale)
    point, most, decrease = words.at(penalty, margins, share), 0, math.inf
    for _ in range(NEWTON_STEPS):
        if not math.isfinite(point.value):
            return None
        if share < 1.0 and decrease < STAGE * point.value:
            share = min(1.0, share * GROWTH)
            point = words.at(penalty, margins, share)
        elif share == 1.0:
            penalty = penalty.reduce_smoothing(decrease, control.tol * point.value)
        # The adjoint takes the place of the multipliers, whose copy would be as large as the margins.
        best = (penalty.V, point.value, point.adjoint, point.bound) if share == 1.0 else (None, np.inf, None, 0.0)
        if control.observe(*best):
            break
        inverse = preconditioner(words, penalty, point, share, control if most > MANY_STEPS else None)
        step, count = newton_step(words, penalty, point, share, inverse)
        most, decrease = max(most, count), 0.5 * float(np.vdot(point.adjoint - penalty.gradient, step))
        change = words.margins(step)
        length = step_length(words, penalty, point, step, margins, change, share)
        words.advance(margins, change, length)
        penalty = penalty.at(penalty.V + length * step)
        point = words.at(penalty, margins, share)
    control.W = control.dual = None
    return program.origin + words.lift(penalty.V), words.multipliers(margins, share)


def preconditioner(words: Words, penalty: Penalty, point: Point, share: float, control: Control | None) -> Matrix:
    """Products with the inverse of an approximation of Newton's matrix.

    It has every block, and the whole Hessian of the penalty, if a control is given and affords that.
    """
    if _few_fall_short(point) or control is not None:
        return _inverse_of_blocks(penalty, words.blocks(point.active, share), control)
    return _inverse_of_multiples(penalty, *words.multiples(point.active, share))


def newton_step(words: Words, penalty: Penalty, point: Point, share: float, inverse: Matrix) -> tuple[np.ndarray, int]:
    """Solve for Newton's step (T, dz) by conjugate gradients to a share of the gradient; return it and their number."""
    curvature = (words.sparse_curvature if _few_fall_short(point) else words.dense_curvature)(point.active, share)
    residual = point.adjoint - penalty.gradient
    step, direction = np.zeros(words.shape), inverse(residual)
    square = float(np.vdot(residual, direction))
    last, count = min(RESIDUAL**2, point.gap) * square, 0
    for _ in range(CONJUGATE_STEPS):
        count += 1
        image = penalty.product(direction) + curvature(direction)
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


def _inverse_of_blocks(penalty: Penalty, blocks: np.ndarray, control: Control | None) -> Matrix:
    """Products with the inverse of the penalty's Hessian, or of its first term, plus one block (dz, dz) a token."""
    basis = np.eye(blocks.shape[1]) if penalty.basis is None else penalty.basis
    if penalty.basis is not None:
        # One product of all rows is three times as quick as one for each token.
        blocks = basis.T @ (blocks.reshape(-1, len(basis)) @ basis).reshape(blocks.shape)
    blocks[:, range(len(basis)), range(len(basis))] += 1.0
    inverses = np.linalg.inv(blocks)
    full_inverse = None if control is None else penalty.full_inverse(inverses, control)
    inner = full_inverse or partial(times, inverses)
    return lambda S: inner(S @ basis) @ basis.T


def _inverse_of_multiples(penalty: Penalty, moment: np.ndarray, counts: np.ndarray) -> Matrix:
    """Products with the inverse of the first term of the penalty's Hessian plus counts (T, 1) times one matrix."""
    basis = np.eye(len(moment)) if penalty.basis is None else penalty.basis
    sizes, vectors = np.linalg.eigh(basis.T @ moment @ basis)
    basis, sizes = basis @ vectors, 1.0 + counts * np.maximum(sizes, 0.0)
    return lambda S: (S @ basis / sizes) @ basis.T


def step_length(
    words: Words,
    penalty: Penalty,
    point: Point,
    step: np.ndarray,
    margins: np.ndarray,
    change: np.ndarray,
    share: float,
) -> float:
    """Minimise the objective along a step (T, dz) by safeguarded Newton steps."""
    steepest, low, high, length = float(np.vdot(penalty.gradient - point.adjoint, step)), 0.0, math.inf, 1.0
    # The columns of V and of the step have one range on the whole line, so that at most 2 dz rows describe them.
    V, step = np.hsplit(np.linalg.qr(np.hstack([penalty.V, step]), mode="r"), 2)
    for _ in range(SEARCHES):
        there = penalty.at(V + length * step)
        slope, curvature = words.slope(margins, change, length, share)
        slope += float(np.vdot(there.gradient, step))
        curvature += float(np.vdot(there.product(step), step))
        if abs(slope) <= FLAT * abs(steepest):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        new = length - slope / curvature
        length = new if low < new < high else 0.5 * (low + high) if math.isfinite(high) else 2.0 * length
    return length
