"""The optimisers and schedules that are compared, each with the norm whose margin it should maximise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from attsvm.core.types import AnyNorm, ScheduleName
from attsvm.solution.problem_batch import BatchSolution
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.registry import make_optimizer
from attsvm_paper.published.instances import Instances


@dataclass(frozen=True)
class Rule:
    """An optimiser with its settings.

    Attributes
    ----------
    name : str
        Accepted by :func:`attsvm.train`.
    lr : float
    schedule : str
    norm : str or float
        The matched norm, whose SVM it is compared with.
    parameterization : {"W", "KQ"}
    slow : bool
        Whether it runs outside the compiled loop.
    experimental : bool
        Whether the match is proved only for linear multiclass models (arXiv 2502.04664), or not at all.
    options : mapping
        Further fields of the optimizer.
    """

    name: str
    lr: float
    schedule: ScheduleName
    norm: AnyNorm
    parameterization: Literal["W", "KQ"] = "W"
    slow: bool = False
    experimental: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def optimizer(self) -> Optimizer:
        """Make the optimizer."""
        return replace(make_optimizer(self.name, self.parameterization, self.lr, self.schedule), **self.options)


RULES: dict[str, Rule] = {
    "gradient": Rule("gd", 1.0, "constant", "frobenius"),
    "gradient, exponential": Rule("gd", 1.0, "exponential", "frobenius"),
    "normalised": Rule("normalized_gd", 0.1, "constant", "frobenius"),
    "normalised, sqrt": Rule("normalized_gd", 1.0, "sqrt", "frobenius"),
    "normalised, linear": Rule("normalized_gd", 1.0, "linear", "frobenius"),
    "normalised, exponential": Rule("normalized_gd", 0.1, "exponential", "frobenius"),
    "momentum": Rule("momentum", 2.0, "constant", "frobenius"),
    "momentum, sqrt": Rule("momentum", 2.0, "sqrt", "frobenius"),
    "Polyak": Rule("polyak", 1.0, "constant", "frobenius", slow=True),
    "mirror p=1.75": Rule("mirror", 0.1, "constant", 1.75, options={"p": 1.75}),
    "mirror p=3": Rule("mirror", 0.1, "constant", 3.0, options={"p": 3.0}),
    "sign": Rule("sign", 0.02, "constant", "max", experimental=True),
    "sign, sqrt": Rule("sign", 0.2, "sqrt", "max", experimental=True),
    "Adam": Rule("adam", 0.02, "constant", "max", slow=True, experimental=True),
    "Adam, sqrt": Rule("adam", 0.2, "sqrt", "max", slow=True, experimental=True),
    "Adam, beta2=0.95": Rule(
        "adam", 0.02, "constant", "max", slow=True, experimental=True, options={"betas": (0.9, 0.95)}
    ),
    "spectral": Rule("spectral", 0.1, "constant", "spectral", slow=True, experimental=True),
    "spectral, sqrt": Rule("spectral", 1.0, "sqrt", "spectral", slow=True, experimental=True),
    "(K, Q) relative": Rule("normalized_gd", 0.5, "sqrt", "nuclear", "KQ", options={"relative": True}),
    "(K, Q) constant": Rule("normalized_gd", 0.1, "constant", "nuclear", "KQ", options={"relative": False}),
    "(K, Q) apart": Rule("separately_normalized_gd", 0.1, "constant", "nuclear", "KQ", slow=True),
    "(K, Q) gradient": Rule("gd", 1.0, "constant", "nuclear", "KQ"),
}
"""Keyed by the name in figures."""


def rule_of(name: str) -> Rule:
    """Find a rule by name.

    Raises
    ------
    ValueError
        If there is no such rule.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; one of {', '.join(RULES)} was expected.")
    return RULES[name]


def shortfall(instances: Instances, selected: np.ndarray, W: np.ndarray, solutions: BatchSolution) -> np.ndarray:
    r"""Return 1 minus the share of the largest margin, in the norm of the SVM.

    The share :math:`\min A(W)\, \|W^{mm}\| / \|W\|` is 1 at the solution and nowhere larger.

    Parameters
    ----------
    instances : Instances
    selected : ndarray of int, shape (B, n)
    W : ndarray, shape (B, records, d, dz)
    solutions : BatchSolution

    Returns
    -------
    ndarray, shape (B, records)
        NaN if there is no SVM or W is zero.
    """
    problems = instances.problems(selected)
    shortfalls = np.full(W.shape[:2], np.nan)
    for b in np.flatnonzero(np.isfinite(solutions.objective)):
        problem = problems[int(b)]
        for r, matrix in enumerate(W[b]):
            top = np.abs(matrix).max()
            if 0 < top < np.inf:
                unit = matrix / top
                margin = problem.apply(unit)[problem.rejected].min()
                shortfalls[b, r] = 1 - margin / solutions.norm.value(unit) * solutions.objective[b]
    return shortfalls
