r"""
The start decides where training ends
=====================================

Gradient descent turns towards the attention SVM from one start and never does from another.

Two queries share one direction :math:`z = e_1`, so an attention matrix acts through the vector :math:`w = W e_1`. The
first query selects its token if :math:`w_1 > 0`, the second if :math:`w_2 > 2 w_1`. The attention SVM asks for both
with margin one, and its answer is :math:`w = (1, 3)`.

Gradient descent from zero turns towards that direction. Gradient descent from :math:`W = 4 e_1 e_1^\top` never does.
There the second query puts its attention on its worse token, and its own gradient is exponentially small. The first
query moves W further along :math:`e_1`. Theorems 4 and 5 in version 1 of arXiv 2308.16898 say that this cannot happen.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, TokenData, correlation, solve, train

# %%
# The data: token differences (1, 0) and (-2, 1), and a head that prefers the first token of both sequences.
tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
queries = np.array([[1.0, 0.0], [1.0, 0.0]])
v = np.array([1.0, 3.5])
print("token scores:", (tokens @ v).tolist())

# %%
# The SVM, with its proof: W, a bound that no feasible matrix can beat, and the gap between the two.
solution = solve(SelectionProblem(tokens, queries, selected=[0, 0]))
print(solution)
print("W e_1 =", solution.W[:, 0], " margins:", solution.margins[:, 1])

# %%
# Gradient descent from two starts.
data = TokenData(tokens, queries, labels=np.ones(2))
starts = {"from 0": "zero", "from $4 e_1 e_1^T$": np.array([[4.0, 0.0], [0.0, 0.0]])}
traces = {
    name: train(data, v, optimizer="gd", lr=0.1, steps=20_000, init=init, record_every=100)
    for name, init in starts.items()
}
for name, trace in traces.items():
    print(f"{name}: correlation with the SVM {correlation(trace.W[-1], solution.W):.3f}")

# %%
# The paths of :math:`W e_1`, and the ray of the SVM.
fig, ax = plt.subplots(figsize=(5.5, 4))
ray = np.outer([0.0, 4.0], solution.W[:, 0])
ax.plot(ray[:, 0], ray[:, 1], color="0.6", linestyle="--", label="attention SVM")
for name, trace in traces.items():
    path = trace.W[:, :, 0]
    ax.plot(path[:, 0], path[:, 1], marker=".", markersize=3, label=f"training {name}")
    ax.annotate("start", path[0], textcoords="offset points", xytext=(-10, -14))
ax.set(xlabel="$(W e_1)_1$", ylabel="$(W e_1)_2$", ylim=(-1.2, None), title="Two starts, two directions")
ax.legend()
fig.tight_layout()
