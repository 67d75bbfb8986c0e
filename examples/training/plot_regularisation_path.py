r"""
The regularisation path
=======================

The minimisers of the risk in growing balls turn towards the SVM at rate :math:`1/R`.

This is a theorem in every norm. The SVM selects the best token of each sequence.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, regularization_path, solve
from attsvm.data.synthetic import random_data

data, v = random_data(None, n=3, T=4, d=4, gap=0.1, seed=9)
best = (data.labels[:, None] * (data.tokens @ v)).argmax(-1)
problem = SelectionProblem(data.tokens, data.queries, best)
radii = [10, 20, 50, 100, 200, 500]

fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
for norm in ("frobenius", 3):
    path = regularization_path(data, v, radii, norm=norm)
    distance = np.asarray(path.distance(solve(problem, norm)))
    ax.loglog(radii, distance, "o-", label=f"norm {norm}")
    print(f"norm {norm}: distance times radius", (distance * radii).round(2).tolist())
ax.loglog(radii, 10 / np.array(radii), ":", color="0.5", label="proportional to 1/R")
ax.set(xlabel="radius R", ylabel="distance from the SVM", title="The path ends at the SVM")
ax.legend(frameon=False)
