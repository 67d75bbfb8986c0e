"""Draw docs/pictures/failures.svg: the five failure signatures, one instance each. About ten seconds.

python docs/pictures/failures.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import Status, TokenData, correlation, theory, train
from attsvm.data.synthetic import random_data
from attsvm.nn.heads import LambdaHead

mpl.rcParams["svg.hashsalt"] = "failures"
BLUE, ORANGE, RED, GREY = "#0072b2", "#e69f00", "#d55e00", "#777777"
figure, (local, order, shared, precision, infeasible) = plt.subplots(1, 5, figsize=(15, 3.2), layout="constrained")

two = TokenData(np.array([[[1.0, 0], [0, 0]], [[-2, 1], [0, 0]]]), np.array([[1.0, 0], [1, 0]]), [1, 1])
svm = np.array([[1.0, 0], [3, 0]])
for start, colour in ((0.0, BLUE), (4.0, RED)):
    trace = train(two, [1.0, 3.5], steps=1000, init=np.array([[start, 0], [0, 0]]), record_every=5)
    local.plot(trace.step[1:], correlation(trace.W[1:], svm), color=colour, label=f"W(0) = {start:g} e₁e₁ᵀ")
local.set(title="LOCAL", xlabel="step", ylabel="correlation with the SVM", ylim=(0, 1.05))
local.legend(frameon=False, fontsize=8, loc="center right")

data = TokenData(np.eye(4)[None], [[1.0]], [1.0])
trace = train(
    data, LambdaHead(np.array([1.0, 0.9, 0.2, 0.1]), 0.3), loss="correlation", optimizer="gd", steps=400, record_every=4
)
order.plot(trace.step, trace.attention[:, 0])
order.set(title="ORDER", xlabel="step", ylabel="attention of four tokens, λ-head", ylim=(0, 1.05))

line = TokenData(np.array([[[-1.0], [0.0], [1.0]]] * 2), np.ones((2, 1)), np.array([1.0, -1.0]))
trace = train(line, [1.0], optimizer="gd", lr=0.5, steps=200, init=np.array([[2.0]]), record_every=2)
shared.plot(trace.step, trace.attention[:, 0], label=["token 1", "token 2", "token 3"])
shared.set(title="NOT_SPARSE", xlabel="step", ylabel="attention, norm stays finite", ylim=(0, 1.05))

data, v = random_data(None, 6, 8, 10, gap=0.1, seed=3)
for numerics, colour in (("exact", BLUE), ("autograd", RED)):
    trace = train(data, v, steps=5000, record_every=50, numerics=numerics)
    trial = theory.Trial.of(data, v)
    locality = theory.local_optimality(trial, train(data, v, steps=5000).selected)
    precision.loglog(trace.step[1:], 1 - correlation(trace.W[1:], locality.W), color=colour, label=numerics)
precision.set(title="PRECISION", xlabel="step", ylabel="1 − correlation with the SVM")
precision.legend(frameon=False, fontsize=8)

dimensions, trials = (2, 3, 4, 5, 6), 60
for (n, T), colour in (((5, 5), BLUE), ((10, 5), ORANGE), ((15, 5), RED)):
    shares = []
    for d in dimensions:
        data, v = random_data(trials, n, T, d, seed=d)
        statuses = [theory.Trial.of(data[j], v[j]).optimal_solution.status for j in range(trials)]
        shares.append(np.mean([status is Status.INFEASIBLE for status in statuses]))
    bars = 1.96 * np.sqrt(np.array(shares) * (1 - np.array(shares)) / trials)
    infeasible.errorbar(dimensions, shares, bars, color=colour, marker="o", ms=3, lw=1, label=f"n = {n}, T = {T}")
infeasible.set(title="INFEASIBLE", xlabel="d", ylabel="share proved infeasible", ylim=(-0.02, 1.05))
infeasible.legend(frameon=False, fontsize=8)
for axes in (local, order, shared, precision, infeasible):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"))
