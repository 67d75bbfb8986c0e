"""Draw docs/pictures/functional.svg: gradient errors by margin and precision. About a minute.

python docs/pictures/functional.py
"""

import importlib.util
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

mpl.use("agg")
import matplotlib.pyplot as plt

mpl.rcParams["svg.hashsalt"] = "functional"
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "functional_accuracy.py"
COLOURS = {"softmax": "#d55e00", "SDPA": "#e69f00", "exact_attention": "#0072b2"}
MARGINS = {
    torch.float64: (1, 5, 10, 15, 20, 25, 30, 34, 38, 50, 100, 200, 400, 600),
    torch.float32: (1, 3, 5, 8, 10, 13, 15, 18, 25, 40, 60, 80),
    torch.bfloat16: (1, 2, 3, 5, 8, 12, 20, 40, 60, 80),
}

spec = importlib.util.spec_from_file_location("functional_accuracy", SCRIPT)
assert spec is not None
assert spec.loader is not None
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
for axes, (dtype, margins) in zip(panels, MARGINS.items(), strict=True):
    table = benchmark.errors(margins, (dtype,), 7)
    for name, colour in COLOURS.items():
        axes.semilogy(
            margins, [min(table[name, dtype, m], 10.0) for m in margins], "o-", color=colour, ms=3, label=name
        )
    eps = benchmark.EPS[dtype]
    axes.axvline(-np.log(eps), color="#777777", lw=0.8, ls="--")
    axes.text(-np.log(eps), 3e-17, "  −log ε", color="#777777", fontsize=8)
    axes.set(xscale="log", xlabel="margin of the top key", title=str(dtype).removeprefix("torch."), ylim=(1e-17, 20))
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("relative error of the query gradient")
panels[0].legend(frameon=False, fontsize=8, loc="center left")
figure.savefig(Path(__file__).with_suffix(".svg"))
