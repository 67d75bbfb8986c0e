"""Pictures of single results, on the caller's axes or on new pyplot axes; each function returns the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attsvm.core.correlation import correlation
from attsvm.platform.interop import to_numpy
from attsvm.plots.style import FIRST, QUIET, SECOND

if TYPE_CHECKING:  # most results are drawn without torch
    from attsvm.solution.solution import Solution
    from attsvm.training.paths.path_result import RegularizationPath
    from attsvm.training.run.trace import Trace

COLOURS = (FIRST, SECOND, "#2f8f5b", "#8e5ea2", "#7a6a4f")
BINS = 40


def margins(solution: Solution, ax: Axes | None = None) -> Axes:
    """Draw the distribution of the rejected tokens' margins, with support tokens separate.

    Parameters
    ----------
    solution : Solution
        A solution with a W.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the solution has no W, or no margin is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import SelectionProblem, plots, solve
    >>> random = np.random.default_rng(0)
    >>> problem = SelectionProblem(random.normal(size=(6, 5, 8)), random.normal(size=(6, 8)), np.zeros(6, int))
    >>> ax = plots.margins(solve(problem), Figure().subplots())
    >>> ax.get_xlabel()
    'margin'
    """
    values = solution.certified.margins[solution.problem.rejected]
    support = np.asarray(to_numpy("support", solution.support))[solution.problem.rejected]
    usable = np.isfinite(values) & (values > 0)
    if not np.isfinite(solution.objective) or not usable.any():
        raise ValueError(f"solution has status {solution.status.name} and no positive margin; a W was expected.")
    ax = axes_or_new(ax)
    ends = values[usable].min(), max(values[usable].max(), values[usable].min() * 1.01)
    edges = np.geomspace(*ends, BINS + 1)
    ax.hist(values[usable], edges, color=QUIET, alpha=0.5, label="other rejected tokens")
    ax.hist(values[usable & support], edges, color=FIRST, label="support tokens")
    ax.set_xscale("log")
    ax.set(xlabel="margin", ylabel="rejected tokens", title=f"Margins, {solution.norm.name} norm")
    ax.legend(frameon=False)
    return ax


def plane(solution: Solution, sequences: Sequence[int] = (0, 1, 2), ax: Axes | None = None) -> Axes:
    """Draw tokens in the plane, with each query's line of the selected token's score and its line of margin one.

    Parameters
    ----------
    solution : Solution
        A solution of a problem with d = 2.
    sequences : sequence of int
        The queries to draw; indices outside the problem are ignored.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the tokens are not two-dimensional.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attsvm import SelectionProblem, plots, solve
    >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0], [-1.0, 0.5]]], [[1.0, 0.0]], [0])
    >>> ax = plots.plane(solve(problem), ax=Figure().subplots())
    >>> type(ax).__name__
    'Axes'
    """
    problem = solution.problem
    n, _, d, _ = problem.shape
    if d != 2:
        raise ValueError(f"solution has tokens of dimension {d}; dimension 2 was expected.")
    ax = axes_or_new(ax)
    support = np.asarray(to_numpy("support", solution.support))
    extent = float(np.abs(problem.tokens).max())
    for colour, i in zip(COLOURS, (i for i in sequences if i < n), strict=False):
        points, visible = problem.tokens[problem.sequence[i]], problem.mask[i]
        selected = points[problem.reference[i]]
        ax.scatter(*points[visible].T, s=36, facecolors="none", edgecolors=colour)
        ax.scatter(*selected, s=60, color=colour, label=f"query {i}")
        ax.scatter(*points[support[i]].T, s=150, facecolors="none", edgecolors=QUIET, linewidths=0.8)
        w = solution.certified.W @ problem.queries[i]
        if not np.isfinite(w).all() or not w.any():
            continue
        along = np.array([-w[1], w[0]]) / np.linalg.norm(w)
        for level, style in ((0.0, "-"), (1.0, ":")):
            foot = selected - level * w / (w @ w)
            ax.plot(*np.array([foot - extent * along, foot + extent * along]).T, style, color=colour, lw=1)
    ax.set(aspect="equal", title="Filled: selected; ringed: support; dotted: margin one")
    ax.legend(frameon=False)
    return ax


def path(trace: Trace, solution: Solution | None = None, ax: Axes | None = None) -> Axes:
    """Draw the correlation of W with a solution over training; if there is no solution, the norm of W.

    Parameters
    ----------
    trace : Trace
        A trace of one trial.
    solution : Solution, optional
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the trace is of several trials.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import TokenData, plots, solve, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=100, record_every=10)
    >>> ax = plots.path(trace, solve(data.problem([0])), Figure().subplots())
    >>> ax.get_ylabel()
    'correlation with the frobenius SVM'
    """
    _single(trace)
    ax = axes_or_new(ax)
    if solution is None:
        curve, label = to_numpy("norm", trace.norm), "norm of W"
    else:
        W = to_numpy("W", trace.W)
        nonzero = np.array([bool(record.any()) for record in W])
        curve = np.full(len(W), np.nan)
        curve[nonzero] = correlation(W[nonzero], solution.certified.W)
        label = f"correlation with the {solution.norm.name} SVM"
    ax.plot(np.maximum(trace.step, 0.5), curve, color=FIRST)
    ax.set_xscale("log")
    ax.set(xlabel="step", ylabel=label, title=f"Training by {trace.optimizer}")
    return ax


def attention(trace: Trace, query: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the attention of one query to each token over training.

    Parameters
    ----------
    trace : Trace
        A trace of one trial.
    query : int
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the trace is of several trials, or has no such query.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import TokenData, plots, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=100, record_every=10)
    >>> ax = plots.attention(trace, query=0, ax=Figure().subplots())
    >>> len(ax.lines)
    2
    """
    _single(trace)
    if not 0 <= query < trace.data.n:
        raise ValueError(f"query is {query}; a number from 0 to {trace.data.n - 1} was expected.")
    ax = axes_or_new(ax)
    weights = to_numpy("attention", trace.attention)[..., query, :]
    for t, curve in enumerate(weights.T):
        ax.plot(np.maximum(trace.step, 0.5), curve, label=f"token {t}")
    ax.set_xscale("log")
    ax.set(xlabel="step", ylabel="attention", ylim=(-0.02, 1.02), title=f"Attention of query {query}")
    if weights.shape[1] <= 8:
        ax.legend(frameon=False)
    return ax


