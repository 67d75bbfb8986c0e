"""The heat map of the atlas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from attsvm.plots.style import INK, SECOND, WIDE, house_style, is_wide, new_figure
from attsvm_paper.beyond.atlas import Outcome, outcomes
from attsvm_paper.beyond.atlas_cells import MODELS, NORMS, OPTIMISERS, expectations, parameterization_of
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.heat_maps import COLOURS, ink_on

# Share below which all cells have one colour: the differences between norms lie above.
_LOWEST = 0.5
_CELL = 0.185
"""Height of a cell in inches."""


def figure(rows: Sequence[Row], width: float = WIDE) -> Figure:
    """Draw the mean share at the last horizon, optimisers by norms, one panel per model.

    A frame marks the norm that a theorem (solid) or a prediction names. A dot marks shares whose limit is one, a cross
    cells that contradict their prediction.
    """
    table = list(outcomes(rows))
    models = [model for model in MODELS if any(one[0] == model for one in table)]
    columns = 2 if is_wide(width) and len(models) > 1 else 1
    down = -(-len(models) // columns)
    most = max((len(_optimisers(table, model)) for model in models), default=1)
    with house_style():
        result = new_figure(width, down * (most * _CELL + 0.95) + 0.75)
        axes = result.subplots(max(down, 1), columns, squeeze=False).ravel()
        for ax, model in zip(axes, models, strict=False):
            _panel(ax, [one for one in table if one[0] == model], model)
        for ax in axes[len(models) :]:
            ax.set_axis_off()
        handles = [
            Patch(fill=False, ec=SECOND, lw=1.8, label="theorem"),
            Patch(fill=False, ec=INK, lw=1.2, ls=":", label="predicted"),
            Line2D([], [], ls="", marker="o", ms=3.5, color=INK, label="tends to 1"),
            Line2D([], [], ls="", marker="x", ms=4.5, color=INK, label="not as predicted"),
        ]
        result.legend(handles=handles, loc="outside lower left", ncols=4 if is_wide(width) else 2)
    return result


def _optimisers(table: Sequence[Outcome], model: str) -> list[str]:
    """List the optimisers of a panel, in their order."""
    there = {name for where, name, *_ in table if where == model}
    return [name for name in OPTIMISERS[parameterization_of(model)] if name in there]


def _panel(ax: Axes, table: Sequence[Outcome], model: str) -> None:
    """Draw one model."""
    names, norms = _optimisers(table, model), list(NORMS)
    shares = np.full((len(names), len(norms)), np.nan)
    for _, name, norm, cell, _ in table:
        shares[names.index(name), norms.index(norm)] = cell.shares[:, -1].mean()
    mesh = ax.pcolormesh(np.arange(len(norms) + 1) - 0.5, np.arange(len(names) + 1) - 0.5, shares, cmap=COLOURS,
                         edgecolors="face", lw=0.4)  # fmt: skip
    mesh.set_clim(_LOWEST, 1)
    ax.invert_yaxis()
    for _, name, norm, cell, kind in table:
        x, y = norms.index(norm), names.index(name)
        share = shares[y, x]
        color = ink_on((share - _LOWEST) / (1 - _LOWEST))
        ax.text(x - 0.12, y, _text(share), ha="center", va="center", fontsize=6.4, color=color)
        mark = "x" if kind == "miss" else "o" if cell.outcome == "one" else ""
        if mark:
            ax.plot(x + 0.34, y, mark, color=color, ms=3.4 if mark == "x" else 2.4, mew=1.0)
        expectation = expectations()[model, name]
        if expectation.norm == norm:
            look = {"ec": SECOND, "lw": 1.8} if expectation.from_theorem else {"ec": color, "lw": 1.1, "ls": ":"}
            ax.add_patch(Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, fill=False, **look))
    ax.set_title(MODELS[model])
    ax.set_xticks(range(len(norms)), norms, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0, labelsize=7)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _text(share: float) -> str:
    return "1.0" if share >= 0.995 else f"{share:.2f}".replace("0.", ".").replace("-.00", ".00")
