r"""Token scores, optimal tokens, SVM-neighbours and local optimality: the notions of the theory.

Scores are :math:`\gamma_{it} = Y_i h(v_{it})`, with values :math:`v_{it}` (the tokens themselves unless keys and values
differ). The *optimal* token of sequence i is :math:`\mathrm{opt}_i = \arg\max_t \gamma_{it}`. Let :math:`\alpha` be
selected tokens with attention SVM :math:`W^{mm}_\alpha`. The *SVM-neighbours* of :math:`\alpha_i` are the tokens whose
margin is exactly one. The selection :math:`\alpha` is *locally optimal* if every neighbour scores strictly lower than
the selected token of its sequence (arXiv 2308.16898, Section 3 and Definition 2). The optimal tokens are always locally
optimal, because no token scores higher.

A computed margin is never exactly one. :attr:`attsvm.Solution.support` counts a token as a neighbour if the certified
gap allows its margin to be one. Scores are equal if they differ by at most the rounding of their products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import EPS
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.data.token_data import TokenData
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Attention on a token from which its query selects it.
SELECTED = 0.99


@dataclass(frozen=True, eq=False, repr=False)
class Trial(Listed):
    """One trial: arrays in float64, and a score for every token.

    Attributes
    ----------
    data : TokenData
    head : object
        The head that was given.
    v : ndarray (dv,), or None
        The vector of a linear head.
    tokens, queries, labels, values : ndarray, shapes (n, T, d), (n, dz), (n,), (n, T, dv)
    mask : ndarray of bool, shape (n, T)
        True for visible tokens.
    gamma : ndarray, shape (n, T)
        Scores Y_i h(v_it); -inf for hidden tokens.
    score_error : float
        Difference of scores up to which they count as equal.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> trial.gamma.shape, trial.linear
    ((3, 4), True)
    >>> trial.problem(trial.gamma.argmax(axis=1)).shape
    (3, 4, 8, 8)
    """

    data: TokenData
    head: Any
    v: np.ndarray | None
    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray
    values: np.ndarray
    mask: np.ndarray
    gamma: np.ndarray
    score_error: float

    @classmethod
    def of(cls, data: TokenData, head: Any) -> Trial:
        """Score the tokens of one trial.

        Parameters
        ----------
        data : TokenData
            One trial: without leading dimensions.
        head : array (dv,), module or callable
            v of a linear head v^T x, or a callable that maps a tensor (..., dv) to (...).

        Raises
        ------
        ValueError
            If `data` is no TokenData or holds several trials, or the head does not fit.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> from attsvm.theory import Trial
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> trial = Trial.of(data, [1.0, 0.0])
        >>> trial.gamma
        array([[1., 0.]])
        """
        if not isinstance(data, TokenData):
            raise ValueError(f"data has type {type(data).__name__}; attsvm.TokenData was expected.")
        if data.batch_shape:
            raise ValueError(f"data holds trials of shape {data.batch_shape}; one trial, data[index], was expected.")
        tokens, queries, labels, values = (
            to_numpy(name, getattr(data, name)).astype(np.float64, copy=False)
            for name in ("tokens", "queries", "labels", "values")
        )
        mask = np.ones(tokens.shape[:2], dtype=bool) if data.mask is None else to_numpy("mask", data.mask)
        v = _linear(head)
        if v is None:
            raw = predictions(head, values)
            error = 64 * EPS * float(np.abs(raw).max())
        else:
            if v.shape != values.shape[-1:]:
                raise ValueError(f"head v has shape {v.shape}; ({values.shape[-1]},) was expected.")
            raw = values @ v
            # A product of vectors of length m is off by at most (m + 1) eps times the product of the lengths.
            longest = float(np.linalg.norm(values, axis=-1).max())
            error = 2 * (len(v) + 1) * EPS * longest * float(np.linalg.norm(v))
        gamma = np.where(mask, labels[:, None] * raw, -np.inf)
        return cls(data, head, v, tokens, queries, labels, values, mask, gamma, error)

    @property
    def linear(self) -> bool:
        """Whether the head is v^T x."""
        return self.v is not None

    @cached_property
    def optimal(self) -> np.ndarray:
        """Globally optimal token of every sequence (the first of several), int (n,)."""
        return self.gamma.argmax(axis=1)

    @cached_property
    def score_gap(self) -> np.ndarray:
        """Score of the best token minus the second best score, (n,); infinite if only one token is visible."""
        if self.gamma.shape[1] == 1:
            return np.full(len(self.gamma), np.inf)
        order_statistics = np.sort(self.gamma, axis=1)
        return order_statistics[:, -1] - order_statistics[:, -2]

    @property
    def unique(self) -> bool:
        """Whether every sequence has only one best token."""
        return bool((self.score_gap > self.score_error).all())

    def problem(self, selected: Any) -> SelectionProblem:
        """Pose the selection of one token per query, int (n,).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> from attsvm.theory import Trial
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> trial = Trial.of(data, [1.0, 0.0])
        >>> trial.problem([0]).shape
        (1, 2, 2, 1)
        """
        return SelectionProblem(self.tokens, self.queries, selected, mask=self.mask)

    @cached_property
    def optimal_solution(self) -> Solution:
        """The Frobenius SVM of the globally optimal tokens."""
        return solve(self.problem(self.optimal))

    def logits(self, W: Any) -> np.ndarray:
        """Return attention logits x_it^T W z_i, (n, T); -inf for hidden tokens.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData
        >>> from attsvm.theory import Trial
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> trial = Trial.of(data, [1.0, 0.0])
        >>> trial.logits(np.array([[1.0], [2.0]]))
        array([[1., 2.]])
        """
        matrix = to_numpy("W", W).astype(np.float64, copy=False)
        expected = (self.tokens.shape[2], self.queries.shape[1])
        if matrix.shape != expected:
            raise ValueError(f"W has shape {matrix.shape}; (d, dz) = {expected} was expected.")
        logits = np.einsum("ntd,nd->nt", self.tokens, self.queries @ matrix.T)
        return np.where(self.mask, logits, -np.inf)


def _linear(head: Any) -> np.ndarray | None:
    """Return v of a linear head; None for another head."""
    vector = head
    if callable(head):
        from attsvm.nn.heads import LinearHead

        if not isinstance(head, LinearHead):
            return None
        vector = head.v
    v = to_numpy("head", vector).astype(np.float64)
    if v.ndim != 1 or not np.isfinite(v).all():
        raise ValueError(f"head has shape {v.shape}; a finite vector v (dv,) or a module was expected.")
    return v


def predictions(head: Callable[..., Any], values: np.ndarray) -> np.ndarray:
    """Evaluate a module or callable at every token, (n, T)."""
    import torch

    from attsvm.nn.heads import predict

    weights = list(head.parameters()) if isinstance(head, torch.nn.Module) else []
    like = weights[0] if weights else torch.zeros(0, dtype=torch.float64)
    with torch.no_grad():
        return predict(head, torch.as_tensor(values).to(like)).cpu().numpy().astype(np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class LocalOptimality(Listed):
    """Whether the selected tokens beat their SVM-neighbours.

    Attributes
    ----------
    selected : ndarray of int, shape (n,)
    solution : Solution
        The SVM of the selected tokens, in the Frobenius norm unless another was requested.
    neighbours : ndarray of bool, shape (n, T)
        Tokens whose margin is one.
    violations : ndarray of bool, shape (n, T)
        Neighbours whose score is not below the score of the selected token.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> locality = theory.local_optimality(trial, trial.gamma.argmax(axis=1))
    >>> locality.feasible, locality.holds, bool(locality.violations.any())
    (True, True, False)
    """

    selected: np.ndarray
    solution: Solution
    neighbours: np.ndarray
    violations: np.ndarray

    @property
    def feasible(self) -> bool:
        """Whether a matrix that selects the tokens was found."""
        return bool(np.isfinite(self.solution.objective))

    @property
    def holds(self) -> bool:
        """Whether the selection is locally optimal; False if no matrix realises it."""
        return self.feasible and not self.violations.any()

    @property
    def W(self) -> np.ndarray:
        """The direction, (d, dz); NaN if no matrix realises the selection."""
        return np.asarray(self.solution.W)


def local_optimality(trial: Trial, selected: Any, norm: AnyNorm = "frobenius") -> LocalOptimality:
    """Solve the SVM of the selected tokens, and compare their scores with the scores of their neighbours.

    Parameters
    ----------
    trial : Trial
    selected : array of int, shape (n,)
    norm : str
        Norm of the SVM: Frobenius if W is trained, nuclear for K and Q.

    Returns
    -------
    LocalOptimality

    Notes
    -----
    arXiv 2308.16898, Definition 2.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> locality = theory.local_optimality(trial, trial.gamma.argmax(axis=1))
    >>> locality.holds, locality.neighbours.shape
    (True, (3, 4))
    """
    problem = trial.problem(selected)
    solution = trial.optimal_solution if _is_optimal(trial, problem, norm) else solve(problem, norm)
    return compare_with_neighbours(trial, solution)


def compare_with_neighbours(trial: Trial, solution: Solution) -> LocalOptimality:
    """Compare scores as :func:`local_optimality` does, with an SVM that was already solved.

    The solution is that of ``trial.problem(selected)``, in any norm.
    """
    selected = solution.problem.reference
    neighbours = np.asarray(solution.support)
    selection_scores = trial.gamma[np.arange(len(selected)), selected]
    violations = neighbours & (trial.gamma >= selection_scores[:, None] - trial.score_error)
    return LocalOptimality(selected, solution, neighbours, violations)


def _is_optimal(trial: Trial, problem: SelectionProblem, norm: AnyNorm) -> bool:
    return norm == "frobenius" and bool((problem.reference == trial.optimal).all())
