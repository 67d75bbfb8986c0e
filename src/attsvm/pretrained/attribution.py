r"""Why a head attends to this token rather than that: its margin, split over the residual stream.

The margin of a chosen key j over a rival k for query i is the difference of the model's logits,
:math:`(x_j - x_k)^\top W z_i` with keys and query turned by position where they are, plus the difference of an additive
bias. It is linear in each of the hidden states :math:`x_j - x_k` and :math:`z_i`, and these are sums of components
(:mod:`attsvm.pretrained.activations.residual`), so it is split three ways, each of them exact at this input:

* by the components of the keys, the query kept whole;
* by the components of the query, the keys kept whole;
* by pairs of both, which is bilinear.

The division by a norm's denominator is the one step that is not linear. It is *frozen* at its value in the pass, as
direct logit attribution does (Elhage et al., A Mathematical Framework for Transformer Circuits, 2021): the sum is
exact, and what is said of a component that is changed holds exactly where the denominator stays and approximately where
it follows. :meth:`Attribution.check` measures both in the model. Norms of queries and keys, and of the latents that
they are made from, are frozen in the same way (:mod:`attsvm.pretrained.activations.image`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm.core.extras import drawing, frame
from attsvm.core.summary import MARKED, Summarised, Summary
from attsvm.pretrained.ablation import AttributionCheck, check, flips
from attsvm.pretrained.activations.image import Side
from attsvm.pretrained.activations.residual import Component
from attsvm.pretrained.readings import Source


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Summarised):
    """The margin of a chosen token over a rival, split over the components of the residual stream.

    Attributes
    ----------
    layer, head : int
    query, chosen, rival : int
        Places in their texts; under cross-attention the query's is another than that of the tokens. A null token, where
        there is one, is place 0.
    texts : tuple of str
        Of query, chosen and rival; empty where the head has no text, and of the query under cross-attention.
    margin : float
        The model's logit of the chosen token less that of the rival.
    bias : float
        Part of it that an additive bias of the scores brings (ALiBi, T5), or the score of a null token, and no vector.
    components : tuple of Component
        C of them.
    keys : ndarray, shape (C, T)
        Parts of the keys, by the place in the text that they come from: what a head brings counts where it read it.
        They add up to margin - bias.
    queries : ndarray, shape (C, Tq)
        Parts of the query, in the same way; the same sum.
    pairs : ndarray, shape (C, C)
        Of a component of the keys (row) and one of the query (column); the same sum.
    scores : ndarray, shape (T,)
        The model's logits of this query, -inf for tokens it does not see.
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
        """Return what every component adds to the logit of every token, (C, T).

        Parameters
        ----------
        side : {"query", "keys"}
            Of the query, to the logits of all tokens that it sees; or of the keys, to those of the chosen token and the
            rival, and zero elsewhere.

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
        """Predict by what factor a component is to be scaled so that another token has the largest logit.

        Parameters
        ----------
        component : int
            Its number among `components`.
        side : {"query", "keys"}
            Where it is scaled: at the query, or at the chosen token and the rival.

        Returns
        -------
        factor : float
            The nearest to 1, at which the two are equal; infinite where scaling it flips nothing.
        token : int
            Which token is level then; -1 for none.

        Raises
        ------
        ValueError
            If the chosen token has not the largest logit.

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
        """Scale components in the model as :meth:`flip` predicts, and see whether the top token flips there.

        Parameters
        ----------
        side : {"query", "keys"}
        most : int
            How many components, drawn at random; those that are biases of the projection itself are left out.
        tolerance : float
            Part of the predicted change within which the flip is to be.
        seed : int

        Returns
        -------
        AttributionCheck

        Raises
        ------
        ValueError
            If the chosen token has not the largest logit.

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
            With columns kind, name, layer, head, keys and queries: what each brings to the margin on either side.

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
            Bars; the last is the sum of what is left.

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
