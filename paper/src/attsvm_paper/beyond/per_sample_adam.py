r"""The norm whose margin Adam maximises on mini-batches, from a fixed point (arXiv 2510.26303).

Adam divides the mean gradient by the root of a mean square. On batches the square is of the batch's gradient. For
binary data :math:`z_j = y_j x_j` the gradient of sample j is :math:`-c_j z_j`, with weights :math:`c` that tend to the
multipliers of the max-margin problem. As :math:`\beta_2 \to 1` the square is its mean over batches. Over random batches
of b out of n samples it is, up to a factor,

.. math:: M_k(c)^2 = (1-\rho) \sum_j c_j^2 z_{jk}^2 + \rho \Bigl(\sum_j c_j z_{jk}\Bigr)^2, \qquad
          \rho = \frac{b-1}{n-1}.

The limit maximises the margin in the norm :math:`\sqrt{\sum_k M_k(c) w_k^2}`, whose multipliers are again
proportional to c. The article has b = 1, :math:`\rho = 0`. Full batches, :math:`\rho = 1`, have :math:`M =
|\sum_j c_j z_j|`, for which the condition :math:`M w = \sum_j c_j z_j` holds for the largest margin in the max-norm:
the bias of Adam without batches. Batches in between are our extension.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import Mahalanobis
from attsvm.core.problem import SelectionProblem
from attsvm.solvers.solving import solve

# Change of the weights, in sum, at which the iteration ends, and the number of its steps.
_TOL, _STEPS = 1e-8, 500
# Part of the new weights that a step takes: full steps may alternate.
_DAMPING = 0.5


def binary_problem(Z: np.ndarray) -> SelectionProblem:
    """Pose the max-margin problem of inputs times labels, (n, d): W (d, 1) has margins Z W."""
    tokens = np.stack([Z, np.zeros_like(Z)], axis=1)
    return SelectionProblem(tokens, np.ones((len(Z), 1)), np.zeros(len(Z), int))


def scales(Z: np.ndarray, weights: np.ndarray, batch: int = 1) -> np.ndarray:
    """Return M (d,), the root of the mean square of a batch's gradient, up to a factor.

    Parameters
    ----------
    Z : ndarray, shape (n, d)
    weights : ndarray, shape (n,)
    batch : int
        From 1 to n.
    """
    part = (batch - 1) / max(len(Z) - 1, 1)
    terms = weights[:, None] * Z
    return np.sqrt((1 - part) * np.square(terms).sum(axis=0) + part * np.square(terms.sum(axis=0)))


def fixed_point(Z: np.ndarray, batch: int = 1) -> tuple[Mahalanobis, np.ndarray, float]:
    """Find the norm whose margin Adam maximises on batches of `batch` samples.

    Parameters
    ----------
    Z : ndarray, shape (n, d)
        Separable inputs times labels.
    batch : int
        Less than n. The norm of full batches is the max-norm.

    Returns
    -------
    norm : Mahalanobis
    weights : ndarray, shape (n,)
        Multipliers of the largest margin in this norm; they sum to one.
    residual : float
        Sum of absolute differences between the weights and the multipliers that they lead to.

    Raises
    ------
    ValueError
        If the batch is not below n.
    """
    if not 1 <= batch < len(Z):
        raise ValueError(f"batch is {batch}; 1 <= batch < n = {len(Z)} was expected.")
    problem, weights = binary_problem(Z), np.full(len(Z), 1 / len(Z))
    norm, residual = Mahalanobis(A=np.diag(scales(Z, weights, batch))), np.inf
    for _ in range(_STEPS):
        multipliers = np.asarray(solve(problem, norm, tol=_TOL).dual).sum(axis=1)
        following = multipliers / multipliers.sum()
        residual = float(np.abs(following - weights).sum())
        if residual < _TOL:
            break
        weights = (1 - _DAMPING) * weights + _DAMPING * following
        norm = Mahalanobis(A=np.diag(scales(Z, weights, batch)))
    return norm, weights, residual
