"""Pictures of transformer heads, on the caller's axes or on new pyplot axes; each function returns the axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from attsvm.plots.results import axes_or_new
from attsvm.plots.style import FIRST

if TYPE_CHECKING:
    from attsvm_pretrained.activations.image import Side
    from attsvm_pretrained.attribution.attribution import Attribution
    from attsvm_pretrained.heads.head import AttentionHead
    from attsvm_pretrained.selection.audit import MarginAudit


def head(head: AttentionHead, sequence: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the attention matrix of a head on one sequence: one row per query, one column per token.

    Parameters
    ----------
    head : AttentionHead
    sequence : int
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If no query reads such a sequence.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots, pretrained
    >>> head = pretrained.example_head()
    >>> ax = plots.head(head, sequence=2, ax=Figure().subplots())
    >>> ax.images[0].get_array().shape
    (6, 6)
    """
    rows = np.flatnonzero(head.sequence == sequence)
    if not len(rows):
        raise ValueError(f"sequence is {sequence}; one of 0 to {len(head.tokens) - 1} that a query reads was expected.")
    rows = rows[np.argsort(head.position[rows])]
    width = int(np.flatnonzero(head.mask[rows].any(axis=0)).max()) + 1
    ax = axes_or_new(ax)
    image = ax.imshow(head.probabilities[rows, :width], cmap="Blues", vmin=0.0, vmax=1.0)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label="attention")
    ax.set(xlabel="token", ylabel="query", title=f"Layer {head.layer}, head {head.head}")
    if head.texts is not None:
        words = head.texts[sequence]
        ax.set_xticks(range(width), words[:width], rotation=90)
        if head.self_attention:
            ax.set_yticks(range(len(rows)), [words[place] for place in head.position[rows]])
    return ax


def controls(audit: MarginAudit, ax: Axes | None = None) -> Axes:
    """Draw the cosine of a trained W with the SVM of its selection, with controls and the range of the null.

    Parameters
    ----------
    audit : MarginAudit
    ax : Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots, pretrained
    >>> head = pretrained.example_head()
    >>> audit = pretrained.margin_audit(head, queries=8, norms=("frobenius",), draws=4)
    >>> ax = plots.controls(audit, Figure().subplots())
    >>> len(ax.containers[0])
    2
    """
    bars = [(f"own selection, {name}", direction.cosine) for name, direction in audit.directions.items()]
    own_count = len(bars)
    bars += [(f"another head {k + 1}", direction.cosine) for k, direction in enumerate(audit.others)]
    bars.append(("Hebbian direction", audit.hebbian))
    names, values = zip(*bars, strict=True)
    ax = axes_or_new(ax)
    ax.barh(names, values, color=[FIRST if k < own_count else "0.75" for k in range(len(bars))])
    null = audit.null["cosine"]
    for kind, draws, colour in (("rotated", null.rotated, "0.4"), ("permuted", null.permuted, "0.7")):
        if np.isfinite(draws).any():
            low, high = np.nanmin(draws), np.nanmax(draws)
            ax.axvspan(low, high, color=colour, alpha=0.25, lw=0, label=f"{kind} weights, with their own SVMs")
            ax.legend(frameon=False)
    ax.set(xlabel="cosine with the trained W")
    ax.invert_yaxis()
    return ax


def attribution(attribution: Attribution, side: Side = "query", ax: Axes | None = None, *, most: int = 12) -> Axes:
    """Draw the contributions of the residual stream's components to a margin, as bars, the largest first.

    Parameters
    ----------
    attribution : Attribution
    side : {"query", "keys"}
    ax : Axes, optional
    most : int
        Largest number of bars; if there are more components, the last bar is the sum of the others.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots, pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute(model, 1, 0, inputs)
    >>> ax = plots.attribution(split, "keys", Figure().subplots(), most=4)
    >>> len(ax.containers[0])
    4
    """
    totals = (attribution.queries if side == "query" else attribution.keys).sum(axis=1)
    order = np.argsort(-np.abs(totals), kind="stable")
    bars = order if len(order) <= most else order[: most - 1]
    names = [attribution.components[c].name for c in bars]
    values = totals[bars].tolist()
    if len(bars) < len(order):
        names.append(f"{len(order) - len(bars)} others")
        values.append(float(totals[order[most - 1 :]].sum()))
    ax = axes_or_new(ax)
    ax.barh(range(len(names)), values, color=[FIRST if value > 0 else "0.6" for value in values])
    ax.set_yticks(range(len(names)), names)
    ax.axvline(0.0, color="0.4", lw=0.8)
    selection_text, rival = attribution.texts[1:] or (f"token {attribution.chosen}", f"token {attribution.rival}")
    of_bias = f" (with {attribution.bias:.3g} of an additive bias)" if attribution.bias else ""
    ax.set(
        xlabel=f"part of the margin {attribution.margin:.3g}{of_bias}", title=f"{selection_text} rather than {rival}"
    )
    ax.invert_yaxis()
    return ax
