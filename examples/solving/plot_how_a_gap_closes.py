r"""
How a gap closes
================

A callback sees every iterate with its certified gap, so it can stop the solver as soon as the answer is good enough.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

rng = np.random.default_rng(5)
problem = SelectionProblem(rng.normal(size=(30, 8, 12)), rng.normal(size=(30, 12)), selected=np.zeros(30, int))
fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
for norm in ("spectral", 1.5, "max"):
    gaps = []
    solution = solve(problem, norm, C=1.0, callback=lambda state, gaps=gaps: gaps.append(state.gap))
    ax.semilogy(range(1, len(gaps) + 1), np.maximum(gaps, 1e-16), "o-", ms=3, label=f"norm {norm}")
    print(f"norm {norm}: {solution.status.name}, gap {solution.gap:.1e} after {solution.iterations} iterations")
ax.set(xlabel="iteration", ylabel="certified gap", title="Soft margins by interior points")
ax.legend(frameon=False)
