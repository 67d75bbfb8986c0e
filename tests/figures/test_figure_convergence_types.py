"""Figures 2 and 5: who is global, local or unfinished, and how slack the published B.1 is."""

import pytest

from attsvm import train
from attsvm_paper.figures import convergence_types
from attsvm_paper.figures.convergence_types import STOP_STEP, Config
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.published.instances import draw
from figure_trials import check_report, run

TRIALS = 40
NUMERICS = ("published", "exact")


@pytest.mark.slow
def test_exact_training_ends_at_locally_optimal_selections():
    rows = run("convergence-types", Config(2, trials=TRIALS), Config(20, steps=2000, trials=TRIALS))
    verdicts = check_report("convergence-types", rows)
    # Nearly all runs end at a local optimum where the paper counts 36 %. Without the published runs no cause is shown.
    assert verdicts["local, W, d=2, exact numerics"].low > 0.362
    assert verdicts["local, W, d=2, exact numerics"].verdict == "differs"
    assert verdicts["global, W, d=20, exact numerics"].measured == 1
    strict, slack = verdicts["strict B.1, W, d=20"], verdicts["slack B.1, W, d=20, exact numerics"]
    assert slack.measured == 1
    assert strict.high < slack.low


@pytest.mark.slow
def test_unfinished_runs_are_the_published_not_local_ones():
    rows = run("convergence-types", Config(2, "W", "published", steps=STOP_STEP, trials=2 * TRIALS))
    verdicts = check_report("convergence-types", rows)
    for what in ("not local", "local", "global"):
        assert verdicts[f"{what}, W, d=2, published numerics"].verdict in ("agrees", "too weak to tell")
    unsaturated = sum(not row["saturated"] for row in rows)
    low, high = wilson_interval(unsaturated, len(rows), 0.999)
    assert low < 0.63 < high


def test_the_figure_as_a_whole_is_that_of_unfinished_runs():
    configs = [Config(d, "W", numerics, steps=STOP_STEP, trials=30) for d in (2, 3) for numerics in NUMERICS]
    published, exact = convergence_types.joint(run("convergence-types", *configs))[:2]
    assert published.verdict != "differs"
    # Runs that are not asked whether they have ended are far more often local than the printed ones.
    assert exact.verdict == "differs"


def test_k_and_q_reach_the_nuclear_svm():
    rows = run("convergence-types", Config(10, "KQ", steps=2000, trials=TRIALS // 2))
    assert all(row["local"] for row in rows)
    assert sum(row["correlation"] > 0.9 for row in rows) >= 0.8 * len(rows)


def test_a_run_is_global_if_every_sequence_has_its_best_token(monkeypatch):
    traces = []

    def spy(*given, **options):
        traces.append(train(*given, **options))
        return traces[-1]

    monkeypatch.setattr(convergence_types, "train", spy)
    rows = run("convergence-types", Config(2, steps=100, trials=12))
    (trace,) = traces
    instances = draw([row["seed"] for row in rows], 5, 5, 2, convergence_types.GAP)
    shares = []
    for b, row in enumerate(rows):
        scores = instances.data.labels[b][:, None] * (instances.data.tokens[b] @ instances.v[b])
        shares.append((scores.argmax(-1) == trace.selected[b]).mean())
        assert row["global"] == (shares[-1] == 1)
    # Some runs select some of the best tokens.
    assert any(0 < share < 1 for share in shares)
