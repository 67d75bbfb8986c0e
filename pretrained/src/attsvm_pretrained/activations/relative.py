r"""Content and relative position: the other two bilinear forms of disentangled attention (DeBERTa, arXiv 2006.03654).

A table holds a vector :math:`r_\delta` for each relative position. In addition to :math:`x_t^\top K Q^\top z_i` the
score has

.. math:: r_{\delta(i,t)}^\top P\,Q^\top z_i \quad\text{(content to position)}, \qquad
    x_t^\top K\,P'^\top r_{\delta'(i,t)} \quad\text{(position to content)}.

Each is a bilinear form with a factor that it shares with the first. They are read from the products that the model adds
to its scores, and explained like queries and keys. In a selection problem their sum is the additive term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm_pretrained.activations.recording import AttentionCall, RelativeProduct
from attsvm_pretrained.activations.rotation import AGREE, relative_difference
from attsvm_pretrained.activations.sources import explain_vectors


@dataclass(frozen=True, eq=False)
class RelativeForm:
    """A bilinear form of content and relative position, a part of the additive term of a head.

    Attributes
    ----------
    of_tokens : bool
        Whether the content is the token ("position to content") and not the query ("content to position").
    table : ndarray, shape (R, dr)
        A vector for each relative position; with a last coordinate 1 when its map has a bias.
    P : ndarray, shape (dr, dh)
        Factor on the side of the table, including any scale. The other factor is the head's K or Q.
    index : ndarray of int, shape (n, T)
        Row of the table for each query and token.
    """

    of_tokens: bool
    table: np.ndarray
    P: np.ndarray
    index: np.ndarray

    @property
    def name(self) -> str:
        """Which side is content."""
        return "position to content" if self.of_tokens else "content to position"

    def scores(self, keys: np.ndarray, queries: np.ndarray, sequence: np.ndarray) -> np.ndarray:
        """Return the form's part of the scores, (n, T).

        Parameters
        ----------
        keys : ndarray, shape (b, T, dh)
            Tokens times K.
        queries : ndarray, shape (n, dh)
            Queries times Q.
        sequence : ndarray of int, shape (n,)
            Which sequence each query reads.
        """
        rows = self.table @ self.P  # (R, dh)
        if not self.of_tokens:
            return np.take_along_axis(queries @ rows.T, self.index, axis=1)
        products = keys @ rows.T  # (b, T, R)
        return np.asarray(products[sequence[:, None], np.arange(self.index.shape[1]), self.index])


def relative_forms(call: AttentionCall, h: int, where: tuple[np.ndarray, ...]) -> tuple[RelativeForm, ...]:
    """Explain the products that a model adds to the scores of a head.

    Parameters
    ----------
    where : tuple of ndarray
        Sequence and position of each query.

    Raises
    ------
    ValueError
        If a table or its vectors cannot be explained.
    """
    return tuple(_form(call, product, h, where) for product in call.relative)


def _form(call: AttentionCall, product: RelativeProduct, h: int, where: tuple[np.ndarray, ...]) -> RelativeForm:
    content = (call.key if product.of_keys else call.query)[:, h].double()
    vectors = product.vectors[:, h].double()
    ratio = float((vectors * content).sum() / content.square().sum())
    table = explain_vectors(call.calls, product.table[:1], h)
    if table is None or relative_difference(ratio * content, vectors) > AGREE:
        raise ValueError(
            f"head {h} of {call.path} ({type(call.module).__name__}) is not supported: it adds products with a table "
            "of relative positions that no linear map of recorded vectors gives."
        )
    # Queries of a head carry the scale of the content's scores, keys do not.
    scale = product.factor * ratio / (1.0 if product.of_keys else call.scaling)
    rows, P = table.tokens[0].detach().double().cpu().numpy(), table.weight.cpu().numpy()
    if table.bias is not None:
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        P = np.concatenate([P, table.bias.cpu().numpy()[None]])
    index = product.index[:, min(h, product.index.shape[1] - 1)].expand(len(call.query), -1, -1)
    return RelativeForm(product.of_keys, rows, P * scale, index.cpu().numpy()[where])
