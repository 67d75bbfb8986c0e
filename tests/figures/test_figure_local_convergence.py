"""Figure 7: each parameterisation converges to the SVM of its own norm; published arithmetic stops doing so."""

import numpy as np

from attsvm.experiments.figures.local_convergence import Config
from figure_trials import check_report, run


def test_each_to_its_own_svm():
    cells = [Config(p, numerics, steps=2000, trials=25) for p in ("W", "KQ") for numerics in ("exact", "published")]
    rows = run("local-convergence", *cells)
    found = check_report("local-convergence", rows)
    for row in rows:
        own, other = ("frobenius", "nuclear") if row["parameterization"] == "W" else ("nuclear", "frobenius")
        assert row[own][-1] > row[other][-1]
    assert not [q for q, v in found.items() if v.verdict == "differs" and "step 2000" in q]


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
