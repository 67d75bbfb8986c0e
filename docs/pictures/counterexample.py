"""Draw counterexample.svg into this folder: where descent from each W(0) = w e_1^T goes."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from attsvm import TokenData, theory, train

REACH, CELLS = 6.0, 97

tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
data = TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2))
head = np.array([1.0, 3.5])
trial = theory.Trial.of(data, head)

axis = np.linspace(-REACH, REACH, CELLS)
across, up = np.meshgrid(axis, axis)
starts = np.zeros((CELLS**2, 2, 2))
starts[:, 0, 0], starts[:, 1, 0] = across.ravel(), up.ravel()
basins = theory.map_basins(trial, starts, steps=4000, lr=0.05, selected_above=0.9)
is_global = np.array([(d.selected == trial.optimal).all() for d in basins.landscape.directions])
where = np.where(basins.destination < 0, np.nan, is_global[basins.destination].astype(float)).reshape(CELLS, CELLS)

plt.rcParams.update({"svg.hashsalt": "attsvm", "font.size": 10})
fig, ax = plt.subplots(figsize=(5.6, 5.0), layout="constrained")
ax.pcolormesh(across, up, where, cmap=ListedColormap(["#f6d5c3", "#d3e4f2"]), rasterized=True)
for direction, color, label in zip(
    basins.landscape.directions,
    ["#b3400b", "#0b57a4"],
    ["local direction (1, 0)", "global direction (1, 3)"],
    strict=True,
):
    ray = 20 * direction.W[:, 0] / np.linalg.norm(direction.W)
    ax.plot([0, ray[0]], [0, ray[1]], color=color, linestyle="--", linewidth=1.8, label=label)
for start in ((0.0, 0.0), (4.0, 0.0), (3.0, -5.0), (-4.0, -4.0), (5.0, 4.0), (-4.0, 3.0)):
    path = train(data, head, init=np.array([[start[0], 0.0], [start[1], 0.0]]), steps=1200, lr=0.02, record_every=10).W[
        :, :, 0
    ]
    ax.plot(path[:, 0], path[:, 1], color="0.15", linewidth=1.2)
    ax.plot(*start, marker="o", color="0.15", markersize=4)
ax.annotate("$W(0)=4\\,e_1e_1^\\top$", (4.0, 0.0), xytext=(3.1, -1.2), fontsize=9)
ax.annotate("$W(0)=0$", (0.0, 0.0), xytext=(0.2, -0.6), fontsize=9)
ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xlabel="$(We_1)_1$", ylabel="$(We_1)_2$", aspect="equal")
ax.legend(loc="upper left", framealpha=0.95, fontsize=9)
fig.savefig(Path(__file__).with_suffix(".svg"), dpi=120, metadata={"Date": None})
print("shares of the starts:", dict(zip(["local", "global", "unsettled"], basins.share.round(3), strict=True)))
