"""Figure 6: the published probabilities are those of instances with a score gap, and the joint test has power."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attsvm_paper.figures import global_probability
from attsvm_paper.figures.global_probability import GAP, Config, points
from attsvm_paper.judging.joint import joint_test
from figure_trials import check_report, run

DIMENSIONS = (5, 10, 15)


pytestmark = pytest.mark.slow  # the tests share trainings


@pytest.fixture(scope="module")
def rows():
    cells = [Config(20, 5, d, p, steps=400, trials=60) for p in ("W", "KQ") for d in DIMENSIONS]
    return run("global-probability", *cells)


def test_the_figure_agrees_and_notices_what_is_changed(rows):
    (test,) = global_probability.joint(rows)
    assert test.verdict in ("agrees", "too weak to tell")
    assert test.values == 2 * len(DIMENSIONS)
    power = {one.alternative: one.power for one in test.powers}
    assert power["d at the next grid value (5 further)"] > 0.99
    assert not [v for v in check_report("global-probability", rows).values() if v.verdict == "differs"]


def test_mutants_differ(rows):
    """The protocol with d at the next grid value, with W and (K, Q) exchanged, and without a score gap."""

    def mutant(change):
        mutants = points([row | change(row) for row in rows])
        test = joint_test("global-probability", "Fig. 6", mutants)
        assert test is not None
        return test

    following = dict(pairwise(DIMENSIONS))
    assert mutant(lambda row: {"d": following.get(row["d"], 20)}).verdict == "differs"
    # With few trials the exchange is noticed less surely than the shift: the power says so, and is not zero.
    (test,) = global_probability.joint(rows)
    assert {one.alternative: one.power for one in test.powers}["W and (K, Q) swapped"] > 0.05
    without = run("global-probability", Config(20, 5, 15, gap=0.0, steps=400, trials=60))
    assert without[0]["gap"] == 0
    open_ = joint_test("global-probability", "Fig. 6", points([row | {"gap": GAP} for row in without]))
    assert open_ is not None
    assert open_.verdict == "differs"
    verdicts = check_report("global-probability", without)
    assert {v.verdict for v in verdicts.values()} == {"measured"}
