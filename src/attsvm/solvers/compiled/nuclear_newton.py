r"""Newton steps that follow the face, compiled for small problems.

The method and its equations are those of :mod:`attsvm.solvers.nuclear.pursuit` and :mod:`.nuclear_face`. Only the right
singular vectors V of :math:`M = A^\top\lambda` are formed, together with MV: left singular vectors off the leading k
enter through :math:`u\sigma = Mv` and through the token Gram matrix, so that no basis is completed and nothing is
divided by a small singular value. Written as loops over few arrays, since array expressions are slow to compile.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.kernels import FAST, kernel
from attsvm.solvers.nuclear.pursuit import FAR, STEPS
from attsvm.solvers.nuclear.rotations import EXACT, rotate
from attsvm.solvers.nuclear.steps import apply_adjoint, margins_of

# A pivot below this part of the largest entry: the system is singular to rounding, and left to the general solver.
SINGULAR = 1e-13
# Steps go on below the gap asked for until this one, which costs one more at most: convergence is quadratic.
POLISHED = 1e-13
# Equalities hold to this part of the smallest margin.
TIE_PRECISION = 1e-10
# A singular value of M that carries W is near one.
LEADING = 0.5
SINGULAR_FLOOR, TAIL_FLOOR = 1e-12, 1e-14


@kernel(inner=True, fastmath=FAST)
def products(rows, vectors):
    """Inner products of rows (m, q) with vectors (k, q): (m, k)."""
    out = np.empty((len(rows), len(vectors)))
    for j in range(len(rows)):
        for i in range(len(vectors)):
            value = 0.0
            for a in range(rows.shape[1]):
                value += rows[j, a] * vectors[i, a]
            out[j, i] = value
    return out


@kernel(inner=True, fastmath=FAST)
def combine(weights, vectors, out):
    """Add to ``out`` (k, q) the product of weights (k, m) and vectors (m, q)."""
    for i in range(len(out)):
        for j in range(len(vectors)):
            for a in range(out.shape[1]):
                out[i, a] += weights[i, j] * vectors[j, a]


@kernel(fastmath=FAST)
def right_singular(matrix):
    """Singular vectors of the right side, all of them: V^T (r, r), (matrix V)^T (r, p) and lengths (r,), descending."""
    p, r = matrix.shape
    basis = np.eye(r)
    rows = np.empty((r, p))
    for a in range(p):
        for c in range(r):
            rows[c, a] = matrix[a, c]
    lengths = rotate(rows, basis, EXACT)
    for i in range(r):
        top = i
        for j in range(i + 1, r):
            if lengths[j] > lengths[top]:
                top = j
        if top != i:
            lengths[i], lengths[top] = lengths[top], lengths[i]
            for a in range(p):
                rows[i, a], rows[top, a] = rows[top, a], rows[i, a]
            for a in range(r):
                basis[i, a], basis[top, a] = basis[top, a], basis[i, a]
    return basis, rows, lengths


@kernel(inner=True, fastmath=FAST)
def smallest_margin(margins, free, precision):
    """Smallest margin over the inequalities; zero when an equality is off by more than this part of it."""
    smallest, tied = np.inf, 0.0
    for k in range(len(free)):
        if free[k]:
            tied = max(tied, abs(margins[k]))
        else:
            smallest = min(smallest, margins[k])
    return smallest if tied <= precision * smallest or tied == 0.0 else 0.0


@kernel(inner=True, fastmath=FAST)
def _solve(system, rhs):
    """Solve a small system in place (Gaussian elimination, partial pivoting); False when it is singular."""
    size = len(rhs)
    largest = 0.0
    for i in range(size):
        for j in range(size):
            largest = max(largest, abs(system[i, j]))
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if abs(system[i, k]) > abs(system[pivot, k]):
                pivot = i
        if not SINGULAR * largest < abs(system[pivot, k]) < np.inf:
            return False
        if pivot != k:
            for j in range(k, size):
                system[k, j], system[pivot, j] = system[pivot, j], system[k, j]
            rhs[k], rhs[pivot] = rhs[pivot], rhs[k]
        for i in range(k + 1, size):
            factor = system[i, k] / system[k, k]
            for j in range(k + 1, size):
                system[i, j] -= factor * system[k, j]
            rhs[i] -= factor * rhs[k]
    for k in range(size - 1, -1, -1):
        value = rhs[k]
        for j in range(k + 1, size):
            value -= system[k, j] * rhs[j]
        rhs[k] = value / system[k, k]
    return True


@kernel(fastmath=FAST)
def newton_step(delta, of, queries, cost, left, right, adjoint, vectors, sigma, singular, curvature, W):
    """One Newton step: whether it could be made, and the change of the multipliers.

    Parameters
    ----------
    delta : ndarray, shape (J, p)
    of : ndarray of int, shape (J,)
        The query of each active constraint.
    queries : ndarray, shape (n, r)
    cost : ndarray, shape (J,)
    left, right : ndarray, shapes (k, p) and (k, r)
        Leading singular vectors of M, in rows, turned so that S is diagonal.
    adjoint, vectors : ndarray, shapes (t, p) and (t, r)
        (M V)^T and V^T of the others.
    sigma : ndarray, shape (t,)
        Their singular values.
    singular : ndarray, shape (k,)
        The diagonal of S, positive.
    curvature : ndarray, shape (k, k)
        I less the leading singular values, turned likewise.
    W : ndarray, shape (p, r)
        Receives the new W.
    """
    active, n, k, t = len(of), len(queries), len(singular), len(sigma)
    lower = k * (k + 1) // 2
    a, b = products(delta, left), products(queries, right)
    # The positive part of the Hessian, inverted: rows whose inner products are entries of Schur complements.
    token_rows, query_rows = np.empty((active, k + t)), np.empty((n, k + t))
    token_tail, query_tail = products(delta, adjoint), products(queries, vectors)
    scaled_a, scaled_b = np.empty((active, k)), np.empty((n, k))
    for c in range(k):
        root = np.sqrt(singular[c])
        for j in range(active):
            token_rows[j, c], scaled_a[j, c] = -0.5 * a[j, c], root * a[j, c]
        for i in range(n):
            query_rows[i, c], scaled_b[i, c] = 0.5 * b[i, c], root * b[i, c]
    for c in range(t):
        root = 1.0 / np.sqrt(max(1.0 - sigma[c] * sigma[c], TAIL_FLOOR))
        for j in range(active):
            token_rows[j, k + c] = root * token_tail[j, c]
        for i in range(n):
            query_rows[i, k + c] = root * query_tail[i, c]
    token_gram, along = products(delta, delta), products(a, a)
    token_side, token_lead = products(token_rows, token_rows), products(scaled_a, scaled_a)
    query_side, query_lead = products(query_rows, query_rows), products(scaled_b, scaled_b)
    cross, swap = products(token_rows, query_rows), products(scaled_b, scaled_a)  # (J, n) and (n, J)
    system = np.empty((active + lower, active + lower))
    solution = np.zeros(active + lower)
    for j in range(active):
        i = of[j]
        solution[j] = cost[j] + swap[i, j]
        for m in range(active):
            h = of[m]
            side = token_gram[j, m] - along[j, m] + token_side[j, m]
            value = side * query_lead[i, h] + query_side[i, h] * token_lead[j, m]
            system[j, m] = value + cross[j, h] * swap[i, m] + cross[m, i] * swap[h, j]
    # Y = sum of y_q (first_q E_ij + second_q E_ji), i <= j: the directions that do not merely rotate K and Q.
    first, second = np.empty(lower), np.empty(lower)
    row, column = np.empty(lower, dtype=np.int64), np.empty(lower, dtype=np.int64)
    q = 0
    for i in range(k):
        for j in range(i, k):
            row[q], column[q] = i, j
            length = np.sqrt(singular[i] + singular[j])
            first[q] = 1.0 if i == j else np.sqrt(singular[j]) / length
            second[q] = 0.0 if i == j else np.sqrt(singular[i]) / length
            weight = np.sqrt(0.5 * singular[i]) if i == j else np.sqrt(0.5) * length
            for m in range(active):
                value = weight * (a[m, i] * b[of[m], j] + b[of[m], i] * a[m, j])
                system[m, active + q] = system[active + q, m] = value
            q += 1
    for q in range(lower):
        i, j = row[q], column[q]
        for s in range(lower):
            e, f = row[s], column[s]
            value = 0.0
            if j == f:
                value += first[q] * first[s] * curvature[i, e]
            if j == e:
                value += first[q] * second[s] * curvature[i, f]
            if i == f:
                value += second[q] * first[s] * curvature[j, e]
            if i == e:
                value += second[q] * second[s] * curvature[j, f]
            system[active + q, active + s] = -value
    if not _solve(system, solution):
        return False, solution
    K, Q = np.zeros((k, delta.shape[1])), np.zeros((k, queries.shape[1]))
    weights_a, weights_b = np.empty((k, active)), np.zeros((k, n))
    for m in range(active):
        for c in range(k):
            weights_a[c, m] = solution[m] * scaled_b[of[m], c]
            weights_b[c, of[m]] += solution[m] * scaled_a[m, c]
    combine(weights_a, delta, K)
    combine(weights_b, queries, Q)
    on_left, on_right = products(K, left), products(Q, right)
    tail, query_part = products(K, adjoint), products(Q, vectors)
    for c in range(k):
        for e in range(t):
            tail[c, e] = (tail[c, e] + query_part[c, e]) / max(1.0 - sigma[e] * sigma[e], TAIL_FLOOR)
        for e in range(k):
            lead = 0.25 * (on_left[c, e] - on_right[c, e])
            on_left[c, e], on_right[c, e] = lead - on_left[c, e], -lead
    for q in range(lower):
        i, j, half = row[q], column[q], np.sqrt(0.5) * solution[active + q]
        on_left[j, i] += first[q] * half
        on_right[j, i] += first[q] * half
        on_left[i, j] += second[q] * half
        on_right[i, j] += second[q] * half
    combine(on_left, left, K)
    combine(tail, adjoint, K)
    Q[:] = 0.0
    combine(on_right, right, Q)
    combine(tail, vectors, Q)
    W[:] = 0.0
    combine(K.T, Q, W)
    return True, solution


@kernel(inner=True, fastmath=FAST)
def pursue(delta, of, queries, free, W, dual, tol, best_W, best_dual, best):
    """Take Newton steps from a pair whose gap is moderate, while they approach a solution.

    Parameters
    ----------
    delta : ndarray, shape (m, p)
    of : ndarray of int, shape (m,)
    queries : ndarray, shape (n, r)
    free : ndarray of bool, shape (m,)
        Equalities.
    W : ndarray, shape (p, r)
        Where to start; overwritten, as is ``dual``.
    dual : ndarray, shape (m,)
    tol : float
        The gap asked for.
    best_W, best_dual : ndarray
        Receive the best pair, if it is better than one of gap ``best``: smallest margin one, |A^T dual| one.
    best : float

    Returns
    -------
    float
        Its gap.
    """
    m, p, r = len(of), delta.shape[1], queries.shape[1]
    margins, lengths, cost = np.empty(m), np.empty(m), np.empty(m)
    active = np.zeros(m, dtype=np.bool_)
    signed, held_delta, held_of = np.empty(m), np.empty((m, p)), np.empty(m, dtype=np.int64)
    M, total = np.empty((p, r)), np.empty((p, r))
    for k in range(m):
        tokens, query = 0.0, 0.0
        for a in range(p):
            tokens += delta[k, a] ** 2
        for c in range(r):
            query += queries[of[k], c] ** 2
        lengths[k] = np.sqrt(tokens * query)
    for step in range(STEPS):
        margins_of(delta, of, queries, W, margins)
        if step == 0:
            apply_adjoint(delta, of, dual, queries, M)
            spectral, smallest = right_singular(M)[2][0], smallest_margin(margins, free, np.inf)
            if not (spectral > 0.0 and smallest > 0.0):
                return best
            for k in range(m):
                dual[k] /= spectral
                margins[k] /= smallest
            for a in range(p):
                for c in range(r):
                    W[a, c] /= smallest
        count, changed, before, largest = 0, 0, 0, 0.0
        for k in range(m):
            held = free[k] or lengths[k] * dual[k] > margins[k] - 1.0
            before += active[k]
            changed += held != active[k]
            active[k] = held
            if held:
                held_delta[count], held_of[count] = delta[k], of[k]
                cost[count] = 0.0 if free[k] else 1.0
                largest = max(largest, abs(dual[k]))
                count += 1
            else:
                dual[k] = 0.0
        if count == 0 or (step > 0 and changed > max(4.0, FAR * before)):
            return best
        apply_adjoint(delta, of, dual, queries, M)
        vectors, adjoint, sigma = right_singular(M)
        longest = right_singular(W)[2][0]
        for a in range(p):
            for c in range(r):
                total[a, c] = W[a, c] / longest + M[a, c]
        spectrum = right_singular(total)[2]
        k = 1
        while k < min(p, r) and spectrum[k] > 1.0:
            k += 1
        if not sigma[k - 1] > LEADING:
            return best
        for i in range(k):
            for a in range(p):
                adjoint[i, a] /= sigma[i]
        # S, shifted by its length so that it is positive, in the leading singular vectors.
        along = np.zeros((k, r))
        combine(adjoint[:k], W, along)
        inner = products(along, vectors[:k])
        shift = 0.0
        for i in range(k):
            for j in range(i + 1):
                inner[i, j] = inner[j, i] = 0.5 * (inner[i, j] + inner[j, i])
                shift += inner[i, j] ** 2
        shift = 2.0 * np.sqrt(shift)
        for i in range(k):
            inner[i, i] += shift
        turn, _, singular = right_singular(inner)
        left, right, reach, curvature = np.zeros((k, p)), np.zeros((k, r)), np.zeros((k, p)), np.zeros((k, k))
        combine(turn, adjoint[:k], left)
        combine(turn, vectors[:k], right)
        nuclear = 0.0
        for i in range(k):
            singular[i] -= shift
            nuclear += abs(singular[i])
            for a in range(p):
                reach[i, a] = singular[i] * left[i, a]
            for j in range(k):
                for c in range(k):
                    curvature[i, j] += turn[i, c] * (1.0 - sigma[c]) * turn[j, c]
        if singular[0] <= 0.0:
            return best
        W[:] = 0.0
        combine(reach.T, right, W)
        margins_of(delta, of, queries, W, margins)
        smallest, spectral, amount = smallest_margin(margins, free, TIE_PRECISION), sigma[0], 0.0
        negative = False
        for i in range(m):
            signed[i] = dual[i] if free[i] else max(dual[i], 0.0)
            amount += 0.0 if free[i] else signed[i]
            negative |= signed[i] != dual[i]
        if negative:
            apply_adjoint(delta, of, signed, queries, M)
            spectral = right_singular(M)[2][0]
        gap = nuclear / smallest * spectral / amount - 1.0 if smallest > 0.0 and amount > 0.0 else np.inf
        if gap < best:
            for a in range(p):
                for c in range(r):
                    best_W[a, c] = W[a, c] / smallest
            for i in range(m):
                best_dual[i] = signed[i] / spectral
            if gap <= POLISHED or (best <= tol and gap > 0.1 * best):
                return gap
            best = gap
        elif best <= tol:
            return best
        for i in range(k):
            singular[i] = max(singular[i], SINGULAR_FLOOR * singular[0])
        made, change = newton_step(
            held_delta[:count],
            held_of[:count],
            queries,
            cost[:count],
            left,
            right,
            adjoint[k:],
            vectors[k:],
            sigma[k:],
            singular,
            curvature,
            W,
        )
        size = 0.0
        for j in range(count):
            size = max(size, abs(change[j]))
        if not made or not size < FAR * largest:
            return best
        j = 0
        for i in range(m):
            if active[i]:
                dual[i] += change[j]
                j += 1
    return best
