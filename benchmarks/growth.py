"""Growth of time with n, T and d: fitted exponents, and growth.svg."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from peers import OFFICIAL
from plan import AXES, FROBENIUS, GROWERS, NUCLEAR
from results import Results

from attsvm.plots.style import FIRST, QUIET, WIDE, as_svg, house_style, new_figure

FITTED = 3  # number of largest sizes from which exponents are fitted, because overheads matter least there
LOOKS = {
    "attsvm 1e-09": (FIRST, "s"),
    "daqp primal": ("#c8641b", "o"),
    "liblinear": ("#009e73", "^"),
    "piqp primal": ("#8a5a9e", "D"),
    "clarabel": ("#c8641b", "P"),
    "scs": ("#009e73", "X"),
    OFFICIAL: ("#777777", "v"),
}


def curve(results: Results, name: str, norm: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes along an axis, and the seconds."""
    points = []
    for instance in AXES[axis]:
        for row in results.on(norm, instance, axis):
            if row.cell.who.name == name and row.outcome == "solved":
                points.append((instance.sizes["nTd".index(axis)], row.seconds))
    x, y = np.array(sorted(points)).reshape(-1, 2).T
    return x, y


def exponent(x: np.ndarray, y: np.ndarray) -> float:
    """Fit the slope of log seconds over log size by least squares."""
    if len(x) < 2:
        return np.nan
    return float(np.polyfit(np.log(x[-FITTED:]), np.log(y[-FITTED:]), 1)[0])


def table(results: Results) -> list[str]:
    lines = ["| norm | solver | n | T | d |", "|---|---|---:|---:|---:|"]
    for norm, names in GROWERS.items():
        for name in names:
            cells = []
            for axis in AXES:
                x, y = curve(results, name, norm, axis)
                slope = exponent(x, y)
                cells.append(f"{slope:.1f} (to {axis} = {x[-1]:.0f}: {y[-1]:.2g} s)" if np.isfinite(slope) else "")
            lines.append(f"| {norm} | {name} | " + " | ".join(cells) + " |")
    return lines


def draw(results: Results) -> str | None:
    """Return the picture as SVG, or None while a panel would be empty."""
    panels = [[len(curve(results, name, norm, a)[0]) for name in GROWERS[norm]] for norm in GROWERS for a in AXES]
    if not all(max(points) > 1 for points in panels):
        return None
    with house_style():
        figure = new_figure(WIDE, 4.6)
        axes = figure.subplots(2, 3, sharey="row")
        for row, norm in zip(axes, (FROBENIUS, NUCLEAR), strict=True):
            for ax, axis in zip(row, AXES, strict=True):
                for name in GROWERS[norm]:
                    colour, marker = LOOKS[name]
                    x, y = curve(results, name, norm, axis)
                    ax.plot(
                        x,
                        y,
                        color=colour,
                        marker=marker,
                        markersize=3.2,
                        linewidth=2 if colour == FIRST else 1.2,
                        label=name,
                    )
                ax.set(xscale="log", yscale="log", xlabel=axis)
                sizes = [instance.sizes["nTd".index(axis)] for instance in AXES[axis]]
                ax.set_xticks(sizes, [str(s) for s in sizes])
                ax.minorticks_off()
                ax.grid(axis="y", color=QUIET, alpha=0.25, linewidth=0.5)
            row[0].set_ylabel(f"{norm} norm\nseconds")
            row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        for ax, axis in zip(axes[0], AXES, strict=True):
            n, T, d = AXES[axis][0].sizes
            constants = {"n": f"T = {T}, d = {d}", "T": f"n = {n}, d = {d}", "d": f"n = {n}, T = {T}"}[axis]
            ax.set_title(f"{axis} grows, {constants}", fontweight="normal")
    return as_svg(figure)


def write(results: Results, path: Path) -> bool:
    from attsvm.platform.files import replacing_file

    picture = draw(results)
    if picture is not None:
        with replacing_file(path) as temporary:
            temporary.write_text(picture, encoding="utf-8")
    return picture is not None
