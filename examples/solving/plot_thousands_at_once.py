r"""
Thousands at once
=================

``solve_batch`` solves problems of one shape in one compiled call.

The picture shows how the smallest norm is distributed over random problems as the number of queries grows, and what
share of the problems has no solution.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import ProblemBatch, Status, solve_batch

rng = np.random.default_rng(6)
fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
for n in (4, 8, 12):
    tokens, queries = rng.normal(size=(500, n, 5, 4)), rng.normal(size=(500, n, 4))
    batch = solve_batch(ProblemBatch(tokens, queries, np.zeros((500, n), int)))
    norms = batch.objective[np.isfinite(batch.objective)]
    infeasible = np.mean(batch.status == Status.INFEASIBLE)
    ax.hist(np.log10(norms), bins=30, histtype="step", label=f"n = {n}: {100 * infeasible:.0f} % infeasible")
    print(batch)
ax.set(xlabel="log10 of the smallest norm", ylabel="problems", title="500 random problems each, T = 5, d = 4")
ax.legend(frameon=False)
