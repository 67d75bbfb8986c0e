"""Draw docs/pictures/paths.svg: regularisation paths in seven norms, local paths, and a head that mixes. Two minutes.

python docs/pictures/paths.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import SelectionProblem, TokenData, solve
from attsvm.data.synthetic import random_data
from attsvm.functional import sparsemax
from attsvm.nn.heads import LambdaHead
from attsvm.training import regularization_path

mpl.rcParams["svg.hashsalt"] = "paths"
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000"]

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")

data, v = random_data(None, 3, 4, 4, gap=0.1, seed=9)
scores = data.labels[:, None] * (data.tokens @ v)
selected = scores.argmax(-1)
radii = np.geomspace(1, 3000, 15)
for norm, colour in zip(("frobenius", "nuclear", "spectral", "max", 1, 1.75, 3), COLOURS, strict=True):
    path = regularization_path(data, v, radii, norm=norm)
    solution = solve(SelectionProblem(data.tokens, data.queries, selected), norm, tol=1e-12)
    label = norm if isinstance(norm, str) else f"$\\ell_{{{norm}}}$"
    distance = path.distance(solution)
    left.loglog(radii[distance > 1e-4], distance[distance > 1e-4], "o-", color=colour, ms=3, lw=1, label=label)
left.loglog(radii, 30 / radii, color="#777777", lw=0.8, ls="--")
left.text(40, 1.2, "1/R", color="#777777")
left.set(xlabel="radius R", ylabel="distance of W/‖W‖ to the solutions", title="Global paths, seven norms")
left.legend(frameon=False, fontsize=7, ncols=2)

data, v = random_data(None, 3, 4, 5, gap=0.1, seed=6)
scores = data.labels[:, None] * (data.tokens @ v)
radii = np.geomspace(300, 300_000, 10)
count = 0
for selection in map(np.array, np.ndindex(4, 4, 4)):
    solution = solve(SelectionProblem(data.tokens, data.queries, selection), tol=1e-12)
    if not np.isfinite(solution.objective):
        continue
    ahead = np.take_along_axis(scores, selection[:, None], 1) - scores
    if not (ahead[np.asarray(solution.support)] > 0).all():
        continue
    best = bool((selection == scores.argmax(-1)).all())
    options = {} if best else {"tokens": selection, "epsilon": 0.005, "init": solution.W}
    path = regularization_path(data, v, radii, **options)
    colour = "#000000" if best else COLOURS[count % 6]
    middle.loglog(radii, path.distance(solution), "o-", ms=3, lw=1, color=colour, label=f"tokens {selection.tolist()}")
    count += not best
middle.set(xlabel="radius R", ylabel="distance to its own SVM solution", title="One global and the local paths")
middle.legend(frameon=False, fontsize=7)

rng = np.random.default_rng(5)
tokens = np.linalg.qr(rng.standard_normal((10, 10)))[0][None]
v, query = (x / np.linalg.norm(x) for x in rng.standard_normal((2, 10)))
radii = np.geomspace(2, 120, 16)
for lam, colour in ((0.1, COLOURS[0]), (0.3, COLOURS[1]), (0.7, COLOURS[2]), (2.0, COLOURS[3])):
    path = regularization_path(TokenData(tokens, query[None], [1.0]), LambdaHead(v, lam), radii, loss="correlation")
    logits = np.einsum("td,rde,e->rt", tokens[0], path.W, query)
    attention = np.exp(logits - logits.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    limit = sparsemax(torch.as_tensor(tokens[0] @ v / (2 * lam))).numpy()
    error = np.abs(attention - limit).max(-1)
    right.semilogy(radii, np.maximum(error, 1e-17), "o-", ms=3, lw=1, color=colour, label=f"λ = {lam}")
right.set(xlabel="radius R", ylabel="largest error of attention", title="λ-head: attention → sparsemax(γ/2λ)")
right.legend(frameon=False, fontsize=8)
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"))
