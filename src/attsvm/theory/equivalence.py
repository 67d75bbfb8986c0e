r"""The SVM equivalent of a trained attention matrix that selects several tokens per query.

If a head is not linear, or its scores tie, each query selects a *set* :math:`O_i` of tokens. Softmax mass stays on them
in fixed proportions and tends to zero on all others. Then (arXiv 2308.16898, Section 6)

.. math:: W(k) \approx W^{fin} + \frac{\|W(k)\|_F}{\|W^{mm}\|_F} W^{mm},

where :math:`W^{mm}` is the smallest matrix with equal scores inside each :math:`O_i` and margin one to the tokens
outside (Gen-SVM), and :math:`W^{fin}` the smallest with the score differences :math:`\log(s_{it}/s_{i\tau})` inside.
The SVM equivalent is :math:`W^{fin} + c\,W^{mm}`.

**The coefficient.** The paper takes the c of largest correlation with the trained W, the official code the
least-squares :math:`c = \langle W^{mm}, W - W^{fin}\rangle / \|W^{mm}\|^2`. In the Frobenius norm they are the same
number. Proof: :math:`W^{fin}` lies in the span of the tied :math:`\delta_{it}z_i^\top`, on which :math:`W^{mm}`
vanishes, so the two are orthogonal. W satisfies the equations of :math:`W^{fin}` too, so :math:`\langle W,
W^{fin}\rangle = \|W^{fin}\|^2`. Let :math:`m = \langle W, W^{mm}\rangle`. The correlation of :math:`W^{fin} + cW^{mm}`
with W is stationary at :math:`c = m\|W^{fin}\|^2 / (\langle W, W^{fin}\rangle\|W^{mm}\|^2) = m/\|W^{mm}\|^2`. In the
nuclear norm neither identity holds and the choices differ.

**Thresholds.** Selected tokens have probability above 1e-3, masked tokens below 1e-6. A token in between is undecided,
and the whole instance is then undecided.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import CoefficientChoice, FactorNorm
from attsvm.data.token_data import TokenData
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.theory.finite_part import FINITE_NORMS, FinitePart, finite_part

# Probability above which a token counts as selected.
SELECTED_SHARE = 1e-3
# Probability below which a token counts as masked.
MASKED = 1e-6
COEFFICIENTS = ("correlation", "least-squares")


class EquivalenceStatus(Enum):
    """The outcome of the construction; each member's value is its sentence."""

    FOUND = "The finite part, the max-margin part and their combination were found."
    UNDECIDED = "Some attention probabilities lie between masked and selected; training is not finished with them."
    INCONSISTENT = "No W has the logarithms of the attention ratios as score differences."
    NO_SVM = "No matrix that ties the selected tokens and separates the others was found."


@dataclass(frozen=True, eq=False, repr=False)
class Equivalence(Listed):
    """The SVM equivalent of a trained W.

    Attributes
    ----------
    selected : ndarray of bool, shape (n, T)
        The selected tokens, without undecided ones.
    undecided : int
        Number of tokens with probability between masked and selected.
    W_fin, W_mm, W : arrays, shape (d, dz)
        Finite part, max-margin part, and W_fin + coefficient * W_mm; NaN unless the status is FOUND.
    choice : {"correlation", "least-squares"}
        How the coefficient was chosen.
    solution : Solution or None
        The certified Gen-SVM.
    finite : FinitePart or None
        The finite part with its residual and gap.
    correlation : float
        Correlation of W (the equivalent) with the trained matrix.
    """

    status: EquivalenceStatus
    selected: np.ndarray
    undecided: int
    W_fin: Any
    W_mm: Any
    W: Any
    coefficient: float
    choice: str
    solution: Solution | None
    finite: FinitePart | None
    correlation: float


