"""Correlation over training: with the SVMs, with the controls, and in other arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attsvm.plots.style import (
    FIRST,
    INK,
    NORM_COLOURS,
    NORM_TITLES,
    QUIET,
    SECOND,
    house_style,
    legend_below,
    panels,
    step_axis,
)
from attsvm.study.results import PrecisionRun, Run
from attsvm.study.words import correlation_text

TITLES = {"W": "Training W", "KQ": "Training K and Q"}
CONTROL_LOOKS = {"optimal": ("-.", INK), "hebbian": ("--", QUIET), "shuffled": ("-", "#b9b9b9")}

_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999)


def nines(correlation: np.ndarray | float) -> np.ndarray:
    """Map a correlation c to -log10(1 - c): 0.9 to 1, 0.99 to 2, 0.999 to 3."""
    return -np.log10(np.maximum(1.0 - np.asarray(correlation, dtype=float), 1e-12))


def _nines_axis(ax: Axes, top: float, bottom: float) -> None:
    ax.set_ylim(bottom, top)
    ticks = [tick for tick in _TICKS if nines(tick) <= top]
    ax.set_yticks([float(nines(tick)) for tick in ticks], [f"{tick:.7g}" for tick in ticks])
    ax.set_ylabel("correlation")


def _draw_run(ax: Axes, run: Run) -> None:
    step = np.maximum(run.trace.step, 0.5)
    for norm in run.curves:
        label = f"{NORM_TITLES[norm]} SVM of the realised tokens"
        weight = 2.6 if norm == run.own else 1.4
        ax.plot(step, nines(run.curves[norm]), color=NORM_COLOURS[norm], lw=weight, label=label)
    for control in sorted(run.controls, key=lambda control: list(CONTROL_LOOKS).index(control.key)):
        style, color = CONTROL_LOOKS[control.key]
        for number, curve in enumerate(control.curves):
            ax.plot(step, nines(curve), style, color=color, lw=1.1, label="" if number else control.label)
    if run.correlation is not None:
        # Above the part of the curve that the number would cover.
        height = float(nines(run.curves[run.own])[step >= step[-1] / 8].max())
        ax.annotate(
            correlation_text(run.correlation), (step[-1], height), xytext=(0, 4), textcoords="offset points",
            ha="right", va="bottom", color=NORM_COLOURS[run.own], weight="bold",
        )  # fmt: skip


def _mark_settling(ax: Axes, run: Run) -> None:
    """Mark the step after which no query changes its token, at the top, or lower if the final correlation is there."""
    if not 1 < run.settled_at < run.trace.step[-1]:
        return
    bottom, top = ax.get_ylim()
    final = bottom if run.correlation is None else float(nines(run.correlation))
    height = 0.76 if (final - bottom) / (top - bottom) > 0.75 else 1.0
    ax.axvline(run.settled_at, color=QUIET, lw=0.8, ls=":")
    ax.annotate(
        "selection final", (run.settled_at, height), xycoords=("data", "axes fraction"), xytext=(-4, -2),
        textcoords="offset points", ha="right", va="top", color=QUIET, fontsize=7.5,
    )  # fmt: skip


def correlation_figure(runs: dict[str, Run], width: float) -> Figure:
    """Draw correlation against steps, one panel per parameterisation.

    The vertical axis is -log10(1 - correlation): a control at 0.5 and a match at 0.9999 are both visible. A
    correlation that approaches one like a power of the step number is a straight line.
    """
    with house_style():
        figure, axes = panels(width, 3.2, len(runs))
        tops = [nines(curve).max() for run in runs.values() for curve in run.curves.values()]
        lowest = [nines(control.curves).min() for run in runs.values() for control in run.controls]
        top, bottom = max([*tops, 1.0]) * 1.14, min([*lowest, -0.05]) - 0.05
        for ax, run in zip(axes, runs.values(), strict=True):
            _draw_run(ax, run)
            step_axis(ax, run.trace.step[-1])
            _nines_axis(ax, float(top), float(bottom))
            _mark_settling(ax, run)
            ax.set_title(TITLES[run.parameterization])
        legend_below(figure, axes, 3)
    return figure


def precision_figure(reference: Run, runs: tuple[PrecisionRun, ...], width: float) -> Figure:
    """Draw the correlation of W with the same SVM, for each arithmetic."""
    looks = {
        ("float32", "exact"): ("--", "#8cc0f0", 1.6),
        ("float64", "autograd"): ("-", QUIET, 1.6),
        ("float32", "autograd"): ("-", SECOND, 1.8),
    }
    curves = [("float64, exact gradient", reference.trace.step, reference.curves["frobenius"], "-", FIRST, 3.0)]
    curves += [(run.label, run.step, run.curve, *looks[run.dtype, run.numerics]) for run in runs]
    with house_style():
        figure, axes = panels(width, 2.9, 1)
        ax = axes[0]
        for label, step, curve, style, color, weight in curves:
            ax.plot(np.maximum(step, 0.5), curve, style, color=color, lw=weight, label=label)
        step_axis(ax, runs[0].step[-1])
        ax.set_ylim(min(-0.02, *(float(curve.min()) for _, _, curve, *_ in curves)), 1.04)
        ax.axhline(0, color=INK, lw=0.5)
        ax.set_ylabel("correlation with the SVM")
        legend_below(figure, axes, 2)
    return figure


def compared_figure(names: tuple[str, str], curves: tuple[dict[str, Any], dict[str, Any]], width: float) -> Figure:
    """Draw the correlations of two studies over each other, one panel per parameterisation.

    The curves of a study are, for "W" and "KQ", the steps and the correlations with the "frobenius" and the "nuclear"
    SVM, if they exist.
    """
    quantities = [name for name in TITLES if any(set(NORM_TITLES) & set(one.get(name, ())) for one in curves)]
    looks = (("-", FIRST), ("--", SECOND))
    with house_style():
        figure, axes = panels(width, 3.2, len(quantities))
        for ax, name in zip(axes, quantities, strict=True):
            values, last = [1.0], 1
            for study, one, (style, color) in zip(names, curves, looks, strict=True):
                run = one.get(name, {"step": [1]})
                last = max(last, run["step"][-1])
                for norm in (norm for norm in NORM_TITLES if norm in run):
                    is_paired = norm == ("frobenius" if name == "W" else "nuclear")
                    curve = nines(np.array(run[norm], dtype=float))
                    label = f"{study}: its {'own' if is_paired else 'other'} SVM"
                    step = np.maximum(run["step"], 0.5)
                    ax.plot(step, curve, style, color=color, lw=2.4 if is_paired else 1.0, label=label)
                    values += [float(np.nanmax(curve)), float(np.nanmin(curve))]
            step_axis(ax, last)
            _nines_axis(ax, 1.06 * max(values), min(-0.05, *values) - 0.05)
            ax.set_title(TITLES[name])
        legend_below(figure, axes, 2)
    return figure
