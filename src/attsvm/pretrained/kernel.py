r"""The attention SVM of a head by inner products alone.

The Frobenius solution is :math:`W = \sum_k \lambda_k \delta_k z_k^\top` over constraints :math:`k = (i, t)`, and all
that its dual asks of the data are the products :math:`\langle\delta_k,\delta_l\rangle\langle z_k,z_l\rangle`. For
lifted tokens :math:`\phi = \rho\otimes x` these are products of products (:mod:`attsvm.pretrained.rope`), so neither
:math:`\phi` nor W is formed and the width of a model does not matter.

Few constraints support W. The dual is solved on a working set by block pivoting
(:mod:`attsvm.solvers.frobenius.pivoting`) or, where that does not end, by one exchange at a time
(:mod:`attsvm.solvers.frobenius.active_set`); then the margins of all constraints are computed from the supports, the
worst violators join, and the round repeats until the gap, computed over *all* constraints, is closed. With ``C`` the
squared hinge replaces the hard margin: its dual differs by 1/(2C) on the diagonal.

The scores that W gives are summed query by query, :math:`\sum_j \langle z_i,z_j\rangle\langle\phi_{it},v_j\rangle`
with :math:`v_j` the part of W that query j holds: n^2 F d + n T F d multiplications for n queries that see T tokens of
width d with F positional features, however many constraints support W. Where many selections of the same few tokens are
solved for, :class:`Formed` holds all inner products, and scores cost one product with a matrix.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from attsvm.core.status import Status
from attsvm.core.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted, histogram
from attsvm.pretrained.head import AttentionHead
from attsvm.pretrained.rope import position_features
from attsvm.solvers.frobenius.active_set import nonnegative_least_squares
from attsvm.solvers.frobenius.pivoting import block_pivoting

# Constraints of each query in the first working set, and how many join in a round at least; where the multipliers are
# more, as many as they.
FIRST, JOIN = 3, 400
MAX_ROUNDS = 60
# 1 - 1^T lambda below this: the multipliers prove that every W is longer than any that is of use.
VANISHED = 1e-12
# Margins may fall short by this on a working set; where the squared norm, in parts of the shortest that one constraint
# asks for, is larger, rounding decides whether there is a W at all, and one exchange at a time tells.
SLOPE, LONG = 1e-12, 1e8
# Entries of what the queries hold of W that are kept at once, and of other arrays that are made block by block: 16 MB
# the allocator hands out again, more it gets from the system and clears each time.
HELD_ENTRIES, CHUNK_ENTRIES = 32_000_000, 2_000_000


@dataclass(frozen=True, eq=False)
class Features:
    """Factors of feature vectors, and the query each is seen by: phi = (rho kron x, c).

    Shapes are (S, F), (S, d), (S, dz) and (S,); c is None where the head has no additive term.
    """

    rho: np.ndarray
    x: np.ndarray
    z: np.ndarray
    c: np.ndarray | None


@dataclass(frozen=True, eq=False, repr=False)
class KernelSolution(Summarised):
    """A certified attention SVM in terms of its multipliers.

    Attributes
    ----------
    head : AttentionHead
    selected : ndarray of int, shape (n,)
    dual : ndarray, shape (n, T)
    margins : ndarray, shape (n, T)
        Margin of the selected token over each token; +inf where hidden.
    objective : float
        Norm of W scaled to smallest margin one (hard margin); ||W||^2 / 2 + C sum u^2 with C. Infinite without a W.
    lower_bound : float
        What the multipliers prove of it.
    status : Status
    C : float or None
    seconds : float

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> solution = pretrained.solve_kernel(head, C=1.0)
    >>> solution.status.name, solution.gap < 1e-5, solution.scores(head).shape
    ('OPTIMAL', True, (24, 6))
    """

    head: AttentionHead
    selected: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    objective: float
    lower_bound: float
    status: Status
    C: float | None
    seconds: float

    @property
    def gap(self) -> float:
        """Certified relative gap."""
        return self.objective / self.lower_bound - 1.0 if self.lower_bound > 0 else np.inf

    def scores(self, head: AttentionHead) -> np.ndarray:
        """Scores that W gives to the tokens of any queries of the same head, (n, T); -inf where hidden.

        Examples
        --------
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from attsvm import pretrained
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
        >>> head = pretrained.extract_head(model, 0, 1, {"input_ids": torch.arange(24).reshape(4, 6)})
        >>> solution = pretrained.solve_kernel(head, C=1.0)
        >>> solution.scores(head).shape
        (24, 6)
        """
        return np.where(head.mask, _scores(head, self.head, _signed(self.dual, self.selected)), -np.inf)

    def product_with_trained(self) -> float:
        """Inner product <W, trained W> in the lifted space: multipliers times the trained margins.

        Examples
        --------
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from attsvm import pretrained
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
        >>> head = pretrained.extract_head(model, 0, 1, {"input_ids": torch.arange(24).reshape(4, 6)})
        >>> solution = pretrained.solve_kernel(head, C=1.0)
        >>> type(solution.product_with_trained()).__name__
        'float'
        """
        own_scores = self.head.scores()
        rows, columns = np.nonzero(self.dual)
        return float(self.dual[rows, columns] @ (own_scores[rows, self.selected[rows]] - own_scores[rows, columns]))

    @property
    def norm(self) -> float:
        """Frobenius norm of W = sum dual delta z^T as it stands."""
        rows, columns = np.nonzero(self.dual)
        margins = self.margins[rows, columns]
        return float(np.sqrt(max(self.dual[rows, columns] @ margins, 0.0)))

    def _summary(self) -> Summary:
        colour = {Status.OPTIMAL: GOOD, Status.INFEASIBLE: BAD}.get(self.status, UNSURE)
        rejected = np.isfinite(self.margins) & (np.arange(self.margins.shape[1]) != self.selected[:, None])
        support = self.dual[rejected] > 0
        facts = [
            ("objective", f"{self.objective:.6g}"),
            ("gap", f"{self.gap:.1e}"),
            ("multipliers above zero", f"{int(support.sum()):,} of {counted(int(rejected.sum()), 'constraint')}"),
            ("margin", "hard" if self.C is None else f"soft, C = {self.C:g}"),
            ("seconds", f"{self.seconds:.3g}"),
        ]
        picture = histogram(self.margins[rejected], support)
        caption = "margins; blue: tokens with a multiplier"
        return Summary("KernelSolution", self.status.name, colour, facts, picture, caption, [self.status.sentence])


def solve_kernel(
    head: AttentionHead,
    selected: np.ndarray | None = None,
    *,
    C: float | None = None,
    tol: float = 1e-6,
    time_limit: float | None = None,
) -> KernelSolution:
    """Solve the Frobenius attention SVM of a head, rotary or not, without forming W.

    Parameters
    ----------
    head : AttentionHead
    selected : ndarray of int, shape (n,), optional
        Default: the tokens attended to most.
    C : float, optional
        Soft margin with squared hinge, as in :func:`attsvm.solve`.
    tol : float
        Relative gap asked for.
    time_limit : float, optional
        In seconds.

    Returns
    -------
    KernelSolution
        UNDECIDED when no W was found: the lower bound then says how long one would have to be.

    Raises
    ------
    ValueError
        If `selected` does not fit the head, or an option is out of range.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = LlamaModel(LlamaConfig(vocab_size=50, **sizes))
    >>> head = pretrained.extract_head(model, 0, 0, {"input_ids": torch.arange(12).reshape(2, 6)})
    >>> solution = pretrained.solve_kernel(head)
    >>> solution.dual.shape, bool(solution.lower_bound <= solution.objective)
    ((12, 6), True)
    """
    selection = _read_selected(head, selected)
    if C is not None and not C > 0:
        raise ValueError(f"C is {C!r}; a positive number was expected.")
    if not 0 < tol < 1:
        raise ValueError(f"tol is {tol!r}; a number between 0 and 1 was expected.")
    return solve_selection(head, selection, Factored(head), C, tol, time_limit)


class Kernel(Protocol):
    """Inner products of what the queries of a head see."""

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """Inner products of the constraints (phi_winner - phi_loser) z^T of some queries, (S, S)."""
        ...

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """Scores of all tokens under W = sum of signed phi z^T, (n, T)."""
        ...


class Factored:
    """Inner products computed when they are asked for."""

    def __init__(self, head: AttentionHead) -> None:
        self._head = head

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        ups, downs = features(self._head, rows, winners), features(self._head, rows, losers)
        cross = _between(ups, downs)
        return (_between(ups, ups) - cross - cross.T + _between(downs, downs)) * (ups.z @ ups.z.T)

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        return _scores(self._head, self._head, signed)


class Formed:
    """All inner products of the M tokens that the queries see, for problems small enough; they depend on no weights.

    Parameters
    ----------
    head : AttentionHead
    unweighted : bool
        Whether ``tokens`` is kept; without it half the memory does.

    Attributes
    ----------
    rows, columns : ndarray of int, shape (M,)
        The query and the token.
    tokens : ndarray, shape (M, M)
        Inner products of lifted tokens, without those of the queries.
    """

    def __init__(self, head: AttentionHead, *, unweighted: bool = True) -> None:
        self._mask = head.mask
        self._queries = head.asking_vectors()
        self.rows, self.columns = np.nonzero(head.mask)
        self._place = np.full(head.mask.shape, -1)
        self._place[head.mask] = np.arange(len(self.rows))
        everything = features(head, self.rows, self.columns)
        self.tokens = _between(everything, everything)
        if not unweighted:
            self._whole = self._weighted(self.tokens)
            del self.tokens

    @cached_property
    def _whole(self) -> np.ndarray:
        return self._weighted(self.tokens.copy())

    def _weighted(self, products: np.ndarray) -> np.ndarray:
        """Multiply by the inner products of the queries, in place."""
        of_queries = (self._queries @ self._queries.T)[:, self.rows]
        for row, query in enumerate(self.rows):
            products[row] *= of_queries[query]
        return products

    def turn(self, head: AttentionHead) -> None:
        """Turn the weighted products of tokens without positions, and no additive term, into those of a rotary head."""
        rho = position_features(head, self.rows, self.columns)
        _multiply(self._whole, rho, rho)

    def at(self, columns: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Places among the M of one token each of the queries, or of some of them."""
        return self._place[np.arange(len(self._place)) if rows is None else rows, columns]

    def gram(self, rows: np.ndarray, winners: np.ndarray, losers: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        ups, downs = self.at(winners, rows), self.at(losers, rows)
        half = self._whole[ups] - self._whole[downs]
        return np.take(half, ups, axis=1) - np.take(half, downs, axis=1)  # in rows, as the compiled solver reads them

    def scores(self, signed: np.ndarray) -> np.ndarray:
        """See :class:`Kernel`."""
        out = np.zeros(self._mask.shape)
        out[self._mask] = self._whole @ signed[self._mask]
        return out


def solve_selection(
    head: AttentionHead, selection: np.ndarray, kernel: Kernel, C: float | None, tol: float, time_limit: float | None
) -> KernelSolution:
    """Solve as :func:`solve_kernel`, with inner products that may be shared by several selections."""
    began = time.perf_counter()
    n, T = head.mask.shape
    rejected = head.mask.copy()
    rejected[np.arange(n), selection] = False
    dual = np.zeros((n, T))
    working = _first(rejected)
    best = KernelSolution(
        head, selection, dual, np.where(head.mask, 0.0, np.inf), np.inf, 0.0, Status.UNDECIDED, C, 0.0
    )
    if not rejected.any():
        return KernelSolution(head, selection, dual, best.margins, 0.0, 0.0, Status.OPTIMAL, C, 0.0)
    for _ in range(MAX_ROUNDS):
        rows, columns = np.nonzero(working)
        values = _solve_working_set(kernel.gram(rows, selection[rows], columns), dual[rows, columns], C)
        dual = np.zeros((n, T))
        if values is None:
            return best
        dual[rows, columns] = values
        scores = kernel.scores(_signed(dual, selection))
        margins = np.where(head.mask, scores[np.arange(n), selection][:, None] - scores, np.inf)
        objective, bound = _measure(dual, margins, rejected, C)
        status = Status.OPTIMAL if objective <= (1 + tol) * bound else Status.UNDECIDED
        seconds = time.perf_counter() - began
        best = KernelSolution(head, selection, dual, margins, objective, bound, status, C, seconds)
        if status is Status.OPTIMAL:
            return best
        short = np.where(rejected & ~working, 1.0 - margins, -np.inf)
        violators = int((short > tol / 10).sum())
        late = time_limit is not None and seconds > time_limit
        if violators == 0 or late:
            return best
        working = dual > 0
        joining = min(violators, max(JOIN, int(working.sum())))
        worst = np.argpartition(short.ravel(), -joining)[-joining:]
        working.ravel()[worst] = True
    return best


def hebbian_scores(train: AttentionHead, test: AttentionHead) -> np.ndarray:
    """Scores that the sum over queries of (selected token - mean of the others) z^T gives to other queries, (n, T)."""
    rejected = train.mask.copy()
    rejected[np.arange(len(rejected)), train.selected] = False
    weights = rejected / np.maximum(rejected.sum(axis=1, keepdims=True), 1)
    return np.where(test.mask, _scores(test, train, _signed(weights, train.selected)), -np.inf)


def _read_selected(head: AttentionHead, selected: np.ndarray | None) -> np.ndarray:
    selection = head.selected if selected is None else np.asarray(selected)
    n, T = head.mask.shape
    if selection.shape != (n,) or selection.dtype.kind not in "iu" or (selection < 0).any() or (selection >= T).any():
        raise ValueError(
            f"selected has {selection.dtype} of shape {selection.shape}; {n} integers from 0 to {T - 1} were expected."
        )
    if not head.mask[np.arange(n), selection].all():
        raise ValueError("selected names a hidden token; tokens visible under the head's mask were expected.")
    return selection


def _first(rejected: np.ndarray) -> np.ndarray:
    """Spread the first working set evenly over each query's rejected tokens."""
    order = np.cumsum(rejected, axis=1)
    step = np.maximum(1, order[:, -1:] // FIRST)
    return rejected & (order % step == 0)


def features(head: AttentionHead, rows: np.ndarray, columns: np.ndarray) -> Features:
    """Return the factors of the features of tokens (rows, columns)."""
    return Features(
        position_features(head, rows, columns),
        head.tokens[head.sequence[rows], columns],
        head.asking_vectors()[rows],
        None if head.bias is None else head.bias[rows, columns],
    )


def _between(a: Features, b: Features) -> np.ndarray:
    """Inner products of lifted tokens, without those of the queries."""
    products = a.x @ b.x.T
    if a.rho.shape[1] > 1:  # a single feature is 1
        _multiply(products, a.rho, b.rho)
    return products if a.c is None or b.c is None else products + np.outer(a.c, b.c)


def _multiply(products: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Multiply by the inner products of two sets of rows, in place and a block at a time."""
    step = max(1, CHUNK_ENTRIES // len(b))
    for start in range(0, len(a), step):
        products[start : start + step] *= a[start : start + step] @ b.T


def _signed(dual: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Weights of the tokens' phi z^T in W = sum dual (phi_selected - phi) z^T, (n, T)."""
    signed = -dual
    signed[np.arange(len(dual)), selected] += dual.sum(axis=1)
    return signed


def _scores(head: AttentionHead, source: AttentionHead, signed: np.ndarray) -> np.ndarray:
    """Score of every visible token of a head under W = sum of signed phi z^T over the source's tokens, (n, T)."""
    out = np.zeros(head.mask.shape)
    holders = np.flatnonzero(signed.any(axis=1))
    if not len(holders):
        return out
    size = position_features(source, np.zeros(1, int), np.zeros(1, int)).shape[1] * source.tokens.shape[2]
    step, most = max(1, CHUNK_ENTRIES // size), max(1, HELD_ENTRIES // size)
    chunks = [holders[start : start + most] for start in range(0, len(holders), most)]
    first = _held(source, signed, chunks[0])
    products = head.asking_vectors() @ source.asking_vectors().T
    if head.bias is not None and source.bias is not None:
        out += head.bias * (products @ (signed * source.bias).sum(axis=1))[:, None]
    for start in range(0, len(out), step):
        rows = slice(start, start + step)
        W = products[rows, chunks[0]] @ first.reshape(len(first), -1)
        for chunk in chunks[1:]:
            W += products[rows, chunk] @ _held(source, signed, chunk).reshape(len(chunk), -1)
        for i, map_of_query in enumerate(W.reshape(len(W), *first.shape[1:]), start):
            seen = np.flatnonzero(head.mask[i])
            rho = position_features(head, np.full(len(seen), i), seen)
            keys = head.tokens[head.sequence[i], seen] @ map_of_query.T  # (seen, F)
            out[i, seen] += np.einsum("tf,tf->t", rho, keys)
    return out


def _held(source: AttentionHead, signed: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the part of W that each of some queries holds, sum_t signed rho x^T, (rows, F, d)."""
    width = position_features(source, np.zeros(1, int), np.zeros(1, int)).shape[1]
    out = np.empty((len(rows), width, source.tokens.shape[2]))
    for part, i in zip(out, rows, strict=True):
        columns = np.flatnonzero(signed[i])
        rho = position_features(source, np.full(len(columns), i), columns)
        np.matmul((rho * signed[i, columns, None]).T, source.tokens[source.sequence[i], columns], out=part)
    return out


def _solve_working_set(gram: np.ndarray, guess: np.ndarray, C: float | None) -> np.ndarray | None:
    """Maximise 1.lam - lam.G.lam/2 over lam >= 0; None when it is unbounded to rounding."""
    size = float(np.diag(gram).max())
    if size == 0:
        return None
    scaled = gram / size
    if C is not None:
        scaled[np.diag_indices(len(scaled))] += 1.0 / (2.0 * C * size)
    cost, free = np.ones(len(scaled)), np.zeros(len(scaled), dtype=bool)
    pivoted = block_pivoting(scaled, cost, SLOPE)
    if pivoted is not None and pivoted.sum() < LONG:
        return pivoted / size
    start = guess * size
    weight = max(1.0, float(start.sum()))
    for _ in range(4):
        values, _ = nonnegative_least_squares(
            weight * scaled + 1.0, cost, free, start / weight, 1e-13, 10 * len(cost) + 100
        )
        rho = 1.0 - float(values.sum())
        if rho > 1e-3:
            break
        if rho < VANISHED:
            return None
        weight *= 1.0 / rho
        start = values * weight
    return np.asarray(values) * (weight / max(rho, VANISHED)) / size


def _measure(dual: np.ndarray, margins: np.ndarray, rejected: np.ndarray, C: float | None) -> tuple[float, float]:
    """Objective of W and the bound that its multipliers prove."""
    own = dual > 0
    squared, total = float(dual[own] @ margins[own]), float(dual.sum())
    if C is not None:
        short = np.maximum(1.0 - margins[rejected], 0.0)
        return 0.5 * squared + C * float(short @ short), total - 0.5 * squared - float((dual**2).sum()) / (4.0 * C)
    if squared <= 0:
        return np.inf, 0.0
    norm, smallest = float(np.sqrt(squared)), float(margins[rejected].min())
    return (norm / smallest if smallest > 0 else np.inf), total / norm
