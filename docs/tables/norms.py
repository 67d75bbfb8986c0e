"""Measure the gaps that solutions in the norms of how-to.md reach and write them to norms.inc in this folder.

python docs/tables/norms.py
"""

import sys
from pathlib import Path

import numpy as np

from attsvm import Status, norms, solve

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from problems import FAMILIES

SIZES = 2  # of each family
TOL, TOL_OF_SUMS = 1e-12, 1e-9


def weights(d: int, dz: int) -> np.ndarray:
    return np.random.default_rng([d, dz]).uniform(0.3, 3.0, (d, dz))


def definite(size: int) -> np.ndarray:
    root = np.random.default_rng(size).normal(size=(size, size))
    return root @ root.T + 0.3 * np.eye(size)


ROWS = {
    "`Schatten(1.1)`, `(1.5)`, `(3)`, `(8)`": [lambda d, dz, p=p: norms.Schatten(p) for p in (1.1, 1.5, 3, 8)],
    "`KyFan(2)`": [lambda d, dz: norms.KyFan(2)],
    "`Mixed(2, 1)`, rows": [lambda d, dz: norms.Mixed(2, 1)],
    "`Mixed(2, inf)`, rows": [lambda d, dz: norms.Mixed(2, np.inf)],
    "`Mixed(1, inf)`, rows": [lambda d, dz: norms.Mixed(1, np.inf)],
    "`Mixed(inf, 1)`, columns": [lambda d, dz: norms.Mixed(np.inf, 1, "columns")],
    "`Mixed(1.5, 3)`, columns": [lambda d, dz: norms.Mixed(1.5, 3, "columns")],
    "`Weighted(w, 1)`, `(w, 1.5)`, `(w, inf)`": [
        lambda d, dz, p=p: norms.Weighted(weights(d, dz), p) for p in (1, 1.5, np.inf)
    ],
    "`Mahalanobis(A, B)`, Frobenius and nuclear": [
        lambda d, dz, base=base: norms.Mahalanobis(definite(d), definite(dz), base) for base in ("frobenius", "nuclear")
    ],
    "`Mahalanobis(A, B, Mixed(2, 1))`": [lambda d, dz: norms.Mahalanobis(definite(d), definite(dz), norms.Mixed(2, 1))],
    '`Sum("nuclear", 1)`': [lambda d, dz: norms.Sum("nuclear", 1)],
}


def gaps(make, tol: float) -> list[float]:
    """Gaps of a norm on the feasible instances; a gap that stays open counts as it is."""
    gaps_of = []
    for family in FAMILIES.values():
        for sizes in family.sizes[:SIZES]:
            problem = family.make(np.random.default_rng([0, *sizes]), *sizes)
            solution = solve(problem, make(*problem.shape[2:]), tol=tol)
            if solution.status is not Status.INFEASIBLE and np.isfinite(solution.gap):
                gaps_of.append(solution.gap)
    return gaps_of


def main() -> None:
    lines = ["| norm | instances | median | worst |", "|---|---:|---:|---:|"]
    for name, makers in ROWS.items():
        gaps_of_all = [gap for make in makers for gap in gaps(make, TOL_OF_SUMS if "Sum" in name else TOL)]
        lines.append(f"| {name} | {len(gaps_of_all)} | {np.median(gaps_of_all):.0e} | {max(gaps_of_all):.0e} |")
        print(lines[-1], flush=True)
    Path(__file__).with_suffix(".inc").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
