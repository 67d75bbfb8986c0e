r"""
Keys and queries find low rank
==============================

Training of W turns towards the Frobenius SVM, and training of keys and queries towards the nuclear SVM.

The same data are trained as W and as :math:`W = K Q^\top`. The nuclear SVM has low rank.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.data.synthetic import random_data

data, v = random_data(None, n=5, T=6, d=8, gap=0.1, seed=4)
fig, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
for ax, parameterization in zip(axes, ("W", "KQ"), strict=True):
    trace = train(data, v, parameterization=parameterization, steps=5000, record_every=50)
    problem = SelectionProblem(data.tokens, data.queries, np.asarray(trace.selected))
    for norm in ("frobenius", "nuclear"):
        curve = correlation(trace.W[1:], solve(problem, norm).W)
        ax.semilogx(trace.step[1:], curve, label=f"with the {norm} SVM")
        print(f"trained {parameterization}, {norm}: {curve[-1]:.4f}")
    ax.set(xlabel="step", title=f"Training {parameterization}")
axes[0].set_ylabel("correlation")
axes[1].legend(frameon=False)
