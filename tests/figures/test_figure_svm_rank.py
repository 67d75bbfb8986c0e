"""Figure 4: the published ranks count solver noise and infeasible instances."""

import numpy as np
import pytest

from attsvm_paper.figures import svm_rank
from attsvm_paper.figures.svm_rank import Config
from figure_trials import check_report, run

COUNTS = ("ranks counted as published", "certified ranks of feasible instances")


@pytest.mark.slow
def test_published_count_and_certified_rank():
    rows = run("svm-rank", Config(15, 5, 15, trials=6), Config(15, 5, 3, trials=6))
    verdicts = check_report("svm-rank", rows)
    certified = verdicts["certified rank, nuclear, n=15, T=5, d=15"]
    assert certified.verdict in ("corrected", "differs")
    assert certified.measured <= 7
    counts = [row["nuclear_published_count"] for row in rows if row["d"] == 15]
    assert np.mean(counts) >= 12
    assert verdicts["certified rank, frobenius, n=15, T=5, d=15"].verdict == "agrees"
    # Where nothing is feasible the printed mean is made of nothing, and putting that back gives it.
    assert verdicts["certified rank, frobenius, n=15, T=5, d=3"].verdict == "corrected"
    for row in rows:
        if row["d"] == 3:
            assert row["infeasible"]
            assert row["frobenius_rank"] is None
            assert row["frobenius_published_count"] == 1
        else:
            # The certificate tells a singular value from zero only if it exceeds sqrt(2 gap).
            assert row["nuclear_gap"] < 1e-12
            assert row["nuclear_rank"] <= row["frobenius_rank"]


@pytest.mark.slow
def test_the_whole_figure_tells_both_ways_of_counting():
    rows = run("svm-rank", *(Config(n, 5, d, trials=12) for n in (5, 10) for d in (4, 5, 10)))
    tests = {test.reading: test for test in svm_rank.joint(rows)}
    assert all(test.powers for test in tests.values())
    counts, certified = (tests[f"{name}, score gap 0.1"] for name in COUNTS)
    assert counts.verdict != "differs"
    assert certified.verdict == "differs"
    power = {one.alternative: one.power for one in counts.powers}
    assert power["d at the next grid value"] > 0.99
    assert power["certified ranks"] > 0.99


def test_splitting_solution_is_near_the_certified_one():
    from attsvm_paper.published.instances import draw
    from attsvm_paper.published.solver import splitting_solution

    instances = draw([0, 1, 2], 5, 5, 5)
    solutions = instances.solve(instances.optimal, "nuclear")
    for b, problem in enumerate(instances.problems(instances.optimal)):
        errors = [np.linalg.norm(splitting_solution(problem, e) - solutions.W[b]) for e in (1e-2, 1e-6)]
        # Residuals bound the error up to the conditioning of the problem, which is far from a thousand here.
        assert errors[1] < 1e-3 * np.linalg.norm(solutions.W[b])
        assert errors[1] < errors[0]


def test_the_splitting_method_starts_from_zero(monkeypatch):
    from attsvm_paper.published import solver
    from attsvm_paper.published.instances import draw

    monkeypatch.setattr(solver, "LIMIT", 1)
    instances = draw([3], 2, 3, 4)
    (problem,) = instances.problems(instances.optimal)
    tokens, queries = instances.data.tokens[0], instances.data.queries[0]
    A = [
        np.outer(tokens[i, best] - tokens[i, t], queries[i]).ravel()
        for i, best in enumerate(instances.optimal[0])
        for t in range(3)
        if t != best
    ]
    # Of |A W - 1|^2 + 2 |W|^2 the least, since W stands twice in the cone's matrix.
    stacked = np.vstack([A, np.sqrt(2) * np.eye(16)])
    expected = np.linalg.lstsq(stacked, np.r_[np.ones(len(A)), np.zeros(16)], rcond=None)[0]
    np.testing.assert_allclose(solver.splitting_solution(problem).ravel(), expected, rtol=1e-10, atol=1e-12)
