"""Draw docs/pictures/idea.svg: the attention SVM of two sequences, and training on its way there. A second.

python docs/pictures/idea.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import SelectionProblem, TokenData, correlation, solve, train

mpl.rcParams["svg.hashsalt"] = "idea"
BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#777777"

tokens = np.array([
    [[1.2, 1.4], [0.2, 0.6], [-0.6, 1.0], [0.9, -0.4], [-0.3, -0.7]],
    [[1.5, -0.3], [0.5, -1.0], [0.1, 0.3], [-0.9, 0.2], [-0.5, -0.9]],
])  # fmt: skip
queries = np.array([[1.0, 0.0], [1.0, 0.0]])  # one query for both: W acts through the vector W z
head = np.array([1.0, 0.5])  # in both sequences the first token scores best
solution = solve(SelectionProblem(tokens, queries, selected=[0, 0]))
direction = solution.W[:, 0]
trace = train(
    TokenData(tokens, queries, labels=np.ones(2)),
    head,
    lr=0.05,
    steps=20_000,
    record_every=1,
    init=np.array([[-0.8, 0], [1.6, 0]]),
)

figure, (plane, curve) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", width_ratios=(1.25, 1))
along = np.array([-direction[1], direction[0]]) / np.linalg.norm(direction)
for i, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
    plane.scatter(*tokens[i, 1:].T, s=36, marker=marker, facecolors="none", edgecolors=colour)
    plane.scatter(*tokens[i, 0], s=70, marker=marker, color=colour, label=f"sequence {i + 1}; filled: selected token")
    for level, style in ((0.0, "-"), (1.0, ":")):
        foot = direction * (tokens[i, 0] @ direction - level) / (direction @ direction)
        ends = np.array([foot - 1.9 * along, foot + 1.9 * along])
        plane.plot(*ends.T, style, color=colour, lw=1)
plane.annotate("", direction, (0, 0), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.6})
plane.annotate("W z", direction, textcoords="offset points", xytext=(-2, 8))
plane.set(xlim=(-1.8, 2.4), ylim=(-1.7, 3.3), aspect="equal", title="Rejected tokens score at least one less")
plane.legend(frameon=False, fontsize=8, loc="upper left")

steps = np.maximum(trace.step[1:], 1)
curve.semilogx(steps, trace.attention[1:, 0, 0], color=BLUE, label="attention to the selected token, sequence 1")
curve.semilogx(steps, trace.attention[1:, 1, 0], color=ORANGE, label="the same, sequence 2")
curve.semilogx(steps, correlation(trace.W[1:], solution.W), color="black", label="correlation of W with the SVM")
curve.set(title="Training converges to this direction", xlabel="step", ylim=(-0.05, 1.03))
curve.legend(frameon=False, fontsize=8, loc="lower right")
for axes in (plane, curve):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).parent / "idea.svg", metadata={"Date": None})
print(f"correlation after {trace.step[-1]:,} steps: {correlation(trace.W[-1], solution.W):.5f}")
