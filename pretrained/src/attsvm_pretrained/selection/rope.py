r"""Rotary heads as selection problems of lifted tokens, and the inner products of these tokens.

Under rotary positions the score of token t for the query at position q depends on their distance
:math:`\Delta = q - t`. Let a pair p of coordinates rotate by :math:`\theta_p` per position, K_p and Q_p be the two
columns of each factor, and :math:`J = \bigl(\begin{smallmatrix}0&-1\\1&0\end{smallmatrix}\bigr)`. The score is

.. math:: a = \sum_p \cos(\theta_p\Delta)\, x^\top A_p z + \sin(\theta_p\Delta)\, x^\top B_p z,
    \qquad A_p = K_p Q_p^\top,\; B_p = K_p J Q_p^\top,

plus :math:`x^\top A_0 z` of the coordinates that do not rotate. This is the plain bilinear score of the lifted token
:math:`\rho(\Delta)\otimes x` with :math:`\rho = [\cos\theta_p\Delta, \sin\theta_p\Delta, 1]`, so all results on
attention SVMs hold for rotary heads in the lifted space (RoPE: arXiv 2104.09864). The lift is 2P + 1 times as wide as
the token. Inner products of lifted tokens,

.. math:: \langle\rho(\Delta), \rho(\Delta')\rangle \langle x, x'\rangle
    = \Bigl(1 + \sum_p \cos\theta_p(\Delta - \Delta')\Bigr) \langle x, x'\rangle ,

cost no more than inner products of tokens; :mod:`attsvm_pretrained.selection.inner_products` uses nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.platform.summary import Listed
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.sequences import refuse_size


@dataclass(frozen=True, eq=False, repr=False)
class Lifted(Listed):
    """A head in the space where its score is bilinear.

    Attributes
    ----------
    head : AttentionHead
    tokens : ndarray, shape (n, T, D)
        Lifted tokens of each query.
    W : ndarray, shape (D, dz)
        The trained matrix: scores are ``tokens @ W @ z``. An additive term of the head is the last coordinate of the
        tokens, with weight 1, times a last coordinate 1 of z (:class:`attsvm.pretrained.AttentionHead`).

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head("llama")
    >>> lifted = pretrained.rope_lift(head)
    >>> lifted.W.shape, lifted.problem().shape
    ((128, 16), (24, 6, 128, 16))
    """

    head: AttentionHead
    tokens: np.ndarray
    W: np.ndarray

    def problem(self, selected: np.ndarray | None = None) -> SelectionProblem:
        """Pose the selection problem of the lifted tokens; by default with the tokens the head attends to most.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head("llama")
        >>> lifted = pretrained.rope_lift(head)
        >>> lifted.problem().shape
        (24, 6, 128, 16)
        """
        selection = self.head.selected if selected is None else selected
        return SelectionProblem(self.tokens, self.head.asking_vectors(), selection, mask=self.head.mask)


def rope_lift(head: AttentionHead) -> Lifted:
    """Lift the tokens of a head so that its score becomes bilinear.

    Parameters
    ----------
    head : AttentionHead
        If it is not rotary, the tokens are only copied for each query.

    Returns
    -------
    Lifted

    Raises
    ------
    ValueError
        If the lifted tokens would take more than 2 GiB; :func:`attsvm.pretrained.solve_kernel` needs none.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head("llama")
    >>> lifted = pretrained.rope_lift(head)
    >>> head.rotary, lifted.tokens.shape
    (True, (24, 6, 128))
    """
    n, T = head.mask.shape
    d = head.tokens.shape[2]
    rho = position_features(head)
    refuse_size(8 * n * T * d * rho.shape[2], n, "lifted tokens")
    x = head.tokens[head.sequence]  # (n, T, d)
    lifted = (rho[..., :, None] * x[..., None, :]).reshape(n, T, -1)
    if head.bias is not None:
        lifted = np.concatenate([lifted, head.bias[..., None]], axis=2)
    return Lifted(head, lifted, head.with_bias_row(lifted_matrix(head)))


def position_features(
    head: AttentionHead, rows: np.ndarray | None = None, columns: np.ndarray | None = None
) -> np.ndarray:
    """Return the features rho(distance); a single feature 1 for a head that is not rotary.

    Parameters
    ----------
    rows, columns : ndarray of int, shape (m,), optional
        Pairs of a query and a token. Default: all.

    Returns
    -------
    ndarray, shape (m, F), or (n, T, F)
    """
    if rows is None or columns is None:
        n, T = head.mask.shape
        every = np.repeat(np.arange(n), T), np.tile(np.arange(T), n)
        return position_features(head, *every).reshape(n, T, -1)
    if head.turns is None:
        return np.ones((len(rows), 1))
    relative = head.turns.queries[rows] * head.turns.tokens[head.sequence[rows], columns].conj()  # (m, P)
    parts = [np.real(relative), np.imag(relative)]
    if 2 * len(head.turns.pairs) < head.K.shape[1]:
        parts.append(np.ones((len(rows), 1)))
    return np.concatenate(parts, axis=1)


def lifted_matrix(head: AttentionHead) -> np.ndarray:
    """Return the trained matrix over lifted tokens, (F d, dz), blocks in the order of :func:`position_features`.

    It has no row for an additive term.
    """
    if head.turns is None:
        return head.K @ head.Q.T
    pairs = head.turns.pairs
    K, Q = head.K[:, pairs], head.Q[:, pairs]  # (d, P, 2), (dz, P, 2)
    quarter_turn = np.stack([-Q[..., 1], Q[..., 0]], axis=-1)  # J Q^T, read column by column
    blocks = [np.einsum("dpi,zpi->pdz", K, Q), np.einsum("dpi,zpi->pdz", K, quarter_turn)]
    rest = _unrotated(head)
    if len(rest):
        blocks.append((head.K[:, rest] @ head.Q[:, rest].T)[None])
    return np.concatenate(blocks).reshape(-1, head.queries.shape[1])


def _unrotated(head: AttentionHead) -> np.ndarray:
    assert head.turns is not None
    return np.setdiff1d(np.arange(head.K.shape[1]), head.turns.pairs)
