"""The main job on real images: what the project promises of it, at a fraction of the default's steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attsvm.data.digits import digits
from attsvm.platform.threads import one_thread
from attsvm.study import Settings
from attsvm.study.results import Run, Setup
from attsvm.study.run import prepare, train_and_compare, train_in
from attsvm.study.watch import Watch

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # the tests share two trainings of digits


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings(steps=4000)


@pytest.fixture(scope="module")
def setup(settings: Settings) -> Setup:
    return prepare(digits(), settings)


@pytest.fixture(scope="module")
def runs(setup: Setup, settings: Settings) -> dict[str, Run]:
    from attsvm.study.run import STAGES

    with one_thread():
        return {name: train_and_compare(setup, settings, name, Watch(None, STAGES)) for name in ("W", "KQ")}


@pytest.mark.parametrize("name", ["W", "KQ"])
def test_training_arrives_at_the_svm_of_its_realised_tokens(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.correlation is not None
    assert run.correlation >= 0.98
    assert {control.key for control in run.controls} == {"shuffled", "hebbian", "optimal"}
    for control in run.controls:
        assert control.coincides or control.final < run.correlation - 0.2, control.key
    other = "nuclear" if name == "W" else "frobenius"
    assert run.curves[other][-1] < run.correlation


@pytest.mark.parametrize("name", ["W", "KQ"])
def test_every_solution_is_certified(runs: dict[str, Run], name: str) -> None:
    for solution in runs[name].solutions.values():
        assert solution.status.name == "OPTIMAL"
        assert solution.gap <= 1e-9
        assert solution.problem.margins(solution.W)[solution.problem.rejected].min() >= 1 - 1e-9


def test_the_page_says_where_the_controls_end(runs: dict[str, Run]) -> None:
    """At five times these steps the correlations differ by some hundredths."""
    page = " ".join((ROOT / "docs" / "study.md").read_text(encoding="utf-8").split())
    ((other, other_kq, end, shuffled),) = re.findall(
        r"ends at ([\d.]+) and ([\d.]+)\. The mean difference .* ends at ([\d.]+)\. "
        r"The SVM of shuffled selections stays at (\d)\.",
        page,
    )
    assert runs["W"].curves["nuclear"][-1] == pytest.approx(float(other), abs=0.02)
    assert runs["KQ"].curves["frobenius"][-1] == pytest.approx(float(other_kq), abs=0.03)
    finals = {control.key: control.final for control in runs["W"].controls}
    assert finals["hebbian"] == pytest.approx(float(end), abs=0.06)
    assert finals["shuffled"] == pytest.approx(float(shuffled), abs=0.1)


def test_attention_ends_on_one_patch_an_image(runs: dict[str, Run]) -> None:
    for run in runs.values():
        assert (run.concentration >= 0.99).all()


def test_plain_float32_autograd_drifts_off_and_the_exact_gradient_does_not(
    runs: dict[str, Run], setup: Setup, settings: Settings
) -> None:
    from attsvm.study.run import STAGES

    ends = {}
    with one_thread():
        for numerics in ("exact", "autograd"):
            shorter = Settings(steps=1500)
            run = train_in(setup, shorter, "float32", numerics, runs["W"], Watch(None, STAGES))
            ends[numerics] = run.curve[-1]
    assert ends["exact"] >= 0.98
    assert ends["autograd"] < 0.5
