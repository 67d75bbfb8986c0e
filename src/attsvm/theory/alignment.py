r"""Check whether the data have common singular spaces, which the theorem on gradient flow of K and Q requires.

arXiv 2403.08699 extends its result from diagonal K and Q to general ones "given proper alignment of the weight
matrices' singular spaces with the data features at initialization" (abstract; we had no access to the full text). K and
Q stay in given singular spaces only if the gradient does, hence if every constraint matrix
:math:`(x_{i\alpha_i}-x_{it})z_i^\top` is diagonal in one pair of orthonormal bases. A combination of the constraint
matrices with generic positive coefficients has distinct singular values, so its singular vectors are the only
candidates.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.theory.conditions import Condition

# Share of a squared norm off the diagonal up to which it counts as rounding.
_NEGLIGIBLE = 1e-12


def singular_spaces(problem: SelectionProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return bases U (d, k) and V (dz, k), k = min(d, dz), in which aligned constraint matrices are diagonal.

    The seed is that of the coefficients.
    """
    coefficients = np.random.default_rng(seed).uniform(1.0, 2.0, problem.mask.shape)
    U, _, Vh = np.linalg.svd(problem.adjoint(np.where(problem.rejected, coefficients, 0.0)), full_matrices=False)
    return U, Vh.T


def off_diagonal(W: np.ndarray, U: np.ndarray, V: np.ndarray) -> float:
    """Return the share of ||W||^2 that lies off the diagonal in the bases U and V; zero for W = 0."""
    whole = float(np.linalg.norm(W)) ** 2
    return max(1 - float((np.einsum("dk,de,ek->k", U, W, V) ** 2).sum()) / whole, 0.0) if whole else 0.0


def condition_alignment(problem: SelectionProblem, seed: int = 0) -> Condition:
    """Check whether one pair of bases makes every constraint matrix diagonal.

    Parameters
    ----------
    problem : SelectionProblem
    seed : int
        Seed of the combination that determines the bases.

    Returns
    -------
    Condition
        Its value is the largest share of a constraint's squared norm that lies off the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, theory
    >>> tokens = np.array([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    >>> theory.condition_alignment(SelectionProblem(tokens, np.eye(2), [0, 0])).holds
    True
    >>> theory.condition_alignment(SelectionProblem(tokens, np.ones((2, 2)), [0, 0])).holds
    False
    """
    U, V = singular_spaces(problem, seed)
    right = problem.queries @ V  # (n, k)
    worst = 0.0
    for rows, delta in problem.differences():
        diagonals = np.einsum("ntd,dk->ntk", delta, U) * right[rows, None]
        whole = (delta**2).sum(-1) * (problem.queries[rows] ** 2).sum(-1)[:, None]
        active = problem.rejected[rows] & (whole > 0)
        if active.any():
            worst = max(worst, float((1 - (diagonals**2).sum(-1)[active] / whole[active]).max()))
    holds = worst <= _NEGLIGIBLE
    word = "diagonal" if holds else f"off the diagonal by up to {worst:.2g} of their squared norm"
    return Condition("alignment", holds, f"constraint matrices are {word} in their best common bases", worst)
