"""Draw theory.svg into this folder: how often each hypothesis holds as the dimension grows."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attsvm import theory
from attsvm.data.synthetic import random_data

DIMENSIONS, TRIALS, N, T = (2, 3, 4, 6, 8, 12, 16, 24, 32), 80, 3, 4

names = [
    "optimal tokens feasible",
    "slack B.1",
    "C",
    "only opt locally optimal",
    "D",
    "strict B.1",
    "every selection feasible",
]
shares = np.zeros((len(names), len(DIMENSIONS)))
for column, d in enumerate(DIMENSIONS):
    data, v = random_data(TRIALS, N, T, d, gap=0.1, seed=7)
    for j in range(TRIALS):
        trial = theory.Trial.of(data[j], v[j])
        landscape = theory.explore(trial)
        conditions = theory.check_conditions(trial, landscape=landscape)
        shares[:, column] += [
            conditions["B.1"].holds or np.isfinite(trial.optimal_solution.objective),
            conditions["B.1 (slack)"].holds,
            conditions["C"].holds,
            landscape.only_optimal,
            conditions["D"].holds is True,
            conditions["B.1"].holds,
            theory.check_separability(trial, landscape).every is True,
        ]
shares /= TRIALS
print("d", *DIMENSIONS, sep="\t")
for name, row in zip(names, shares, strict=True):
    print(name, *row.round(3), sep="\t")

plt.rcParams.update({"svg.hashsalt": "attsvm", "font.size": 10})
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
styles = ["-", "-", "-", "-", "-", "-", "--"]
colors = ["0.6", "#0b57a4", "#2a9d5c", "#b3400b", "#e39b00", "#5b3a9b", "0.3"]
for name, row, style, color, mark in zip(names, shares, styles, colors, "osD^vPx", strict=True):
    error = 1.96 * np.sqrt(row * (1 - row) / TRIALS)
    ax.errorbar(DIMENSIONS, row, error, label=name, linestyle=style, color=color, marker=mark, markersize=5, capsize=2)
ax.axvline(max(T - 1, N), color="0.8", linewidth=1, zorder=0)
ax.annotate("max(T−1, n)", (max(T - 1, N) * 1.03, 0.93), fontsize=8, color="0.4")
ax.set_xscale("log", base=2)
ax.set_xticks(DIMENSIONS, [str(d) for d in DIMENSIONS])
ax.set(xlabel=f"dimension d  (n = {N}, T = {T}, {TRIALS} trials each)", ylabel="share of instances", ylim=(-0.03, 1.03))
ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
fig.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
