r"""
An optimiser and its norm
=========================

Steepest descent in a norm corresponds to the max-margin problem in that norm.

``margin_report`` measures the share of the largest margin that a trained W reaches in each norm, with certified
bounds.
"""

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, margin_report, train
from attsvm.data.synthetic import random_data

data, v = random_data(None, n=4, T=5, d=8, gap=0.1, seed=1)
names = ("frobenius", "spectral", "max")
fig, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained", sharey=True)
runs = {"normalized_gd": 20_000, "spectral": 8_000, "sign": 20_000}  # steps
for ax, (optimizer, steps) in zip(axes, runs.items(), strict=True):
    trace = train(data, v, optimizer=optimizer, steps=steps, schedule="sqrt")
    report = margin_report(trace.W[-1], SelectionProblem(data.tokens, data.queries, np.asarray(trace.selected)), names)
    shares = [report[name].share for name in names]
    ax.barh(names, shares, color=["#0072b2" if name == report.nearest else "0.75" for name in names])
    ax.set(xlim=(0, 1.02), title=optimizer, xlabel="share of the largest margin")
    print(f"{optimizer}: {report.sentence}")
