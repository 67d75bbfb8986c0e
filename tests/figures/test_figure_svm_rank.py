"""Figure 4: the published ranks count solver noise and infeasible instances."""

from attsvm.experiments.figures.svm_rank import Config
from figure_trials import check_report, run


def test_published_count_and_certified_rank():
    rows = run("svm-rank", Config(15, 5, 15, trials=4), Config(15, 5, 3, trials=4))
    found = check_report("svm-rank", rows)
    certified = found["certified rank, nuclear, n=15, T=5, d=15"]
    counted = found["published count, nuclear, n=15, T=5, d=15"]
    assert certified.verdict == "corrected"
    assert certified.measured <= 7
    assert counted.measured >= 12
    assert counted.verdict == "agrees", counted
    assert found["certified rank, frobenius, n=15, T=5, d=15"].verdict == "agrees"
    for row in rows:
        if row["d"] == 3:
            assert row["infeasible"]
            assert row["frobenius_rank"] is None
            assert row["frobenius_published_count"] == 1
        else:
            # The certificate tells a singular value from zero only if it exceeds sqrt(2 gap).
            assert row["nuclear_gap"] < 1e-12
            assert row["nuclear_rank"] <= row["frobenius_rank"]


def test_splitting_solution_is_near_the_certified_one():
    import numpy as np

    from attsvm.experiments.instances import draw
    from attsvm.experiments.published_solver import splitting_solution

    instances = draw([0, 1, 2], 5, 5, 5)
    solved = instances.solve(instances.optimal, "nuclear")
    for b, problem in enumerate(instances.problems(instances.optimal)):
        errors = [np.linalg.norm(splitting_solution(problem, e) - solved.W[b]) for e in (1e-2, 1e-6)]
        # Residuals bound the error up to the conditioning of the problem, which is far from a thousand here.
        assert errors[1] < 1e-3 * np.linalg.norm(solved.W[b])
        assert errors[1] < errors[0]
