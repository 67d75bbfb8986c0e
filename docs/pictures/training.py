"""Draw docs/pictures/training.svg: what rounding does to training, and what exact gradients reach. About half a minute.

python docs/pictures/training.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import SelectionProblem, TokenData, correlation, solve, train
from attsvm.data.synthetic import random_data

SEEDS, STEPS = 20, 10_000
mpl.rcParams["svg.hashsalt"] = "training"
RECORDS = np.unique(np.geomspace(10, STEPS, 40).astype(int))
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#777777"


def distances(**options):
    """Median over seeds of 1 - correlation with the SVM of the tokens selected at the end of exact training."""
    trace = train(DATA, V, steps=STEPS, record_every=RECORDS.tolist(), **options)
    errors = np.stack([1 - correlation(trace.W[:, r].astype(float), SOLUTIONS) for r in range(len(trace.step))])
    return trace.step[1:], np.maximum(np.median(errors, 1)[1:], 1e-16)


DATA, V = random_data(SEEDS, 6, 8, 10, gap=0.1)
selection = train(DATA, V, steps=STEPS).selected
SOLUTIONS = np.stack(
    [solve(SelectionProblem(DATA.tokens[j], DATA.queries[j], selection[j]), tol=1e-12).W for j in range(SEEDS)]
)
runs = [
    ("float32, autograd", RED, ":", {"numerics": "autograd", "dtype": "float32"}),
    ("float64, autograd", RED, "-", {"numerics": "autograd"}),
    ("float32, exact", BLUE, "o", {"dtype": "float32"}),
    ("float64, exact", BLUE, "-", {}),
    ("exact, momentum", GREEN, "-", {"optimizer": "momentum"}),
    ("exact, Polyak", ORANGE, "-", {"optimizer": "polyak"}),
]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for label, colour, style, options in runs:
    left.loglog(*distances(**options), style, color=colour, label=label, ms=4, mfc="white")
left.set(xlabel="step", ylabel="1 − correlation with the SVM", title="Random data, n = 6, T = 8, d = 10")
left.legend(frameon=False, fontsize=8)

counterexample = TokenData(np.array([[[1.0, 0], [0, 0]], [[-2, 1], [0, 0]]]), np.array([[1.0, 0], [1, 0]]), [1, 1])
for numerics, colour in (("exact", BLUE), ("autograd", RED)):
    start = np.array([[4.0, 0], [0, 0]])
    trace = train(counterexample, [1.0, 3.5], steps=3000, init=start, numerics=numerics, record_every=10)
    right.plot(trace.step, correlation(trace.W, np.array([[1.0, 0], [3, 0]])), color=colour, label=numerics)
right.axhline(1 / np.sqrt(10), color=GREY, lw=0.8, ls="--")
right.text(2950, 1 / np.sqrt(10) - 0.02, "locally-optimal direction", color=GREY, ha="right", va="top", fontsize=8)
right.set(xlabel="step", ylabel="correlation with the SVM", title="From a local direction: two sequences, d = 2")
right.set_ylim(0, 1.05)
right.legend(frameon=False, fontsize=8, loc="upper left")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"))
