"""Draw equivalence.svg into this folder: training with a concave head against its SVM equivalent."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attsvm import SelectionProblem, TokenData, correlation, solve, svm_equivalent, train
from attsvm.nn.heads import LambdaHead

TRIALS, T, STEPS, LAM = 40, 6, 3000, 0.3

rng = np.random.default_rng(0)
tokens = np.linalg.qr(rng.standard_normal((TRIALS, T, T)))[0][:, None]
queries, v = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in rng.standard_normal((2, TRIALS, T)))
data = TokenData(tokens, queries[:, None], np.ones((TRIALS, 1)))
steps = np.unique(np.geomspace(10, STEPS, 25).astype(int)).tolist()
trace = train(data, LambdaHead(v, LAM), loss="correlation", optimizer="gd", lr=3.0, steps=STEPS, record_every=steps)

curves = {"$W^{fin}+c\\,W^{mm}$": [], "$W^{mm}$ (several tokens)": [], "SVM of one token": []}
counts = []
for j in range(TRIALS):
    end = svm_equivalent(data[j], trace.attention[j, -1], trace.W[j, -1], selected_above=3e-3, masked_below=3e-3)
    one = solve(SelectionProblem(tokens[j], queries[j][None], trace.selected[j]))
    if np.isnan(end.coefficient) or not np.any(end.W_mm):
        continue
    counts.append(int(end.selected.sum()))
    rows = [[], [], []]
    for W in trace.W[j, 1:]:
        size = float((end.W_mm * (W - end.W_fin)).sum() / (end.W_mm**2).sum())
        for row, rival in zip(rows, (end.W_fin + size * end.W_mm, end.W_mm, one.W), strict=True):
            row.append(1 - float(correlation(W, rival)))
    for curve, row in zip(curves.values(), rows, strict=True):
        curve.append(row)
print(f"{len(counts)} of {TRIALS} trials settled; tokens kept {np.mean(counts):.2f} on average")

plt.rcParams.update({"svg.hashsalt": "attsvm", "font.size": 10})
fig, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
for (name, curve), color in zip(curves.items(), ["#0b57a4", "#2a9d5c", "#b3400b"], strict=True):
    mean = np.mean(curve, axis=0)
    low, high = np.quantile(curve, [0.25, 0.75], axis=0)
    ax.plot(trace.step[1:], mean, color=color, label=name)
    ax.fill_between(trace.step[1:], low, high, color=color, alpha=0.18, linewidth=0)
    print(name, f"{mean[-1]:.4f}")
ax.set(xscale="log", yscale="log", xlabel="step of gradient descent", ylabel="1 − correlation with W")
ax.legend(fontsize=9)
fig.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