def regularisation(path: RegularizationPath, solution: Solution | None = None, ax: Axes | None = None) -> Axes:
    """Draw the distance of each ball's minimiser from the SVM's direction; if there is no solution, its risk.

    Parameters
    ----------
    path : RegularizationPath
        A path of one trial.
    solution : Solution, optional
        A solution in the norm of the path.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the path is of several trials, or the solution does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import TokenData, plots, regularization_path
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> minimisers = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
    >>> ax = plots.regularisation(minimisers, ax=Figure().subplots())
    >>> ax.get_ylabel()
    'risk'
    """
    if path.loss.ndim > 1:
        raise ValueError(f"path is of trials {tuple(path.loss.shape[:-1])}; one trial was expected.")
    curve = path.loss if solution is None else path.distance(solution)
    ax = axes_or_new(ax)
    ax.plot(path.radius, to_numpy("path", curve), "o-", color=FIRST)
    ax.set_xscale("log")
    label = "risk" if solution is None else f"distance from the {path.norm.name} SVM's direction"
    ax.set(xlabel=f"{path.norm.name} norm of W, at most", ylabel=label)
    return ax


def spectrum(W: Any, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the singular values of a matrix, largest first, on a logarithmic axis.

    Parameters
    ----------
    W : array_like, shape (d, dz)
    label : str, optional
    ax : Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots
    >>> ax = plots.spectrum(np.diag([3.0, 1.0, 0.1]), label="W", ax=Figure().subplots())
    >>> ax.get_yscale()
    'log'
    """
    matrix = to_numpy("W", W)
    values = np.linalg.svd(matrix, compute_uv=False)
    above = values > max(matrix.shape) * np.finfo(matrix.dtype).eps * values[0]
    ax = axes_or_new(ax)
    ax.semilogy(np.arange(1, len(values) + 1)[above], values[above], "o", label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="number", ylabel="singular value")
    if label is not None:
        ax.legend(frameon=False)
    return ax


def matrix(W: Any, ax: Axes | None = None) -> Axes:
    """Draw the entries of a matrix, blue above and red below zero.

    Parameters
    ----------
    W : array_like, shape (d, dz)
    ax : Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from attsvm import plots
    >>> ax = plots.matrix(np.diag([1.0, -1.0]), Figure().subplots())
    >>> len(ax.images)
    1
    """
    entries = to_numpy("W", W)
    ax = axes_or_new(ax)
    largest = float(np.abs(entries).max()) or 1.0
    image = ax.imshow(entries, cmap="RdBu", vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set(xlabel="query coordinate", ylabel="token coordinate")
    return ax


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the given axes, or make a figure that a notebook displays."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _single(trace: Trace) -> None:
    """Refuse a trace of several trials."""
    if trace.data.batch_shape:
        raise ValueError(f"trace is of trials {trace.data.batch_shape}; one trial was expected.")