def svm_equivalent(
    data: TokenData,
    attention: Any,
    W: Any,
    norm: FactorNorm = "frobenius",
    *,
    coefficient: CoefficientChoice = "correlation",
    selected_above: float = SELECTED_SHARE,
    masked_below: float = MASKED,
) -> Equivalence:
    """Build W_fin + c W_mm from the attention of a trained W.

    Parameters
    ----------
    data : TokenData
        One trial.
    attention : array, shape (n, T)
        Softmax probabilities of the trained model.
    W : array, shape (d, dz)
        The trained matrix; K Q^T for factors.
    norm : {"frobenius", "nuclear"}
        Norm of both parts: Frobenius if W was trained, nuclear for K and Q.
    coefficient : {"correlation", "least-squares"}
        The paper's choice or the official code's; see the module. If no coefficient attains the largest correlation
        (the trained W points away from W_fin), least squares is used, and `choice` says so.
    selected_above, masked_below : float
        Probabilities from which a token is selected and up to which it is masked (1e-8 for the lambda-head).

    Returns
    -------
    Equivalence

    Raises
    ------
    ValueError
        If shapes disagree, `attention` is no probability table, W is zero or not finite, or an option is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, svm_equivalent, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=1000)
    >>> equivalent = svm_equivalent(data, trace.attention[-1], trace.W[-1])
    >>> equivalent.selected.tolist(), equivalent.W.shape
    ([[True, False]], (2, 1))
    """
    if not isinstance(data, TokenData) or data.batch_shape:
        what = f"trials {data.batch_shape}" if isinstance(data, TokenData) else type(data).__name__
        raise ValueError(f"data has {what}; a TokenData of one trial, data[index], was expected.")
    if coefficient not in COEFFICIENTS:
        raise ValueError(f"coefficient is {coefficient!r}; 'correlation' or 'least-squares' was expected.")
    numbers = all(isinstance(value, Real) for value in (masked_below, selected_above))
    if not numbers or not 0 <= masked_below <= selected_above <= 0.5:
        raise ValueError(
            f"masked_below and selected_above are {masked_below!r} and {selected_above!r}; "
            "0 <= masked_below <= selected_above <= 0.5 was expected."
        )
    if norm not in FINITE_NORMS:
        raise ValueError(f"norm is {norm!r}; 'frobenius' or 'nuclear' was expected.")
    mask = np.ones((data.n, data.T), dtype=bool) if data.mask is None else to_numpy("mask", data.mask)
    raw = to_numpy("attention", attention)
    probability = _probabilities(raw, mask)
    trained = to_numpy("W", W).astype(np.float64)
    if trained.shape != (data.d, data.dz):
        raise ValueError(f"W has shape {trained.shape}; (d, dz) = {(data.d, data.dz)} was expected.")
    if not np.isfinite(trained).all() or not trained.any():
        raise ValueError("W is zero or not finite; a direction was expected.")
    selected = probability > selected_above
    undecided = int((~selected & (probability >= masked_below) & mask).sum())

    def give_up(status: EquivalenceStatus, *parts: Any) -> Equivalence:
        nothing = np.full(trained.shape, np.nan)
        solution, finite = (*parts, None, None)[:2]
        return Equivalence(
            status, selected, undecided, nothing, nothing, nothing, np.nan, coefficient, solution, finite, np.nan
        )

    if undecided:
        return give_up(EquivalenceStatus.UNDECIDED)
    problem = SelectionProblem(data.tokens, data.queries, selected, mask=mask)
    solution = solve(problem, norm)
    if not np.isfinite(solution.objective):
        return give_up(EquivalenceStatus.NO_SVM, solution)
    leading = probability[np.arange(data.n), problem.reference][:, None]
    differences = np.where(problem.tied, np.log(leading / np.where(selected, probability, 1.0)), 0.0)
    finite = finite_part(problem, differences, norm)
    # Probabilities have the rounding of their dtype and of their logits; half the digits must agree.
    if finite.residual > np.sqrt(np.finfo(raw.dtype).eps) * max(1.0, float(np.abs(differences).max(initial=0.0))):
        return give_up(EquivalenceStatus.INCONSISTENT, solution, finite)
    W_mm = solution.certified.W
    c, choice = _coefficient(trained, finite.W, W_mm, coefficient)
    combination = finite.W + c * W_mm
    restore = problem.kind.restore
    return Equivalence(
        EquivalenceStatus.FOUND,
        selected,
        undecided,
        restore(finite.W),
        restore(W_mm),
        restore(combination),
        c,
        choice,
        solution,
        finite,
        float(correlation(trained, combination)),
    )


def _probabilities(raw: np.ndarray, mask: np.ndarray) -> np.ndarray:
    if raw.shape != mask.shape or raw.dtype.kind != "f":
        raise ValueError(f"attention has {raw.dtype} of shape {raw.shape}; probabilities {mask.shape} were expected.")
    total = np.where(mask, raw, 0.0).astype(np.float64)
    tolerance = raw.shape[1] * float(np.finfo(raw.dtype).eps)
    if not np.isfinite(total).all() or (total < 0).any() or (np.abs(total.sum(axis=1) - 1.0) > tolerance * 4).any():
        raise ValueError(
            f"attention of shape {raw.shape} is no distribution; nonnegative rows of sum one were expected."
        )
    return total


def _coefficient(W: np.ndarray, W_fin: np.ndarray, W_mm: np.ndarray, choice: str) -> tuple[float, str]:
    """Return c and the choice that determined it."""
    size = float((W_mm * W_mm).sum())
    if size == 0:
        return 0.0, choice
    least_squares = float((W_mm * (W - W_fin)).sum()) / size
    if choice == "least-squares" or not W_fin.any():
        return least_squares, choice
    f, m = float((W_fin * W).sum()), float((W_mm * W).sum())
    squared, cross = float((W_fin * W_fin).sum()), float((W_fin * W_mm).sum())
    # d/dc of (f + c m) / ||W_fin + c W_mm|| vanishes at one point; it is the maximum when the denominator is positive.
    denominator = f * size - m * cross
    if denominator <= 0:
        return least_squares, "least-squares"
    return (m * squared - f * cross) / denominator, choice
