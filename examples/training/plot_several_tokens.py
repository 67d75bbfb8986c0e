r"""
Heads that select several tokens
================================

A concave head has its smallest loss at a mixture, so attention stays on several tokens.

The trained W is then the sum of a finite part, which sets their shares, and a max-margin part.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import TokenData, svm_equivalent, train
from attsvm.nn.heads import LambdaHead

data = TokenData(np.eye(4)[None], [[1.0]], labels=[1.0])
trace = train(
    data,
    LambdaHead(np.array([1.0, 0.9, 0.2, 0.1]), 0.3),
    loss="correlation",
    optimizer="gd",
    lr=5.0,
    steps=3000,
    record_every=10,
)
equivalent = svm_equivalent(data, trace.attention[-1], trace.W[-1], masked_below=1e-3)
print(equivalent.status.name, "selected:", np.flatnonzero(equivalent.selected[0]).tolist())
print("finite part:", np.asarray(equivalent.W_fin).ravel().round(3))
print("max-margin part:", np.asarray(equivalent.W_mm).ravel().round(3))
print("correlation of their sum with the trained W:", round(equivalent.correlation, 6))

fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
ax.semilogx(trace.step[1:], trace.attention[1:, 0], label=[f"token {t + 1}" for t in range(4)])
ax.set(xlabel="step", ylabel="attention", title="Two tokens survive")
ax.legend(frameon=False)
