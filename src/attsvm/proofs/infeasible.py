r"""Proof that no W exists: exact multipliers :math:`\lambda \ge 0` with :math:`A^\top\lambda = 0`, or their existence.

*Exact multipliers.* The support of the float certificate is reduced to a minimal one (Caratheodory: move along a null
vector of its columns until a multiplier vanishes). On a minimal support the multipliers are unique up to scale.
Elimination over the integers gives them exactly; then their signs and all equations are checked.

*Existence.* If the support has more constraints than there are equations, M = A_J^T diag(lam_J) usually has full row
rank. A right inverse Y (:mod:`attsvm.proofs.surjective`) then gives some e = Y c that solves M (1 + e) = 0 and makes
:math:`\lambda(1+e)` exact. It is positive when every entry of e is below one in absolute value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import UNIT, gamma
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_rows
from attsvm.platform.summary import counted
from attsvm.proofs import linear
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.surjective import SURE_DEFECT, TINY, right_inverse

# Multiplier, relative to the largest, up to which its constraint is not in the support.
SUPPORT_SHARE = 1e-9
# Singular value, relative to the largest, or length of a unit row's remainder, up to which it counts as zero.
NULL = 1e-9
# Largest number of entries of a right inverse; the checker multiplies it by every constraint of the support.
SUPPORT_INVERSE_NUMBERS = 300_000


def prove_infeasible(problem: SelectionProblem, dual: np.ndarray, largest: int = linear.ELIMINATION_ROWS) -> str | None:
    """Prove infeasibility from nearly exact multipliers.

    Parameters
    ----------
    dual : ndarray, shape (n, T)
    largest : int
        Largest size of the system that is solved over the integers.

    Returns
    -------
    str or None
        How it was proven; None when it was not.
    """
    support = _Support.of(problem, dual)
    if support is None:
        return None
    # Underflow would break the relative error bounds; exact arithmetic has none.
    if support.visible and _existence(support.products, support.values, support.free):
        return f"{len(support.rows)} multipliers near the certificate's cancel exactly, by interval bounds"
    exact = support.kernel(largest)
    if exact is None:
        return None
    kernel = exact[1]
    count = sum(v != 0 for v in kernel)
    bits = counted(max(abs(v).bit_length() for v in kernel), "bit")
    return f"{counted(count, 'multiplier')}, integers of up to {bits}, {'cancels' if count == 1 else 'cancel'} exactly"


def exact_multipliers(problem: SelectionProblem, dual: np.ndarray) -> np.ndarray | None:
    """Find integer multipliers, (n, T) of object, that cancel exactly near the given (n, T); None if there are none."""
    support = _Support.of(problem, dual)
    exact = None if support is None else support.kernel(linear.ELIMINATION_ROWS)
    if support is None or exact is None:
        return None
    places, kernel = exact
    out = np.zeros(dual.shape, dtype=object)
    out[support.rows[places], support.columns[places]] = kernel
    return out


def cancelling_inverse(problem: SelectionProblem, dual: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Find a right inverse which shows that multipliers near these (n, T) cancel; None if there is none.

    Returns
    -------
    dual : ndarray, shape (n, T)
        The multipliers of the support.
    inverse : ndarray, shape (N, J)
        One row for each of the N matrix entries that occur in the support. By these multipliers, the support's J
        constraints, in order, sum to one at this entry and to zero at the others.
    """
    support = _Support.of(problem, dual)
    if support is None:
        return None
    at = support.rows, support.columns
    out = np.zeros(dual.shape)
    out[at] = dual[at]
    delta, _ = _differences(problem, *at)
    rows = constraint_rows(delta, problem.queries[support.rows])
    present = constraint_rows(delta != 0, problem.queries[support.rows] != 0).any(axis=0)
    weights = np.where(support.free, np.abs(out[at]).max(), out[at])
    system = (rows * weights[:, None])[:, present].T  # (N, J)
    if not len(system) <= system.shape[1] or system.size > SUPPORT_INVERSE_NUMBERS:
        return None
    try:
        return out, (np.linalg.pinv(system) * weights[:, None]).T
    except np.linalg.LinAlgError:
        return None


