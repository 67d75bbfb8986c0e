r"""
When no matrix selects
======================

A token inside the convex hull of the others can never score highest.

``solve`` proves it with nonnegative multipliers that add the constraints up to :math:`0 \ge 1`.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

tokens = np.array([[[0.2, 0.1], [1.0, 0.0], [-0.6, 1.0], [-0.5, -0.9]]])
problem = SelectionProblem(tokens, [[1.0]], selected=[0])
solution = solve(problem)
weights = np.asarray(solution.dual)[0]
print(solution.sentence)
print("proved exactly:", solution.verify(exact=True).proven)

# %%
# The multipliers are weights of the other tokens whose mean is the selected one.
mean = weights[1:] @ tokens[0, 1:] / weights[1:].sum()
print("weighted mean of the others:", mean)
fig, ax = plt.subplots(figsize=(4.4, 3.8), layout="constrained")
ax.fill(*tokens[0, 1:].T, color="#0072b2", alpha=0.15)
ax.scatter(*tokens[0, 1:].T, s=400 * weights[1:] / weights[1:].sum(), color="#0072b2", label="others, by multiplier")
ax.scatter(*tokens[0, 0], marker="x", color="#d55e00", label="selected: inside the hull")
ax.set(aspect="equal", title="Infeasible, and the proof")
ax.legend(frameon=False, loc="lower right")
