r"""
Soft margins
============

If no W makes every selection, constraints may fall short of margin one, and ``C`` is the penalty per unit of
shortfall.

As C grows, W grows and the shortfalls shrink, until they cannot shrink further.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, soft_margin_path, solve

rng = np.random.default_rng(2)
problem = SelectionProblem(rng.normal(size=(40, 5, 4)), rng.normal(size=(40, 4)), selected=rng.integers(5, size=40))
print("hard margin:", solve(problem).status.name)
prices = np.logspace(-3, 2, 21)
path = soft_margin_path(problem, prices)
print("largest certified gap:", max(solution.gap for solution in path))

fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
ax.loglog(prices, [solution.objective for solution in path], label="norm of W")
ax.loglog(prices, [np.asarray(solution.slack).sum() for solution in path], label="sum of shortfalls")
ax.set(xlabel="C", title="The price of a margin")
ax.legend(frameon=False)
