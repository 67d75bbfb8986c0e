r"""
Rounding loses the direction
============================

When softmax saturates, the usual gradient is a difference of equal numbers.

Training on exact gradients goes on towards the SVM. Training on plain float32 autograd stops or turns away.
"""

import matplotlib.pyplot as plt

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.data.synthetic import random_data

data, v = random_data(None, n=6, T=8, d=10, gap=0.1, seed=3)
runs = {
    "exact gradients": train(data, v, steps=5000, record_every=25),
    "autograd, float64": train(data, v, steps=5000, record_every=25, numerics="autograd"),
    "autograd, float32": train(data, v, steps=5000, record_every=25, numerics="autograd", dtype="float32"),
}
target = solve(SelectionProblem(data.tokens, data.queries, runs["exact gradients"].selected)).W

fig, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
for name, trace in runs.items():
    distance = 1 - correlation(trace.W[1:], target)
    ax.loglog(trace.step[1:], distance, label=name)
    print(f"{name}: correlation {1 - distance[-1]:.6f}")
ax.set(xlabel="step", ylabel="1 - correlation with the SVM", title="The same training in three arithmetics")
ax.legend(frameon=False)
