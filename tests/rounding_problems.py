"""Problems at the edge of rounding, and whether exact arithmetic bears out what is claimed of them.

Tokens a rounding away from the hull of others, near duplicates of a selected token, and ties that agree but for an ulp.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from attsvm import SelectionProblem, Solution, Status
from problems import FAMILIES

TOL = 1e-9


def near_duplicates(seed: int) -> SelectionProblem:
    """planted (4, 5, 4) with one rejected token at a relative distance of 1e-8 to 1e-13 from its selected one."""
    rng = np.random.default_rng([seed, 4, 5, 4])
    planted = FAMILIES["planted"].make(rng, 4, 5, 4)
    tokens = planted.tokens.copy()
    i = int(rng.integers(4))
    t = (int(planted.reference[i]) + 1) % 5
    tokens[i, t] = tokens[i, planted.reference[i]] + 10.0 ** -rng.uniform(8, 13) * rng.standard_normal(4)
    return SelectionProblem(tokens, planted.queries, planted.reference)


def ulp_ties(seed: int) -> SelectionProblem:
    """Two selected tokens of one query, equal but for the last digit of one entry; decimals, as people type them."""
    rng = np.random.default_rng([seed, 11])
    d = int(rng.integers(1, 4))
    tokens, queries = rng.integers(-200, 200, (2, 3, d)) / 100, rng.integers(1, 100, (2, d)) / 100
    entry = int(rng.integers(d))
    tokens[0, 1] = tokens[0, 0]
    tokens[0, 1, entry] = np.nextafter(tokens[0, 0, entry], 9.0)
    return SelectionProblem(tokens, queries, np.array([[True, True, False], [True, False, False]]))


def near_the_hull(seed: int) -> SelectionProblem:
    """One query; the selected token lies 1e-14 to 1e-17 of their distance off the line between the two others."""
    rng = np.random.default_rng([seed, 17])
    ends, weight = rng.standard_normal((2, 2)), rng.uniform(0.1, 0.9)
    normal = np.array([ends[0, 1] - ends[1, 1], ends[1, 0] - ends[0, 0]])
    selected = weight * ends[0] + (1 - weight) * ends[1] + 10.0 ** -rng.uniform(14, 17) * normal
    return SelectionProblem(np.vstack([selected, ends])[None], rng.standard_normal((1, 2)), [0])


def feasible_by_hand(problem: SelectionProblem) -> bool:
    """Two differences in the plane have a common side unless they are opposite multiples of one another."""
    x = [[Fraction(float(v)) for v in token] for token in problem.tokens[0]]
    (a, b), (c, e) = ([x[0][j] - x[t][j] for j in range(2)] for t in (1, 2))
    return (a * e != b * c) or (a * c + b * e > 0)


def check_claim(solution: Solution) -> None:
    """The status against exact arithmetic on the data, W and the multipliers."""
    assert solution.gap >= 0
    if solution.status is Status.OPTIMAL:
        proof = solution.verify(exact=True)
        assert proof, proof.statement
        assert proof.gap <= TOL
        assert solution.lower_bound <= proof.high
        assert proof.low <= solution.certified.upper_bound
        assert solution.verify(), solution.verify().statement
    elif solution.status is Status.INFEASIBLE:
        assert solution.verify(exact=True), solution
