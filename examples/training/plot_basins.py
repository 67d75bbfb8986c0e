r"""
Basins of attraction
====================

The start decides where training ends.

Every pixel is a start :math:`W(0) = w e_1^\top`. Its colour is the locally optimal direction that training ended in.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import TokenData
from attsvm.theory import Trial, map_basins

tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
data = TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), labels=np.ones(2))
trial = Trial.of(data, np.array([1.0, 3.5]))
side = np.linspace(-6, 6, 41)
starts = np.zeros((len(side) ** 2, 2, 2))
starts[:, 0, 0], starts[:, 1, 0] = (axis.ravel() for axis in np.meshgrid(side, side))
basins = map_basins(trial, starts, steps=2000)
print("directions:", [direction.selected.tolist() for direction in basins.landscape.directions])
print("shares, the last for none of them:", basins.share.round(3))

fig, ax = plt.subplots(figsize=(4.6, 4), layout="constrained")
ax.pcolormesh(side, side, basins.destination.reshape(len(side), -1), cmap="cividis")
for direction in basins.landscape.directions:
    w = np.asarray(direction.W)[:, 0]
    ax.plot(*np.outer(w / np.abs(w).max(), [0, 6]), color="white", lw=2)
ax.set(xlabel="first entry of W(0) z", ylabel="second entry", title="Where training from W(0) ends")