@dataclass(frozen=True, eq=False)
class _Support:
    """The constraints used by nearly exact multipliers: queries and tokens (J,), and products.

    Each row of ``products`` is scaled by a power of two, and its multiplier by the inverse. This changes no digit and
    keeps products in the range of floats.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    free: np.ndarray
    exact_left: list[Dyadic]
    right: np.ndarray
    products: np.ndarray
    visible: bool

    @classmethod
    def of(cls, problem: SelectionProblem, dual: np.ndarray) -> _Support | None:
        if dual.shape != problem.mask.shape or not np.isfinite(dual).all():
            return None
        inner = problem.rejected & (dual > 0)
        if not inner.any():
            return None
        outer = problem.tied & (dual != 0)
        rows, columns = np.nonzero((inner & (dual > SUPPORT_SHARE * dual[inner].max())) | outer)
        values, free = dual[rows, columns], problem.tied[rows, columns]
        left, exact_left = _differences(problem, rows, columns)
        right, left_powers, right_powers = problem.queries[rows], _powers(left), _powers(problem.queries[rows])
        products = constraint_rows(np.ldexp(left, -left_powers[:, None]), np.ldexp(right, -right_powers[:, None]))
        powers = left_powers + right_powers
        values = np.ldexp(values, powers - powers.max())
        present = constraint_rows(left != 0, right != 0)
        visible = bool((np.abs(products[present]) > TINY).all())
        return cls(rows, columns, values, free, exact_left, right, products, visible)

    def kernel(self, largest: int) -> tuple[np.ndarray, list[int]] | None:
        """Return the indices of a minimal support and integers that cancel on it, nonnegative except on ties."""
        places = _minimal(self.products, self.values, self.free)
        if places is None or len(places) - 1 > min(largest, linear.ELIMINATION_ROWS):
            return None
        kernel = linear.kernel_vector(_exact_rows(self.exact_left, self.right, places).T)
        if kernel is None:
            return None
        signs = [v for v, f in zip(kernel, self.free[places], strict=True) if not f]
        if all(v <= 0 for v in signs):
            kernel, signs = [-v for v in kernel], [-v for v in signs]
        return (places, kernel) if any(signs) and all(v >= 0 for v in signs) else None


def differences(problem: SelectionProblem, i: int) -> Dyadic:
    """Return x_{i alpha_i} - x_it for every token of query i, (T, d)."""
    tokens = Dyadic.of(problem.tokens[problem.sequence[i]])
    selection = tokens.numbers[problem.reference[i]]
    return Dyadic(selection[None, :] - tokens.numbers, tokens.exponent)


def _differences(problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, list[Dyadic]]:
    """Token differences of the constraints in floats (J, d), and exactly."""
    exact, rounded = [], []
    for i in np.unique(rows):
        x = np.asarray(problem.tokens[problem.sequence[i]], dtype=np.float64)
        delta = differences(problem, i)
        for t in columns[rows == i]:
            rounded.append(x[problem.reference[i]] - x[t])
            exact.append(Dyadic(delta.numbers[t], delta.exponent))
    return np.array(rounded), exact


def _powers(rows: np.ndarray) -> np.ndarray:
    """Power of two just above the largest entry of each row (J, d)."""
    return np.frexp(np.abs(rows).max(axis=1))[1]


def _exact_rows(left: list[Dyadic], right: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Constraints of the support as rows of integers, (k, d dz), all multiplied by one factor."""
    least = min(left[k].exponent for k in places)
    z = Dyadic.of(right[places])
    tokens = np.array([left[k].at(least) for k in places], dtype=object)
    return constraint_rows(tokens, z.numbers)


def _minimal(products: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray | None:
    """Return the indices of a minimal support; None when rounding hides it."""
    length = np.linalg.norm(products, axis=1)
    keep = np.arange(len(values))
    if (length[~free] == 0).any():
        return np.flatnonzero((length == 0) & ~free)[:1]
    keep = _drop_dependent_ties(products / np.maximum(length, 1e-300)[:, None], keep, free)
    weight = values * length
    while len(keep):
        columns = (products[keep] / length[keep][:, None]).T  # (d dz, J)
        # If there are more equations than multipliers, the triangular factor has the same null space and is smaller.
        tall = len(columns) > len(keep)
        _, sigma, basis = np.linalg.svd(np.linalg.qr(columns, mode="r") if tall else columns)
        rank = int(np.count_nonzero(sigma > NULL * sigma[0]))
        null = basis[rank:]
        if len(null) == 0:
            return None
        if len(null) == 1:
            return keep
        # Project the multipliers on the null space, where they cancel up to rounding, and move along a null vector.
        inside = null.T @ (null @ weight[keep])
        inner = ~free[keep]
        along = null[0] if np.abs(null[0][inner]).max() > np.abs(null[1][inner]).max() else null[1]
        ratio = along[inner] / np.maximum(inside[inner], 1e-300)
        if ratio.max() < -ratio.min():
            along, ratio = -along, -ratio
        step = 1.0 / ratio.max()
        after = inside - step * along
        weight[keep] = after
        zeros = np.flatnonzero(inner)[ratio >= ratio.max() * (1 - 1e-12)]
        keep = np.delete(keep, zeros)
    return None


def _drop_dependent_ties(rows: np.ndarray, keep: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Remove ties that depend on other ties, since they would add kernel vectors without inequalities."""
    independent: list[int] = []
    basis = np.zeros((0, rows.shape[1]))
    for k in keep[free[keep]]:
        rest = rows[k] - basis.T @ (basis @ rows[k])
        rest -= basis.T @ (basis @ rest)
        size = float(np.linalg.norm(rest))
        if size > NULL:
            independent.append(int(k))
            basis = np.vstack([basis, rest / size])
    return np.sort(np.concatenate([keep[~free[keep]], np.array(independent, dtype=int)]))


def _existence(products: np.ndarray, values: np.ndarray, free: np.ndarray) -> bool:
    """Apply the existence test of the module's derivation, on the coordinates that occur."""
    coordinates = np.any(products != 0, axis=0)
    values = values / np.abs(values).max()
    weight = np.where(free, 1.0, values)
    # A token difference, its product with the query and with the multiplier: three roundings per entry.
    inverse = right_inverse((products[:, coordinates] * weight[:, None]).T, 3)
    if inverse is None:
        return False
    now = np.where(free, values, 1.0)
    residual = np.abs(inverse.M @ now) + inverse.error * (np.abs(inverse.M) @ np.abs(now))
    reach = float(np.abs(inverse.Y)[~free].sum(axis=1).max()) * (1 + gamma(len(inverse.M)))
    return reach * inverse.multiplier(float(residual.max()) * (1 + 4 * UNIT)) * (1 + 4 * UNIT) < SURE_DEFECT
