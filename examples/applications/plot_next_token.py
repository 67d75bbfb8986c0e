r"""
Next-token prediction
=====================

Contexts are queries, words are tokens, and all words that follow a context are selected together.

If contexts are orthonormal, the answer is known in closed form: the support matrix, centred column by column.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, correlation, solve

rng = np.random.default_rng(0)
supports = rng.random((10, 12)) < 0.3  # (contexts, words)
supports[np.arange(10), rng.integers(12, size=10)] = True
problem = SelectionProblem.from_contexts(np.eye(10), supports)
solution = solve(problem)
centred = supports.T - supports.mean(axis=1)
print(solution)
print("correlation with the centred supports:", correlation(solution.W, centred))

fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
for ax, matrix, title in ((axes[0], supports.T, "which word follows"), (axes[1], solution.W, "smallest W")):
    ax.imshow(np.asarray(matrix, float), cmap="RdBu", vmin=-1, vmax=1)
    ax.set(title=title, xlabel="context", ylabel="word")
