r"""
Multiclass classifiers
======================

A linear classifier is a selection problem: classes are tokens, inputs are queries, and labels are selections.

The same ``solve`` gives its certified max-margin weights in any norm.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

rng = np.random.default_rng(0)
centres = np.array([[2.0, 0.0], [-1.2, 1.8], [-1.2, -1.8]])
y = rng.integers(3, size=60)
X = np.column_stack([centres[y] + 0.5 * rng.normal(size=(60, 2)), np.ones(60)])  # the last column is the intercept
problem = SelectionProblem.from_classes(X, y)
side = np.linspace(-4, 4, 120)
plane = np.column_stack([*(axis.ravel() for axis in np.meshgrid(side, side)), np.ones(len(side) ** 2)])

fig, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for ax, norm in zip(axes, ("frobenius", "spectral", "max"), strict=True):
    solution = solve(problem, norm)
    ax.pcolormesh(side, side, (plane @ np.asarray(solution.W).T).argmax(1).reshape(120, 120), cmap="Pastel1")
    ax.scatter(X[:, 0], X[:, 1], c=y, s=10, cmap="Set1")
    ax.set(title=norm, aspect="equal")
    support = int(np.asarray(solution.support).sum())
    print(f"{norm}: {solution.objective:.4f}, gap {solution.gap:.1e}, {support} support pairs")
