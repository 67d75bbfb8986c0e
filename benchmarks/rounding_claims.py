"""Statuses of problems at the edge of rounding, with each OPTIMAL and INFEASIBLE checked in exact arithmetic.

Families of tests/rounding_problems.py: tokens 1e-14 to 1e-17 off the line between two others, near duplicates of a
selected token, ties that differ by an ulp. tests/reference/test_rounding_of_claims.py runs a part.

    python benchmarks/rounding_claims.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attsvm import SelectionProblem, solve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from rounding_problems import TOL, check_claim, feasible_by_hand, near_duplicates, near_the_hull, ulp_ties

FAMILIES: dict[str, tuple[Callable[[int], SelectionProblem], int]] = {
    "near the hull": (near_the_hull, 500),
    "near duplicates": (near_duplicates, 200),
    "ties but for an ulp": (ulp_ties, 2500),
}


def main() -> None:
    """Print a line per family, and the claims that exact arithmetic refutes."""
    for name, (make, count) in FAMILIES.items():
        statuses: Counter[str] = Counter()
        unproven = []
        for seed in range(count):
            problem = make(seed)
            solution = solve(problem, tol=TOL)
            statuses[solution.status.name] += 1
            if make is near_the_hull and not feasible_by_hand(problem):
                statuses["without a W in exact arithmetic"] += 1
            try:
                check_claim(solution)
            except AssertionError as error:
                unproven.append(f"  seed {seed}: {error}\n    {solution.sentence}")
        text = ", ".join(f"{number} {status}" for status, number in statuses.items())
        print(f"{name}, {count}: {text}; {len(unproven)} not borne out", *unproven, sep="\n", flush=True)


if __name__ == "__main__":
    main()
