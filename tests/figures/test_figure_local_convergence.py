"""Figure 7: each parameterisation converges to the SVM of its own norm; published arithmetic stops doing so."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm_paper.figures import local_convergence
from attsvm_paper.figures.local_convergence import PRINTED_END, Config, points
from attsvm_paper.judging.joint import joint_test
from figure_trials import check_report, run

pytestmark = pytest.mark.slow  # the tests share trainings


@pytest.fixture(scope="module")
def rows():
    gaps = (0.1, 0.0)
    cells = [Config(p, "published", gap, steps=PRINTED_END, trials=40) for p in ("W", "KQ") for gap in gaps]
    return run("local-convergence", *cells)


def test_each_to_its_own_svm(rows):
    ends = [row for row in rows if row["gap"]]
    for row in ends:
        own, other = ("frobenius", "nuclear") if row["parameterization"] == "W" else ("nuclear", "frobenius")
        assert row[own][-1] > row[other][-1]
    verdicts = check_report("local-convergence", rows)
    assert verdicts["correlation with the Frobenius SVM, W, iteration 599, published numerics"].verdict == "agrees"


def test_the_caption_exchanges_two_curves(rows):
    """Red in (b) is W with the nuclear SVM, blue in (c) is (K, Q) with the Frobenius one."""
    tests = {test.reading: test for test in local_convergence.joint(rows)}
    notebook = tests["reconstructed: score gap 0.1, curves as the notebook draws them"]
    caption = tests["score gap 0.1, curves as captioned"]
    assert notebook.verdict in ("agrees", "too weak to tell")
    assert caption.verdict == "differs"
    assert notebook.log_likelihood - caption.log_likelihood > 20
    verdicts = check_report("local-convergence", rows)
    early = verdicts["correlation with the nuclear SVM, W, iteration 50, published numerics"]
    assert early.verdict in ("corrected", "differs")
    assert early.key == "Fig. 7c: W, nuclear SVM @ 50"


def test_the_score_gap_is_likelier_than_none(rows):
    tests = {test.reading: test for test in local_convergence.joint(rows)}
    with_gap, open_ = (
        tests[f"{gap}, curves as the notebook draws them"] for gap in ("reconstructed: score gap 0.1", "no score gap")
    )
    assert with_gap.p > open_.p
    power = {one.alternative: one.power for one in with_gap.powers}
    assert power["iteration at the next grid value (100 further)"] > 0.99
    assert power["W and (K, Q) swapped"] > 0.99


def test_mutants_differ(rows):
    """The protocol with iterations at the next grid value, and with W and (K, Q) exchanged."""
    with_gap = [row for row in rows if row["gap"]]
    marks = (100, 200, 300, 400, 500)
    # What is read at iteration k is what training gives 100 later.
    late = [row | {"step": [step - 100 if step - 100 - 1 in marks else -1 for step in row["step"]]} for row in with_gap]
    exchange = [row | {"parameterization": {"W": "KQ", "KQ": "W"}[row["parameterization"]]} for row in with_gap]
    for mutant in (late, exchange):
        test = joint_test("local-convergence", "Fig. 7", points(mutant))
        assert test is not None
        assert test.verdict == "differs"


def test_published_arithmetic_stands_still():
    rows = run("local-convergence", *(Config("W", numerics, trials=4) for numerics in ("exact", "published")))
    exact, published = ([row for row in rows if row["numerics"] == numerics] for numerics in ("exact", "published"))
    error = [np.mean([1 - row["frobenius"][-1] for row in cell]) for cell in (exact, published)]
    assert error[0] < 0.1 * error[1]
    step = exact[0]["step"]
    for a, b in zip(exact, published, strict=True):
        growth = [row["norm"][-1] / row["norm"][step.index(2000)] for row in (a, b)]
        assert growth[0] > 4  # steps of 0.1 from 2000 to 10 000
        assert growth[1] < 2
