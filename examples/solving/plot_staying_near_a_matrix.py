r"""
Staying near a given matrix
===========================

``prior=`` minimises the distance from a matrix instead of the norm.

The answer is the smallest change of trained weights that selects other tokens.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

rng = np.random.default_rng(3)
tokens, queries = rng.normal(size=(6, 5, 10)), rng.normal(size=(6, 10))
W0 = solve(SelectionProblem(tokens, queries, selected=[0, 1, 2, 3, 4, 0])).W
target = SelectionProblem(tokens, queries, selected=[0, 1, 2, 3, 4, 1])  # the last query is to select another token
edits = [solve(target, norm, prior=W0) for norm in ("frobenius", "nuclear", 1)]

fig, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
for ax, edit in zip(axes, edits, strict=True):
    change = np.asarray(edit.W) - W0
    ax.imshow(change, cmap="RdBu", vmin=-np.abs(change).max(), vmax=np.abs(change).max())
    ax.set(title=f"smallest in {edit.norm.name}", xticks=[], yticks=[])
    print(f"{edit.norm.name}: {edit.status.name}, rank of the change {np.linalg.matrix_rank(change, 1e-6)}")
