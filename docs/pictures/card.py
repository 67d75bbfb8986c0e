"""Draw docs/_static/card.png, which a link to the site shows: training on its way to a max-margin direction. A second.

python docs/pictures/card.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import SelectionProblem, TokenData, solve, train

BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#777777"

tokens = np.array([[[1.2, 1.4], [0.2, 0.6], [-0.6, 1.0]], [[1.5, -0.3], [0.5, -1.0], [0.1, 0.3]]])
queries = np.array([[1.0, 0.0], [1.0, 0.0]])
solution = solve(SelectionProblem(tokens, queries, selected=[0, 0]))
trace = train(
    TokenData(tokens, queries, np.ones(2)),
    [1.0, 0.5],
    lr=0.05,
    steps=20_000,
    record_every=1,
    init=[[-0.8, 0.0], [1.6, 0.0]],
)
ray = solution.W[:, 0] / np.linalg.norm(solution.W)
path = trace.W[:, :, 0]
length = np.linalg.norm(path, axis=1, keepdims=True)
path = path / length * (0.4 + 0.4 * np.log1p(length))  # the norm grows without end

figure = plt.figure(figsize=(12, 6.3))  # 1200 by 630, the size that link previews ask for
figure.text(0.05, 0.7, "attsvm", fontsize=64, weight="bold")
for row, line in enumerate(("Attention as a", "support vector machine,", "with a certificate")):
    figure.text(0.05, 0.54 - 0.09 * row, line, fontsize=29)
plane = figure.add_axes((0.5, 0, 0.5, 1))
plane.plot(*np.outer([0, 4], ray).T, color=GREY, lw=22, alpha=0.3, solid_capstyle="round")
plane.plot(*path.T, color="black", lw=3)
for i, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
    plane.scatter(*tokens[i, 1:].T, s=300, marker=marker, facecolors="white", edgecolors=colour, linewidths=3, zorder=3)
    plane.scatter(*tokens[i, 0], s=500, marker=marker, color=colour, zorder=3)
plane.set(xlim=(-1.4, 2.4), ylim=(-1.6, 2.4), aspect="equal")
plane.axis("off")
figure.savefig(Path(__file__).parents[1] / "_static" / "card.png", dpi=100, metadata={"Software": None})
