r"""The margin of one token over another, split over the residual stream: why a head attends to the first.

The margin of a chosen key j over a rival k for query i is the difference of the model's logits,
:math:`(x_j - x_k)^\top W z_i` with keys and query rotated by position if the head is rotary, plus the difference of an
additive bias. It is linear in each of the hidden states :math:`x_j - x_k` and :math:`z_i`, which are sums of components
(:mod:`attsvm_pretrained.activations.residual`). It is therefore split in three ways, each exact at this input:

* by the components of the keys, with the whole query;
* by the components of the query, with the whole keys;
* by pairs of both, which is bilinear.

The division by a norm's denominator is the only nonlinear step. The denominator is *frozen* at its value in the pass,
as in direct logit attribution (Elhage et al., A Mathematical Framework for Transformer Circuits, 2021). The sum is
exact. The predicted effect of changing a component is exact with a frozen denominator and approximate with a live one;
:meth:`Attribution.check` measures both in the model. Norms of queries, keys and latents are frozen in the same way
(:mod:`attsvm_pretrained.activations.image`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm.platform.extras import drawing, frame
from attsvm.platform.summary import MARKED, Summarised, Summary
from attsvm_pretrained.activations.image import Side
from attsvm_pretrained.activations.residual import Component
from attsvm_pretrained.attribution.ablation import AttributionCheck, check, flips
from attsvm_pretrained.attribution.readings import Source


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Summarised):
    """The margin of a chosen token over a rival, split over the components of the residual stream.

    Attributes
    ----------
    layer, head : int
    query, chosen, rival : int
        Positions in the text; under cross-attention the query is in another text. A null token has position 0.
    texts : tuple of str
        Texts of query, chosen and rival; empty if the head has no text, and for the query under cross-attention.
    margin : float
        The model's logit of the chosen token minus the rival's logit.
    bias : float
        Part of the margin from an additive bias of the scores (ALiBi, T5) or the score of a null token.
    components : tuple of Component
        C components.
    keys : ndarray, shape (C, T)
        Parts of the keys, split by the position in the text that they come from: the output of a head counts at the
        positions that the head reads. The sum is margin - bias.
    queries : ndarray, shape (C, Tq)
        Parts of the query, split in the same way, with the same sum.
    pairs : ndarray, shape (C, C)
        Parts of a component of the keys (row) and a component of the query (column), with the same sum.
    scores : ndarray, shape (T,)
        The model's logits of this query, -inf for hidden tokens.
    error : float
        Largest difference of the three sums from margin - bias.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute(model, 1, 0, inputs)
    >>> split.query, split.components[0].name, bool(np.isclose(split.pairs.sum(), split.margin))
    (4, 'transformer.wte', True)
    """

    layer: int
    head: int
    query: int
    chosen: int
    rival: int
    texts: tuple[str, ...]
    margin: float
    bias: float
    components: tuple[Component, ...]
    keys: np.ndarray
    queries: np.ndarray
    pairs: np.ndarray
    scores: np.ndarray
    error: float
    source: Source = field(repr=False)

    def effects(self, side: Side = "query") -> np.ndarray:
        """Return the contribution of every component to the logit of every token, (C, T).

        Parameters
        ----------
        side : {"query", "keys"}
            The query's components contribute to the logits of all visible tokens, the keys' components to the logits of
            the chosen token and the rival.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> margin.effects().shape == (len(margin.components), 5)
        True
        """
        return self.source.effects([one.vectors(self.components) for one in self.source.readings(side)], side)

    def flip(self, component: int, side: Side = "query") -> tuple[float, int]:
        """Predict the factor of a component at which another token gets the largest logit.

        Parameters
        ----------
        component : int
            Its number among `components`.
        side : {"query", "keys"}
            Side on which it is scaled: at the query, or at the chosen token and the rival.

        Returns
        -------
        factor : float
            Factor nearest to 1 at which the two logits are equal; infinite if there is none.
        token : int
            The token with the equal logit; -1 if there is none.

        Raises
        ------
        ValueError
            If another token has the largest logit.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> factor, token = margin.flip(0)
        >>> token != margin.chosen
        True
        """
        self._expect_top()
        return flips(self.scores, self.effects(side)[component], self.chosen)

    def check(self, side: Side = "query", *, most: int = 32, tolerance: float = 0.1, seed: int = 0) -> AttributionCheck:
        """Scale components in the model as :meth:`flip` predicts, and test whether the top token flips.

        Parameters
        ----------
        side : {"query", "keys"}
        most : int
            Number of components, drawn at random; biases of the projection itself are omitted.
        tolerance : float
            Share of the predicted change within which the flip must occur.
        seed : int

        Returns
        -------
        AttributionCheck

        Raises
        ------
        ValueError
            If another token has the largest logit.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> bool(margin.check(most=4).flipped["frozen"]["attribution"].all())
        True
        """
        self._expect_top()
        readings, d = self.source.readings(side), self.source.query.width
        moving = np.any([one.vectors(self.components)[:, :d] != 0 for one in readings], axis=(0, 2))
        order = np.random.default_rng(seed).permutation(np.flatnonzero(moving))[:most]
        components = [self.components[c] for c in order]
        return check(self.source, self.scores, self.chosen, components, side, tolerance=tolerance)

    def _expect_top(self) -> None:
        top = int(np.argmax(self.scores))
        if self.chosen != top:
            raise ValueError(f"chosen is token {self.chosen}; token {top}, which has the largest logit, was expected.")

    def to_frame(self) -> Any:
        """List the components.

        Returns
        -------
        pandas.DataFrame
            Columns kind, name, layer, head, keys and queries; the last two are the contributions to the margin.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> list(margin.to_frame().columns)
        ['kind', 'name', 'layer', 'head', 'keys', 'queries']
        """
        columns = {name: [getattr(one, name) for one in self.components] for name in ("kind", "name", "layer", "head")}
        return frame(
            "Attribution.to_frame", columns | {"keys": self.keys.sum(axis=1), "queries": self.queries.sum(axis=1)}
        )

    def plot(self, side: Side = "query", ax: Any = None, *, most: int = 12) -> Any:
        """Draw the largest parts as bars; see :func:`attsvm.plots.attribution`.

        Parameters
        ----------
        side : {"query", "keys"}
        ax : matplotlib Axes, optional
        most : int
            Number of bars; the last bar is the sum of the other components.

        Returns
        -------
        Axes

        Raises
        ------
        ImportError
            Without matplotlib.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> len(margin.plot().patches) > 0
        True
        """
        return drawing("Attribution.plot").attribution(self, side, ax, most=most)

    def _summary(self) -> Summary:
        texts = self.texts or ("", "", "")
        query, best, rival = (
            f"{place} {text!r}" if text else f"{place}" for place, text in zip(self._places, texts, strict=True)
        )
        facts = [
            ("head", f"{self.head} of layer {self.layer}"),
            ("query", query),
            ("chosen", best),
            ("rival", rival),
            ("margin", f"{self.margin:.4g}"),
            ("most of keys", self._largest(self.keys)),
            ("most of query", self._largest(self.queries)),
            ("error", f"{self.error:.1e}"),
        ]
        return Summary("Attribution", colour=MARKED, facts=facts)

    @property
    def _places(self) -> tuple[int, int, int]:
        return self.query, self.chosen, self.rival

    def _largest(self, side: np.ndarray) -> str:
        totals = side.sum(axis=1)
        c = int(np.abs(totals).argmax())
        return f"{self.components[c].name} {totals[c]:+.3g}"
