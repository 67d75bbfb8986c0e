"""Multiclass max-margin matrices: `solve` compared with cvxpy as papers write it, one constraint per class and input.

The data "centres" are Gaussian clouds around class means three units per axis apart, 50 inputs per class, as in such
papers. "teacher" are Gaussian inputs labelled by a random matrix, which is harder: 340 supports instead of 130. Both
are separable. Both answers are scaled to margin one, and their norms are compared with the certified bound. The time of
cvxpy includes writing the model, compiling and solving it. Ours is the least of a few runs from arrays to certified
solution; a first run, which compiles, does not count.

`--sets` compares `MarginClassifier` with LIBLINEAR's Crammer-Singer classifier (scikit-learn's LinearSVC with its
defaults) on data of scikit-learn. Features are standardised unless `--raw` is given. The table has processor
milliseconds of a fit (least of a few, mean over five folds) and accuracy on held-out folds.

    python benchmarks/multiclass.py --sets iris wine breast_cancer digits [--norms frobenius nuclear] [--raw]
    python benchmarks/multiclass.py [--classes 15] [--dimensions 25] [--inputs 750] [--norms frobenius ...] [--cpu]
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")

import numpy as np  # noqa: E402

from attsvm import SelectionProblem, UnsolvedError, solve  # noqa: E402
from attsvm.core.norms import get_norm  # noqa: E402

REPEATS, FITS = 5, 2
PRICES, TIME_LIMIT = (0.1, 1.0, 100.0), 60.0
SETS = ("iris", "wine", "breast_cancer", "digits")
KINDS = ("centres", "teacher")
NORMS = ("frobenius", "nuclear", "spectral", "max")


def draw(kind: str, inputs: int, dimensions: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw separable inputs (n, d) and labels (n,)."""
    rng = np.random.default_rng(0)
    if kind == "teacher":
        X = rng.standard_normal((inputs, dimensions))
        return X, (X @ rng.standard_normal((dimensions, classes))).argmax(axis=1)
    y = np.arange(inputs) % classes
    return 3.0 * rng.standard_normal((classes, dimensions))[y] + rng.standard_normal((inputs, dimensions)), y


def naive(X: np.ndarray, y: np.ndarray, classes: int, norm: str) -> np.ndarray:
    """Write one constraint per class and input; return W (classes, d)."""
    cp: Any = import_module("cvxpy")
    W = cp.Variable((classes, X.shape[1]))
    constraints = []
    for x, label in zip(X, y, strict=True):
        for c in range(classes):
            if c != label:
                constraints.append((W[label] - W[c]) @ x >= 1)
    measure = {"frobenius": cp.sum_squares, "nuclear": cp.normNuc, "spectral": cp.sigma_max, "max": _largest}[norm]
    cp.Problem(cp.Minimize(measure(W)), constraints).solve(solver=cp.CLARABEL)
    return W.value


def compare_on_sets(names: list[str], norms: list[str], *, raw: bool) -> None:
    """Print a row for each data set, C and classifier."""
    from sklearn import datasets
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    from attsvm import MarginClassifier

    warnings.simplefilter("ignore")  # LIBLINEAR warns of its iteration limit and of multi_class
    print(f"{'data':<14} {'C':>5} {'classifier':<26} {'ms':>8} {'ratio':>6} {'held out':>9}")
    for name in names:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        folds = []
        for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
            scaler = StandardScaler(with_mean=not raw, with_std=not raw).fit(X[train])
            folds.append((scaler.transform(X[train]), y[train], scaler.transform(X[test]), y[test]))
        for C in PRICES:
            models: dict[str, Any] = {"LIBLINEAR": LinearSVC(C=C, multi_class="crammer_singer", random_state=0)}
            for norm in norms:
                for loss in ("hinge", "squared_hinge"):
                    models[f"{norm}, {loss}"] = MarginClassifier(norm, C=C, loss=loss, time_limit=TIME_LIMIT)
            peer = np.nan
            for key, model in models.items():
                milliseconds, accuracy = _fit_folds(model, folds)
                peer = milliseconds if key == "LIBLINEAR" else peer
                ratio = milliseconds / peer
                print(f"{name:<14} {C:5g} {key:<26} {milliseconds:8.1f} {ratio:6.2f} {accuracy:9.4f}", flush=True)


def _fit_folds(model: Any, folds: list[tuple[np.ndarray, ...]]) -> tuple[float, float]:
    """Return mean milliseconds of a fit and mean accuracy; NaN if a fit reaches the time limit."""
    seconds, correct = [], []
    try:
        model.fit(*folds[0][:2])
        for X, y, X_test, y_test in folds:
            least = np.inf
            for _ in range(FITS):
                start = time.process_time()
                model.fit(X, y)
                least = min(least, time.process_time() - start)
            seconds.append(least)
            correct.append(model.score(X_test, y_test))
    except UnsolvedError:
        return np.nan, np.nan
    return 1e3 * float(np.mean(seconds)), float(np.mean(correct))


def _largest(W: Any) -> Any:
    cp: Any = import_module("cvxpy")
    return cp.max(cp.abs(W))


def main() -> None:
    """Print a row for each norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--dimensions", type=int, default=25)
    parser.add_argument("--inputs", type=int, default=750)
    parser.add_argument("--data", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=["frobenius"])
    parser.add_argument("--cpu", action="store_true", help="processor time, for a machine that is not idle")
    parser.add_argument("--sets", nargs="+", choices=SETS, help="data of scikit-learn instead")
    parser.add_argument("--raw", action="store_true", help="features of these as they are")
    options = parser.parse_args()
    if options.sets:
        compare_on_sets(options.sets, options.norms, raw=options.raw)
        return
    clock: Callable[[], float] = time.process_time if options.cpu else time.perf_counter
    print(f"{options.classes} classes, {options.dimensions} dimensions, {options.inputs} inputs")
    print(f"{'data':<8} {'norm':<10} {'cvxpy':>9} {'attsvm':>9} {'ratio':>7} {'gap':>8} {'excess of cvxpy':>16}")
    for kind, norm in ((kind, norm) for kind in options.data for norm in options.norms):
        X, y = draw(kind, options.inputs, options.dimensions, options.classes)
        best = np.inf
        for run in range(REPEATS + 1):
            start = clock()
            problem = SelectionProblem.from_classes(X, y, classes=options.classes)
            solution = solve(problem, norm)
            best = min(best, clock() - start) if run else np.inf
        start = clock()
        W = naive(X, y, options.classes, norm)
        theirs = clock() - start
        smallest = problem.apply(W).min(where=problem.rejected, initial=np.inf)
        excess = get_norm(norm).value(W) / smallest / solution.lower_bound - 1.0
        row = (
            f"{kind:<8} {norm:<10} {theirs:8.2f}s {best:8.4f}s {theirs / best:7.0f} {solution.gap:8.0e} {excess:16.0e}"
        )
        print(row, flush=True)


if __name__ == "__main__":
    main()
