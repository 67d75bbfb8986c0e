r"""
Rank of the nuclear solution
============================

Training of keys and queries, :math:`W = K Q^\top`, corresponds to the nuclear norm, whose solutions have low rank.

The rank is certified: a singular value counts if the gap tells it from zero.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

rng = np.random.default_rng(1)
problem = SelectionProblem(rng.normal(size=(12, 6, 16)), rng.normal(size=(12, 16)), selected=rng.integers(6, size=12))
fig, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
for norm, marker in (("frobenius", "s"), ("nuclear", "D")):
    solution = solve(problem, norm)
    values = np.linalg.svd(solution.W, compute_uv=False)[: solution.rank]
    ax.semilogy(range(1, solution.rank + 1), values, marker, ms=5, label=f"{norm}, rank {solution.rank}")
ax.set(xlabel="number", ylabel="singular value", title="Singular values of the smallest W")
ax.legend(frameon=False)

# %%
# Balanced factors of that rank are the smallest K and Q whose product is W.
K, Q = solution.factors()
print(K.shape, Q.shape, "largest error:", np.abs(K @ Q.T - solution.W).max())
