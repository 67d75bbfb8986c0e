"""Curves of a model's heads over the checkpoints of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attsvm.plots.results import axes_or_new
from attsvm.plots.style import FIRST, INK, QUIET, SECOND, house_style, legend_below, panels

if TYPE_CHECKING:
    from attsvm_pretrained.inspection.checkpoints import Checkpoints, HeadSeries

# Colours of the types with the most heads; heads of other types, and without a name, are grey.
_COLOURS = (FIRST, SECOND, "#2a8c55", "#8a5aa8", "#b23a48")
_UNNAMED = "#b9b9b9"


def checkpoints(series: Checkpoints, name: str = "induction", ax: Axes | None = None) -> Axes:
    """Draw the share of attention that a type accounts for over training steps, one curve per head.

    Heads that the type names at the last checkpoint are drawn in colour, with a mark at the step from which it names
    them; the others in grey. The dotted curve is the largest share of a head with rotated weights.

    Parameters
    ----------
    series : Checkpoints
    name : str
        The type.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If no head has such a type.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots, pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2)
    >>> ax = plots.checkpoints(series, "previous", Figure().subplots())
    >>> len(ax.lines) >= len(series.heads)
    True
    """
    known = dict.fromkeys(type_name for one in series.heads for type_name in one.scores)
    if name not in known:
        raise ValueError(f"name is {name!r}; one of {', '.join(known)} was expected.")
    ax = axes_or_new(ax)
    with_type = [one for one in series.heads if name in one.scores]
    for one in with_type:
        if one.names[-1] == name:
            ax.plot(one.steps, one.scores[name], color=FIRST, label=f"{one.layer}.{one.head}")
            _mark(ax, one, one.scores[name], FIRST)
        else:
            ax.plot(one.steps, one.scores[name], color=_UNNAMED, lw=0.8, zorder=1)
    ax.plot(series.steps, np.nanmax([one.null[name] for one in with_type], axis=0), ":", color=QUIET, label="rotated")
    ax.set(xlabel="training step", ylabel=f"share of attention, {name}", ylim=(0, 1))
    _step_scale(ax, series.steps)
    ax.legend(frameon=False)
    return ax


def _mark(ax: Axes, one: HeadSeries, values: np.ndarray, colour: str) -> None:
    """Mark the step from which a head bears its name."""
    at = one.steps == one.since
    ax.plot(one.steps[at], values[at], "o", color=colour, ms=4.5, clip_on=False)


def _step_scale(ax: Axes, steps: np.ndarray) -> None:
    """Use a logarithmic axis for steps whose gaps grow; a step 0 then stands at the left end."""
    if len(steps) > 3 and np.median(steps) < steps[-1] / 20:
        ax.set_xscale("symlog", linthresh=max(1.0, float(steps[steps > 0].min())))
    ax.set_xlim(steps[0], max(steps[-1], steps[0] + 1))


def checkpoints_figure(series: Checkpoints, width: float) -> Figure:
    """Draw, over steps and one curve per head: the share of its type, its hardness, and its two margins."""
    common = sorted(series.appearances.items(), key=lambda item: -len(item[1]))[: len(_COLOURS)]
    colours = {name: colour for (name, _), colour in zip(common, _COLOURS, strict=False)}
    with house_style():
        figure, axes = panels(width, 2.5, 3)
        for one in series.heads:
            name = one.names[-1]
            colour = colours.get(name or "", _UNNAMED)
            look = {"color": colour, "lw": 1.4 if name else 0.8, "zorder": 2 if name else 1}
            label = f"{name} heads" if name in colours else "other heads"
            if name is not None:
                axes[0].plot(one.steps, one.scores[name], label=label, **look)
                _mark(axes[0], one, one.scores[name], colour)
            axes[1].plot(one.steps, one.top1, label=label, **look)
            axes[2].plot(one.steps, one.margin, label=label, **look)
        titles = ("Attention on the type", "Hardness", "Margin in logits")
        for ax, title in zip(axes, titles, strict=True):
            ax.set(title=title, xlabel="training step")
            _step_scale(ax, series.steps)
            ax.tick_params(labelcolor=INK)
        axes[0].set_ylim(0, 1)
        axes[1].set_ylim(0, 1)
        legend_below(figure, axes, columns=3)
    return figure
