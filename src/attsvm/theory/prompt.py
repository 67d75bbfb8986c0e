r"""Max-margin problems of prompt attention: one trainable vector p in place of W z (arXiv 2306.13596).

The model is :math:`f(X) = v^\top X^\top \mathrm{softmax}(K p)` with keys :math:`k_t = W x_t`.

* **p-SVM**: training p for a fixed head separates the selected keys,
  :math:`\min\|p\|` subject to :math:`p^\top(k_{i\alpha_i} - k_{it}) \ge 1`.
* **v-SVM**: for fixed attention on :math:`\alpha`, logistic regression on the selected tokens separates the labels,
  :math:`\min\|v\|` subject to :math:`Y_i v^\top x_{i\alpha_i} \ge 1`.
* **joint**: v and p grow together. The loss of an input that is not a support vector of v vanishes faster than the loss
  of a support vector, so its attention need not be as sharp. Its constraints on p relax from 1 to 0.

The first two are selection problems with the constant query 1 and inherit their certificates. The relaxed problem
:math:`G p \ge h` has right-hand sides 0 and 1. It is a least-distance problem, solved through its dual, nonnegative
least squares (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23). Minimise :math:`\|Eu - f\|`, u >= 0,
for :math:`E = (G, h)^\top` and f the last unit vector. The residual r gives :math:`p = -r_{1..d}/r_{d+1}`, and r = 0
means that there is no p. The gap compares the length of p, scaled to margin one, with the dual bound
:math:`h^\top u / \|G^\top u\|`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from attsvm.core.problem import SelectionProblem
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Last entry of the residual, 1/(1 + ||p||^2), up to which rounding cannot separate ||p|| from infinity.
VANISHING = 1e-14


def p_svm(keys: Any, selected: Any, *, mask: Any = None, tol: float = 1e-9) -> Solution:
    """Find the shortest prompt that selects the given keys with margin one; W of the solution is p, (d, 1).

    Parameters
    ----------
    keys : array, shape (n, T, d)
        Keys k_it = W x_it.
    selected : array of int, shape (n,), or bool, shape (n, T)
    mask : array of bool, shape (n, T), optional
    tol : float

    Examples
    --------
    >>> from attsvm.theory.prompt import p_svm
    >>> solution = p_svm(keys=[[[1.0, 1.0], [0.0, 0.0]]], selected=[0])
    >>> solution.W.round(6).ravel()
    array([0.5, 0.5])
    """
    return solve(SelectionProblem(keys, np.ones((len(keys), 1)), selected, mask=mask), tol=tol)


def v_svm(inputs: Any, labels: Any, *, tol: float = 1e-9) -> Solution:
    """Find the shortest v with Y_i v^T x_i >= 1, an SVM without intercept; W of the solution is v, (d, 1).

    Parameters
    ----------
    inputs : array, shape (n, d)
        The selected token of each input.
    labels : array, shape (n,)
        Each -1 or +1.
    tol : float

    Returns
    -------
    Solution
        Its `support[:, 1]` marks the support vectors.

    Examples
    --------
    >>> from attsvm.theory.prompt import v_svm
    >>> solution = v_svm(inputs=[[2.0, 0.0], [0.0, 4.0]], labels=[1, -1])
    >>> solution.W.round(6).ravel(), solution.support[:, 1]
    (array([ 0.5 , -0.25]), array([ True,  True]))
    """
    points, signs = to_numpy("inputs", inputs), to_numpy("labels", labels)
    if points.ndim != 2 or signs.shape != points.shape[:1] or not (np.abs(signs) == 1).all():
        raise ValueError(
            f"inputs and labels have shapes {points.shape} and {signs.shape}; "
            "(n, d) and n labels -1 or +1 were expected."
        )
    signed = signs[:, None] * points.astype(np.float64)
    tokens = np.stack([signed, np.zeros_like(signed)], axis=1)  # (n, 2, d)
    return solve(SelectionProblem(tokens, np.ones((len(tokens), 1)), np.zeros(len(tokens), dtype=int)), tol=tol)


@dataclass(frozen=True, eq=False, repr=False)
class JointSVM(Listed):
    """The directions of joint training of v and p.

    Attributes
    ----------
    v : ndarray, shape (dv,)
        The v-SVM of the selected tokens; NaN if labels are not separable.
    p : ndarray, shape (d,)
        The relaxed p-SVM; NaN if it has no solution.
    support : ndarray of bool, shape (n,)
        Support vectors of v: their constraints on p stay at 1, all other constraints relax to 0.
    gap : float
        Certified relative gap of p; infinite if there is no p.
    """

    v: np.ndarray
    p: np.ndarray
    support: np.ndarray
    gap: float
    v_solution: Solution


def joint_svm(keys: Any, values: Any, labels: Any, selected: Any) -> JointSVM:
    """Solve the v-SVM of the selected tokens, then the p-SVM relaxed at inputs that are no support vectors of v.

    Parameters
    ----------
    keys : array, shape (n, T, d)
    values : array, shape (n, T, dv)
        Vectors that the head reads, usually the tokens.
    labels : array, shape (n,)
    selected : array of int, shape (n,)

    Raises
    ------
    ValueError
        If shapes disagree.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.theory.prompt import joint_svm
    >>> tokens = np.array([[[1.0, 1.0], [0.0, 0.0]], [[1.0, -1.0], [0.0, 0.0]], [[0.5, 1.5], [0.0, 0.0]]])
    >>> answer = joint_svm(tokens, tokens, labels=[1, -1, 1], selected=[0, 0, 0])
    >>> answer.v.round(6), answer.p.round(6) + 0.0
    (array([0., 1.]), array([1., 0.]))
    """
    table = to_numpy("values", values).astype(np.float64)
    problem = SelectionProblem(keys, np.ones((len(keys), 1)), selected)
    n, T, d, _ = problem.shape
    if table.ndim != 3 or table.shape[:2] != (n, T):
        raise ValueError(f"values has shape {table.shape}; ({n}, {T}, dv) was expected to match keys.")
    direction = v_svm(table[np.arange(n), problem.reference], labels)
    support = np.asarray(direction.support)[:, 1]
    differences = np.concatenate([delta for _, delta in problem.differences()])  # (n, T, d)
    rows, columns = np.nonzero(problem.rejected)
    p, gap = _least_distance(differences[rows, columns], support[rows].astype(float))
    return JointSVM(np.asarray(direction.W)[:, 0], np.full(d, np.nan) if p is None else p, support, gap, direction)


def _least_distance(G: np.ndarray, h: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Return the shortest p with G p >= h, and its certified relative gap."""
    if not (h > 0).any():
        return np.zeros(G.shape[1]), 0.0
    E = np.vstack([G.T, h])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u = nnls(E, f)[0]
    residual = E @ u - f
    if -residual[-1] <= VANISHING:
        return None, np.inf
    p = residual[:-1] / -residual[-1]
    # Scaling makes the constraints with h = 1 hold exactly; those with h = 0 hold to rounding.
    scale = float((G @ p)[h > 0].min())
    if scale <= 0:
        return None, np.inf
    p = p / scale
    adjoint = float(np.linalg.norm(G.T @ u))
    return p, float(np.linalg.norm(p)) * adjoint / float(h @ u) - 1.0
