r"""
One problem, many norms
=======================

The norm decides whether the smallest W has low rank, few entries, few rows or entries of one size.

The nuclear norm gives low rank, and the entrywise :math:`l_1` norm few entries. The norm of rows gives few coordinates
of tokens, and the largest-entry norm entries of one size.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, norms, solve

rng = np.random.default_rng(0)
problem = SelectionProblem(rng.normal(size=(5, 4, 8)), rng.normal(size=(5, 8)), selected=[0, 1, 2, 3, 0])
fig, axes = plt.subplots(1, 6, figsize=(11, 2.4), layout="constrained")
for ax, norm in zip(axes, ["frobenius", "nuclear", "spectral", "max", 1, norms.Mixed(2, 1)], strict=True):
    solution = solve(problem, norm, tol=1e-6)
    W = np.asarray(solution.W)
    ax.imshow(W, cmap="RdBu", vmin=-np.abs(W).max(), vmax=np.abs(W).max())
    ax.set(title=solution.norm.name, xticks=[], yticks=[])
    entries = (np.abs(W) > 1e-4 * np.abs(W).max()).sum()
    rank = np.linalg.matrix_rank(W, 1e-4)
    print(f"{solution.norm.name}: {solution.objective:.4f}, rank {rank}, {entries} entries in use")
