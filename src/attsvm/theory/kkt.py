r"""Distance of K and Q from a KKT point of margin maximisation in the norm of an optimiser.

For smooth homogeneous models arXiv 2602.16340 proves that momentum steepest descent with decaying steps is biased
towards KKT points of

.. math:: \min_\theta \tfrac12\|\theta\|^2 \quad\text{s.t. every margin} \ge 1

in the norm of the steepest descent: spectral for Muon, Euclidean for gradient descent with momentum, the largest entry
for Signum and Adam (abstract; we had no access to the full text). The margins :math:`A_{it}(KQ^\top)` are homogeneous
of degree two in :math:`\theta = (K, Q)`. Take multipliers :math:`\lambda \ge 0` and
:math:`g = \sum\lambda_{it}\nabla_\theta A_{it} = (GQ, G^\top K)`, :math:`G = A^\top\lambda`. A KKT point has

.. math:: \langle g, \theta\rangle = \|g\|_* \|\theta\|, \qquad \lambda_{it} = 0 \text{ where } A_{it} > \min A.

One ratio expresses both conditions. Since :math:`\langle g, \theta\rangle = 2\sum\lambda A`, the ratio
:math:`2\min A\sum\lambda/(\|g\|_*\|\theta\|)` is at most one, and one only at a KKT point. The residual is one minus
its largest value over the multipliers. This is a concave problem, the dual of the max-margin problem linearised at
:math:`\theta`; any multipliers bound the residual from above. The norm over layers is their maximum; for the Euclidean
norm it is the root of the sum of squares.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.platform.interop import to_numpy

_NORMS = ("frobenius", "max", "spectral")
# Smoothing of the dual norm relative to its size, from coarse to fine; a bound needs no exact minimiser.
_SMOOTHINGS = (1e-2, 1e-3, 1e-4)
_ITERATIONS = 150


def kkt_residual(
    problem: SelectionProblem, K: Any, Q: Any, norm: Literal["frobenius", "max", "spectral"] = "frobenius"
) -> float:
    """Return an upper bound of the distance of K and Q from a KKT point of margin maximisation.

    Parameters
    ----------
    problem : SelectionProblem
        The problem of the tokens that K and Q select.
    K, Q : array, shapes (d, m) and (dz, m)
    norm : {"frobenius", "max", "spectral"}

    Returns
    -------
    float
        In [0, 1], zero at a KKT point: one minus the ratio of the module's derivation at the best multipliers found.

    Raises
    ------
    ValueError
        If the norm is none of these, a shape does not fit, or a margin is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, theory
    >>> problem = SelectionProblem(np.array([[[1.0], [0.0]]]), np.ones((1, 1)), [0])
    >>> round(theory.kkt_residual(problem, np.array([[3.0]]), np.array([[3.0]])), 6)
    0.0
    >>> round(theory.kkt_residual(problem, np.array([[1.0]]), np.array([[2.0]])), 6)
    0.2
    """
    if norm not in _NORMS:
        raise ValueError(f"norm is {norm!r}; one of {', '.join(map(repr, _NORMS))} was expected.")
    K, Q = to_numpy("K", K).astype(np.float64), to_numpy("Q", Q).astype(np.float64)
    _, _, d, dz = problem.shape
    if K.ndim != 2 or Q.ndim != 2 or (K.shape[0], Q.shape[0]) != (d, dz) or K.shape[1] != Q.shape[1]:
        raise ValueError(f"K and Q have shapes {K.shape} and {Q.shape}; ({d}, m) and ({dz}, m) were expected.")
    rejected = problem.rejected
    least = float(problem.apply(K @ Q.T)[rejected].min(initial=np.inf))
    if not 0 < least < np.inf:
        raise ValueError(f"K and Q have a least margin of {least:.3g}; a positive, finite one was expected.")
    # All quantities are homogeneous, so margins may be scaled to one.
    K, Q = K / np.sqrt(least), Q / np.sqrt(least)
    best = 0.0
    weights = np.exp(-4 * (problem.apply(K @ Q.T)[rejected] - 1))
    for smoothing in _SMOOTHINGS:
        weights = _best(problem, K, Q, norm, weights / weights.sum(), smoothing)
        slopes = _slopes(problem, K, Q, weights)
        best = max(best, 2 * float(weights.sum()) / (_dual(slopes, norm, 0.0)[0] * _size((K, Q), norm)))
    return max(1 - best, 0.0)


def _length(parts: tuple[np.ndarray, np.ndarray]) -> float:
    return math.hypot(*(float(np.linalg.norm(part)) for part in parts))


def _size(parts: tuple[np.ndarray, np.ndarray], norm: str) -> float:
    if norm == "frobenius":
        return _length(parts)
    return max(float(np.abs(part).max() if norm == "max" else np.linalg.norm(part, 2)) for part in parts)


def _slopes(problem: SelectionProblem, K: np.ndarray, Q: np.ndarray, weights: np.ndarray) -> tuple[Any, Any]:
    """Return g for multipliers on the rejected tokens, in order."""
    dual = np.zeros(problem.rejected.shape)
    dual[problem.rejected] = weights
    G = problem.adjoint(dual)
    return G @ Q, G.T @ K


def _dual(parts: tuple[np.ndarray, np.ndarray], norm: str, mu: float) -> tuple[float, list[np.ndarray]]:
    """Return the dual norm of a pair, smoothed by mu, and its gradient, which is valid only with smoothing."""
    if norm == "frobenius":
        whole = _length(parts)
        return whole, [part / max(whole, np.finfo(float).tiny) for part in parts]
    total, slopes = 0.0, []
    for part in parts:
        if norm == "max":
            root = np.sqrt(part**2 + mu**2)
            slopes.append(part / np.maximum(root, np.finfo(float).tiny))
        else:
            U, sigma, Vh = np.linalg.svd(part, full_matrices=False)
            root = np.sqrt(sigma**2 + mu**2)
            slopes.append((U * (sigma / np.maximum(root, np.finfo(float).tiny))) @ Vh)
        total += float(root.sum())
    return total, slopes


def _best(
    problem: SelectionProblem, K: np.ndarray, Q: np.ndarray, norm: str, start: np.ndarray, smoothing: float
) -> np.ndarray:
    """Minimise log(smoothed dual norm of g) - log(sum of multipliers) over multipliers >= 0."""
    from scipy.optimize import minimize

    rejected = problem.rejected
    first = _slopes(problem, K, Q, start)
    mu = smoothing * _dual(first, norm, 0.0)[0] / sum(part.size if norm == "max" else len(part) for part in first)

    def value(weights: np.ndarray) -> tuple[float, np.ndarray]:
        size, (left, right) = _dual(_slopes(problem, K, Q, weights), norm, mu)
        total = max(float(weights.sum()), np.finfo(float).tiny)
        slope = problem.apply(left @ Q.T + K @ right.T)[rejected] / size - 1 / total
        return float(np.log(size / total)), slope

    optimum = minimize(
        value, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start), options={"maxiter": _ITERATIONS}
    ).x
    return optimum if optimum.sum() > 0 else start
