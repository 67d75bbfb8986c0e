"""Why spectral descent, column descent and Muon on K and Q miss the norm that was predicted: step sizes, or the start.

    OMP_NUM_THREADS=1 python benchmarks/factor_steps.py

Both cells of descent have steps of constant length. K and Q then grow like k, so a step changes their product W by a
length that grows like k as well. The explanation: such steps are too long for the loss to be smooth along them, and W
goes back and forth between few constraints. Steps of k^-3/4 let K and Q grow like k^1/4 and change W by lengths of
k^-1/2. If the explanation holds, the share in the predicted norm rises over the horizons under these steps, and ends
higher than under constant ones. The rival explanations keep the constant steps: shorter steps, from the same start, and
a start a tenth as large. Predictions, written before the first run: decaying steps end above 0.95 and rise in both
cells; the small start changes the share by less than 0.03; steps a tenth as long are better than the atlas's and fall
later. Muon has steps of k^-1/2 in the atlas, which change W by a constant length. Predicted, before its run: under
steps of k^-3/4 it rises too, and ends above 0.9.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attsvm import train
from attsvm.core.norms import get_norm
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.momentum import Muon
from attsvm.training.optimisers.steepest import AxisDescent, SpectralDescent
from attsvm_paper.beyond.atlas_models import Sizes, margin, problem_of, smallest_norms, training_set
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.published.instances import start_seeds

SIZES = Sizes("factors", 6, 6, 8)
INSTANCES = 8
MARKS = (100, 316, 1000, 3162, 10_000)
NORMS = ("spectral", "frobenius", "nuclear")


def decaying(k: np.ndarray) -> np.ndarray:
    """Return k^-3/4."""
    return k**-0.75


# Optimiser, and the factor by which the start is scaled.
RUNS: dict[str, tuple[Optimizer, float]] = {
    "spectral, as in the atlas": (SpectralDescent(0.1), 1.0),
    "spectral, k^-3/4": (SpectralDescent(2.0, decaying), 1.0),
    "spectral, a tenth of the step": (SpectralDescent(0.01), 1.0),
    "spectral, a tenth of the start": (SpectralDescent(0.1), 0.1),
    "columns, as in the atlas": (AxisDescent(0.1, axis="columns"), 1.0),
    "columns, k^-3/4": (AxisDescent(2.0, decaying, axis="columns"), 1.0),
    "columns, a tenth of the step": (AxisDescent(0.01, axis="columns"), 1.0),
    "columns, a tenth of the start": (AxisDescent(0.1, axis="columns"), 0.1),
    "Muon, k^-3/4": (Muon(2.0, decaying), 1.0),
}


def shares(optimizer: Optimizer, scale: float) -> dict[str, np.ndarray]:
    """Train all instances, and return the shares (INSTANCES, records) by norm."""
    seeds = np.arange(INSTANCES)
    data, starts = training_set(seeds, SIZES), start_seeds(seeds)
    first = train(data.data, data.head, parameterization="KQ", steps=0, seed=starts)
    trace = train(
        data.data, data.head, loss=data.loss, optimizer=optimizer, parameterization="KQ", steps=MARKS[-1],
        record_every=list(MARKS), init=tuple(scale * np.asarray(factor)[:, 0] for factor in (first.K, first.Q)),
    )  # fmt: skip
    selected = trace.attention.argmax(-1)  # (B, records, n)
    found = {name: np.zeros((INSTANCES, len(MARKS))) for name in NORMS}
    for b in range(INSTANCES):
        for record in range(len(MARKS)):
            W, tops = trace.W[b, record + 1], selected[b, record + 1]
            lead, bounds = margin(problem_of(b, SIZES, tops), W), smallest_norms(b, SIZES, tops)
            for name in NORMS:
                found[name][b, record] = lead / get_norm(name).value(W) * np.mean(bounds[name])
    return found


def runs() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Give the shares of each run."""
    for name, (optimizer, scale) in RUNS.items():
        yield name, shares(optimizer, scale)


def main() -> None:
    """Print mean shares at the horizons, and the interval of the limit, by run and norm."""
    for name, found in runs():
        print(name, flush=True)
        for norm, curves in found.items():
            low, high = limit_interval(curves)
            print(f"  {norm:<10} {curves.mean(0).round(3)}  limit {low:.4f} to {high:.4f}", flush=True)


if __name__ == "__main__":
    main()
