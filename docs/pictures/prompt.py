"""Draw docs/pictures/prompt.svg: prompts trained on the published instances. A few seconds.

python docs/pictures/prompt.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import TokenData, train
from attsvm.theory.prompt import joint_svm, p_svm

mpl.rcParams["svg.hashsalt"] = "prompt"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#777777"
KEY = np.diag([1.0, 1.0, 0.0])
RECORDS = np.unique(np.geomspace(1, 3000, 60).astype(int)).tolist()

figure, panels = plt.subplots(1, 4, figsize=(13, 3.5), layout="constrained")
for axes, last in zip(panels[:2], (0.9, 0.0), strict=True):
    X = np.array([[[-0.1, 1, 1], [1, 0, 0.9], [0, 0, last]]])
    data = TokenData.prompt(X, [1.0], KEY)
    for start in (1, 0.5, 0, -0.5, -1, -1.5):
        trace = train(data, [0.0, 0, 1], steps=3000, init=np.array([[0.0], [start], [0]]), record_every=RECORDS)
        axes.plot(trace.W[:, 0, 0], trace.W[:, 1, 0], color=BLUE, lw=1.2)
        axes.plot(0, start, "o", color=BLUE, ms=3)
    for token, colour in ((0, GREEN), (1, ORANGE)):
        p = p_svm(data.tokens, [token]).W[:2, 0]
        axes.plot([0, 60 * p[0]], [0, 60 * p[1]], "--", color=colour, lw=1, label=f"p-SVM of token {token + 1}")
    axes.set(xlim=(-12, 28), ylim=(-4, 46), xlabel="$p_1$", ylabel="$p_2$", title=f"scores 1, 0.9, {last:g}")
    axes.legend(frameon=False, fontsize=7, loc="upper right")
for axes, height in zip(panels[2:], (1.0, 1.5), strict=True):
    X = np.array([[[0.0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, height]]])
    labels = np.array([1.0, -1.0, 1.0])
    data = TokenData.prompt(X, labels)
    trace = train(data, [-1.0, 0], head_lr=0.1, init=np.array([[0.0], [-1]]), steps=3000, record_every=RECORDS)
    p, v = trace.W[..., 0], trace.head["v"]
    axes.plot(*p.T, color=BLUE, lw=1.2, label="p")
    axes.plot(*v.T, color=ORANGE, lw=1.2, label="v")
    solution = joint_svm(X, X, labels, [1, 1, 1])
    for direction, colour in ((solution.p, BLUE), (solution.v, ORANGE)):
        unit = direction / np.linalg.norm(direction)
        axes.plot([0, 12 * unit[0]], [0, 12 * unit[1]], "--", color=colour, lw=1)
    axes.plot(*X[:, 1].T, "k.", ms=5)
    axes.set(xlim=(-2, 8), ylim=(-2, 8), xlabel="first coordinate", title=f"v and p together, height {height:g}")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
for axes in panels[2:]:
    axes.set_aspect("equal")
for axes in panels:
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"))
