r"""
Margins in the plane
====================

The attention SVM asks for the shortest :math:`w = W z` under which every rejected token scores at least one less than
the selected one.

Points on a solid line score like the selected token; points on the dotted line score one less. Support tokens lie on
dotted lines.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, solve

tokens = np.array([
    [[1.2, 1.4], [0.2, 0.6], [-0.6, 1.0], [0.9, -0.4]],
    [[1.5, -0.3], [0.5, -1.0], [0.1, 0.3], [-0.9, 0.2]],
])  # fmt: skip
solution = solve(SelectionProblem(tokens, np.ones((2, 1)), selected=[0, 0]))
w = np.asarray(solution.W)[:, 0]
print(solution)
print("support tokens:", np.argwhere(solution.support).tolist())

# %%
# The picture: one colour per sequence, selected tokens filled, a ring around support tokens.
fig, ax = plt.subplots(figsize=(5, 4.4), layout="constrained")
along = np.array([-w[1], w[0]]) / np.linalg.norm(w)
for i, colour in enumerate(("#0072b2", "#e69f00")):
    ax.scatter(*tokens[i, 1:].T, s=40, facecolors="none", edgecolors=colour)
    ax.scatter(*tokens[i, 0], s=60, color=colour, label=f"sequence {i + 1}")
    ax.scatter(*tokens[i][solution.support[i]].T, s=160, facecolors="none", edgecolors="0.5")
    for level, style in ((0, "-"), (1, ":")):
        foot = w * (tokens[i, 0] @ w - level) / (w @ w)
        ax.plot(*np.array([foot - 2 * along, foot + 2 * along]).T, style, color=colour, lw=1)
ax.annotate("", w, (0, 0), arrowprops={"arrowstyle": "-|>"})
ax.set(aspect="equal", title="Support tokens decide W z")
ax.legend(frameon=False)
