r"""Problems that fall apart into blocks, each solved by itself and all certified as one.

Let W consist of blocks :math:`W_b`, and let its norm be the l_p norm of theirs: so are the entrywise l_p norms, the
Schatten norms if no two blocks have a row or column in common, and mixed norms by whole rows or columns. Then the
smallest W consists of the smallest blocks. Multipliers with adjoint of dual norm one that prove the bounds :math:`v_b`
of the blocks prove, times :math:`v_b^{p-1}`, the bound :math:`\|v\|_p` (Hoelder's inequality is tight). Losses separate
if they are added to half the squared Frobenius norm, or to a norm with p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from attsvm.core.blocks import Shared, blocks_of
from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.norms.entrywise import Entrywise
from attsvm.core.norms.mixed import Mixed
from attsvm.proofs.program import Program
from attsvm.solution.solution import Solution
from attsvm.solvers.common.control import Control
from attsvm.solvers.working_sets.solving import Outcome


def solve_blocks(program: Program, tol: float, control: Control, solve: Callable[..., Solution]) -> Outcome | None:
    """Solve the blocks of a problem by ``solve``; None if it has one, or if a block ends without W before any limit.

    Returns multipliers that prove infeasibility, W, and multipliers that bound the norm, as other methods do.
    """
    power, shared = _combination(program)
    problem, regularisation = program.problem, program.regularisation
    blocks = [] if shared is None else blocks_of(problem, shared)
    if not blocks:
        return None
    control.method = f"{len(blocks)} independent blocks"
    W, dual = program.origin.copy(), np.zeros(problem.mask.shape)
    bounds = np.zeros(len(blocks))
    for index, block in enumerate(blocks):
        if control.is_over():
            return None, None, None
        places, entries = np.ix_(block.queries, block.tokens), np.ix_(block.rows, block.columns)
        prices = regularisation.C[block.queries] if isinstance(regularisation.C, np.ndarray) else regularisation.C
        part = solve(
            block.problem(problem),
            program.norm,
            tol=tol / 2,  # rounding takes some of it
            max_iter=None if control.max_iter is None else control.max_iter - control.iterations,
            time_limit=None if control.time_limit is None else control.time_limit - control.seconds,
            callback=None if control.callback is None else lambda _: control.is_over(),
            C=prices,
            loss=regularisation.loss,
            prior=None if program.prior is None else program.prior[entries],
        )
        if part.certificate is not None:
            multipliers = np.zeros(problem.mask.shape)
            multipliers[places] = part.certificate.dual
            return multipliers, None, None
        if not np.isfinite(part.certified.value):
            return (None, None, None) if control.stopped else None
        W[entries], bounds[index] = part.certified.W, part.lower_bound
        dual[places] = part.certified.dual if power is None else _of_norm_one(part)
        control.observe(None, np.inf, None, 0.0, steps=part.iterations)
    if power is not None and bounds.max() > 0:
        share = bounds / bounds.max()
        weights = share == 1.0 if math.isinf(power) else np.where(share > 0, share ** (power - 1.0), 0.0)
        for block, weight in zip(blocks, weights, strict=True):
            dual[block.queries] *= weight
    return None, W, dual


def _combination(program: Program) -> tuple[float | None, Shared | None]:
    """Return p, or None if bounds add up, and what blocks may share; (None, None) if the norm does not separate."""
    norm, hard = program.norm, program.regularisation.hard
    if norm is FROBENIUS:
        return (2.0 if hard else None), "both"
    p, shared = _of_norm(norm)
    if shared is None or not (hard or p == 1.0):
        return None, None
    return (p if hard else None), shared


def _of_norm(norm: Norm) -> tuple[float, Shared | None]:
    if isinstance(norm, Entrywise):
        return norm.p, "both"
    if isinstance(norm, Mixed):
        return norm.q, ("rows" if norm.axis == "columns" else "columns")
    profile = norm.profile if norm.invariant else None
    return (profile.p, "nothing") if isinstance(profile, Entrywise) else (1.0, None)


def _of_norm_one(part: Solution) -> np.ndarray:
    """Scale multipliers of a hard margin (m, k) to an adjoint of dual norm one."""
    dual = part.certified.dual
    size = part.norm.dual(part.problem.adjoint(dual))
    return dual / size if size > 0 else dual
