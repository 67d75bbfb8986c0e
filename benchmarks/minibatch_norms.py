"""Shares of the largest margin under Adam and Signum on batches of 1, 2, 5 and 10 out of 10 samples.

    OMP_NUM_THREADS=1 python benchmarks/minibatch_norms.py

The predictions below were committed before the first run. Steps decay like 1/sqrt(k). The momentum is 0.9 for Adam and
0.99 for Signum. beta2 is 0.99: its memory is ten epochs of single samples, and short compared with the time in which
the loss changes. The scales of coordinates, from 0.3 to 3, distinguish the norms. Shares are means over eight
instances; intervals of limits are computed as in the atlas.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attsvm import TokenData, solve, train
from attsvm.core.norms import Mahalanobis
from attsvm.training.optimisers.adaptive import Adam
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.momentum import Signum
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.beyond.per_sample_adam import binary_problem, fixed_point, scales

N, D, INSTANCES = 10, 20, 8
MARKS = (100, 316, 1000, 3162, 10_000)
OPTIMISERS: dict[str, Optimizer] = {
    "Adam": Adam(0.02, "sqrt", betas=(0.9, 0.99)),
    "Signum": Signum(0.02, "sqrt", momentum=0.99),
}
# Predicted norm with the largest share at the end, whose limit may be 1; the other seven have smaller shares.
PREDICTIONS = {
    ("Adam", 1): "fixed point, b = 1",  # arXiv 2510.26303, for beta2 -> 1
    ("Adam", 2): "fixed point, b = 2",  # our extension
    ("Adam", 5): "fixed point, b = 5",  # our extension
    ("Adam", 10): "max",  # arXiv 2406.10650
    ("Signum", 1): "max",  # arXiv 2510.26303, for a momentum near 1
    ("Signum", 2): "max",
    ("Signum", 5): "max",
    ("Signum", 10): "max",  # arXiv 2502.04664
}


def inputs(seed: int) -> np.ndarray:
    """Draw inputs times labels (N, D); they are separable, because there are fewer samples than coordinates."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((N, D)) * np.exp(rng.uniform(np.log(0.3), np.log(3), D))


def norms_of(Z: np.ndarray, seed: int) -> dict[str, Mahalanobis | str | float]:
    """Eight norms; "other order" and "equal weights" have the form of the fixed point and other scales."""
    norms: dict[str, Mahalanobis | str | float] = {}
    for batch in (1, 2, 5):
        norms[f"fixed point, b = {batch}"], weights, residual = fixed_point(Z, batch)
        if residual > 1e-6:
            raise ArithmeticError(f"the fixed point of seed {seed}, b = {batch}, has a residual of {residual:.1e}")
        if batch == 1:
            own = np.random.default_rng(seed).permutation(scales(Z, weights))
            norms["other order"] = Mahalanobis(A=np.diag(own))
    norms["equal weights"] = Mahalanobis(A=np.diag(scales(Z, np.full(N, 1 / N))))
    return norms | {"frobenius": "frobenius", "l_3": 3.0, "max": "max"}


def runs() -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Yield the shares (INSTANCES, records) by norm, for every optimiser and batch."""
    Zs = np.stack([inputs(seed) for seed in range(INSTANCES)])
    tokens = np.stack([Zs, np.zeros_like(Zs)], axis=2)  # (B, N, 2, D)
    values = np.broadcast_to([[1.0], [0.0]], (INSTANCES, N, 2, 1))
    data = TokenData(tokens, np.ones((INSTANCES, N, 1)), np.ones((INSTANCES, N)), values=values)
    solutions = [
        {name: solve(binary_problem(Z), norm, tol=1e-6) for name, norm in norms_of(Z, seed).items()}
        for seed, Z in enumerate(Zs)
    ]
    for name, batch in PREDICTIONS:
        trace = train(
            data, [1.0], loss="log", optimizer=OPTIMISERS[name], steps=MARKS[-1], record_every=list(MARKS),
            batch_size=batch,
        )  # fmt: skip
        W = np.asarray(trace.W)[:, -len(MARKS) :]  # (B, records, D, 1)
        shares = {
            norm: np.array(
                [
                    [(Z @ one).min() / each[norm].norm.value(one) * each[norm].objective for one in matrices]
                    for Z, matrices, each in zip(Zs, W, solutions, strict=True)
                ]
            )
            for norm in solutions[0]
        }
        yield name, batch, shares


def main() -> None:
    """Print the share at the end and the interval of the limit, by norm, for every optimiser and batch."""
    for name, batch, shares in runs():
        print(f"{name}, batches of {batch}: predicted {PREDICTIONS[name, batch]}", flush=True)
        for norm, curves in sorted(shares.items(), key=lambda pair: -pair[1][:, -1].mean()):
            low, high = limit_interval(curves)
            leads = sum(curves[i, -1] == max(one[i, -1] for one in shares.values()) for i in range(INSTANCES))
            print(f"  {norm:<20} {curves[:, -1].mean():.4f}  limit {low:.4f} to {high:.4f}  leads in {leads}")


if __name__ == "__main__":
    main()
