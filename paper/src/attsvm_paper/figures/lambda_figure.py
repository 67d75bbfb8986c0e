"""The figure of counts and distances under a concave head: Figs 9 and 12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import house_style
from attsvm_paper.figures.lambda_head import ERROR_LAMBDAS, SIZE, STEPS, TAUS
from attsvm_paper.figures.lambda_verdicts import (
    DISTRIBUTIONS,
    EDGE,
    NINE_A,
    by_count,
    error_curve,
    number_curve,
    passes,
)
from attsvm_paper.judging.estimates import at_records, estimate, share_estimate
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.verdict import Row
from attsvm_paper.plots.experiments import SERIES, curve_of, draw_curve, grid, legend, log_axis, own_legend
from attsvm_paper.published.ledger import curve


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw counts against lambda, distances of W against training, and counts under the constraint on tau."""

    def draw(ax: Any, cells: dict[Any, Any], label: str, look: int, line: Any = None, **extra: Any) -> None:
        series = {x: estimate(values, "mean") for x, values in cells.items() if len(values) > 1}
        if series:
            draw_curve(ax, curve_of(series, label, look, **extra), line=line)

    def banded(key: str) -> Any:
        reference = curve(key)
        x, y, sd = (np.array(part, dtype=float) for part in (*reference.line_points, reference.band))
        return x, y, [y - sd, y + sd]

    def errors(ax: Any, cell: Sequence[Row], name: str, label: str, look: int, key: str, style: str) -> None:
        sample = [row for row in cell if row[name] is not None]
        if len(sample) > 1 and sample[0]["step"]:
            series = at_records(sample[0]["step"], [row[name] for row in sample], "bootstrap", 400)
            draw_curve(ax, curve_of(series, label, look, style=style))
            if key:
                x, y = (np.array(part, dtype=float) for part in curve(key).line_points)
                keep = x > 0
                ax.plot(x[keep] + 1, y[keep], "--", color=SERIES[look][0], lw=1.3, zorder=2)

    trained = [row for row in rows if row["numerics"] != "lemma" and not row["tau"]]
    exact = having(trained, numerics="exact")
    free = [row for row in rows if row["numerics"] == "lemma" and not row["tau"]]
    bound = [row for row in rows if row["tau"]]
    with house_style():
        T, has_reference = rows[0]["T"], (rows[0]["T"], rows[0]["d"]) == SIZE
        title = rf"Head $v^\top\!x-\lambda\|x\|^2$ on one sequence of {T} orthonormal tokens, normalised descent"
        result, axes = grid(3, 2, 2.6, title, width)
        (counts, distances), (numbers, lambdas), (taus, shares) = axes
        cells = {lam: cell for (lam,), cell in by(exact, "lam").items()}
        line = banded(NINE_A) if has_reference else None
        draw(counts, {lam: column(cell, "count") for lam, cell in cells.items()}, "all trials", 0, line)
        subset = {lam: [row["count"] for row in cell if passes(row, EDGE)] for lam, cell in cells.items()}
        draw(counts, subset, "without outputs in (7e-5, 1e-3]", 5, style=":")
        lemma = {lam: column(cell, "lemma") for (lam,), cell in by(free, "lam").items()}
        draw(counts, lemma, "sparsemax (Lemma 6)", 4)
        counts.set_ylim(0, T + 0.7)
        counts.set_ylabel("mean number of tokens")
        counts.set_xlabel(r"$\lambda$")
        counts.set_title("how many tokens survive")
        sample = exact or trained
        for look, lam in enumerate(ERROR_LAMBDAS):
            cell = having(sample, lam=lam)
            for name, style in (("equivalent", "-"), ("mm", ":")):
                label = rf"$\lambda$ = {lam:g}" if style == "-" else ""
                errors(distances, cell, name, label, look, error_curve(lam, name) if has_reference else "", style)
        for look, count in enumerate(by_count(exact) if has_reference else ()):
            cell = [row for row in exact if row["count"] == count]
            for name, style in (("equivalent", "-"), ("mm", ":")):
                label = f"{count} token{'s' * (count > 1)}" if style == "-" else ""
                errors(numbers, cell, name, label, look, number_curve(count, name), style)
        for ax, name in ((distances, r"by $\lambda$"), (numbers, "by tokens kept")):
            log_axis(ax, "x")
            log_axis(ax, "y")
            ax.set_xlim(90, STEPS * 1.1)
            ax.set_ylim(4e-3, 1)
            ax.set_xlabel("training step")
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(f"distance from the SVM, {name}")
        by_tau = {tau: cell for (tau,), cell in by(bound, "tau").items()}
        for ax, field, label, look, key in (
            (lambdas, "drawn", r"$\lambda$ drawn uniformly", 1, "Fig. 12a: lambda"),
            (taus, "lemma", "sparsemax (Lemma 6)", 4, "Fig. 12b: selected tokens"),
        ):
            samples = {tau: column(cell, field) for tau, cell in by_tau.items()}
            draw(ax, samples, label, look, banded(key) if has_reference else None)
            ax.set_xlabel(r"$\tau$ of Lemma 6")
        for look, tau in enumerate(tau for tau in DISTRIBUTIONS if tau in by_tau):
            values = column(by_tau[tau], "lemma")
            series = {count: share_estimate(int((values == count).sum()), len(values)) for count in TAUS}
            line = curve(f"Fig. 12c: tau={tau}").line_points if has_reference else None
            draw_curve(shares, curve_of(series, rf"$\tau$ = {tau}", look, published=line))
        lambdas.set_ylabel(r"mean $\lambda$")
        lambdas.set_title(r"$\lambda$ under the constraint on $\tau$")
        taus.set_ylabel("mean number of tokens")
        taus.set_title(r"tokens under the constraint on $\tau$")
        shares.set_xlabel("number of tokens kept")
        shares.set_ylabel("share of trials")
        shares.set_title("how many tokens survive, by constraint")
        for ax in (distances, numbers, shares):
            if ax.get_legend_handles_labels()[1]:
                own_legend(ax, 2)
        legend(result, [counts, taus, lambdas], 3, "ours filtered; with the margin part", band=True)
    return result
