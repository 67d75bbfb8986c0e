"""What a study says, in every case it can meet."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attsvm import TokenData
from attsvm.data.dataset import Dataset
from attsvm.report.study import verdict
from attsvm.study import Settings, Study, study
from attsvm.study.results import PrecisionRun
from attsvm.study.verdict import claims, headline, quantities


def data_set(n: int, T: int, d: int, dz: int, *, duplicate: bool = False) -> Dataset:
    rng = np.random.default_rng(3)
    tokens = rng.standard_normal((n, T, d))
    if duplicate:
        tokens[:, 1] = tokens[:, 0]
    labels = np.where(np.arange(n) % 2, 1.0, -1.0)
    return Dataset("data", TokenData(tokens, rng.standard_normal((n, dz)), labels), head=np.ones(d))


@cache
def easy() -> Study:
    """Few sequences in many dimensions: everything the theory says should hold."""
    return study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=2))


def held(found: Study) -> dict[str, bool | None]:
    return {claim.key: claim.holds for claim in claims(found)}


def test_an_easy_problem_confirms_the_theory() -> None:
    holds = held(easy())
    for key in ("feasible", "selects_W", "direction_W", "local_W", "selects_KQ", "direction_KQ", "local_KQ"):
        assert holds[key] is True, key
    assert headline(easy()) == "Trained attention became the max-margin token selector."
    run = easy().runs["W"]
    assert run.correlation is not None
    assert run.correlation > 0.98
    assert 0 < run.settled_at < 600
    assert (np.asarray(run.trace.attention[-1]).argmax(axis=1) == run.selected).all()


def test_a_study_repeats_itself() -> None:
    again = study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=2))
    assert quantities(again) == quantities(easy())
    other = study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=2, seed=1))
    assert quantities(other) != quantities(easy())


def test_an_infeasible_problem_is_called_that() -> None:
    found = study(data_set(6, 3, 4, 3, duplicate=True), Settings(train=6, steps=50))
    assert np.isin(found.setup.optimal, (0, 1)).any()
    sentence = {claim.key: claim.sentence for claim in claims(found)}
    assert held(found)["feasible"] is False
    assert "certificate" in sentence["feasible"]
    assert found.optimal is not None
    assert found.optimal.certificate is not None
    assert found.optimal.certificate.verify()
    if "frobenius" not in found.runs["W"].curves:
        assert held(found)["direction_W"] is None
        assert headline(found) != "Trained attention became the max-margin token selector."
        assert found.precision == ()


def test_one_token_leaves_nothing_to_select() -> None:
    found = study(data_set(4, 1, 3, 2), Settings(steps=20))
    assert headline(found) == "There is nothing to select: no sequence shows more than one token."
    assert held(found)["direction_W"] is None


def test_a_control_as_close_as_the_svm_refutes_the_claim() -> None:
    found = easy()
    run = found.runs["W"]
    close = replace(run.controls[0], curves=np.ones_like(run.controls[0].curves))
    refuted = replace(run, controls=(close,))
    holds = {claim.key: claim.holds for claim in claims(Study(found.settings, found.setup, runs={"W": refuted}))}
    assert holds["direction_W"] is False
    coinciding = replace(run, controls=(replace(close, coincides=True),))
    holds = {claim.key: claim.holds for claim in claims(Study(found.settings, found.setup, runs={"W": coinciding}))}
    assert holds["direction_W"] is True


def test_a_correlation_below_the_threshold_refutes_the_claim() -> None:
    found = easy()
    run = found.runs["W"]
    low = replace(run, curves={norm: curve * 0.97 for norm, curve in run.curves.items()}, controls=())
    short = Study(found.settings, found.setup, runs={"W": low})
    assert held(short)["direction_W"] is False
    assert headline(short) == "Training did not arrive at the max-margin token selector."


def test_a_better_neighbour_refutes_local_optimality() -> None:
    found = easy()
    run = found.runs["W"]
    assert run.locality is not None
    worse = replace(run.locality, violations=run.locality.neighbours)
    short = Study(found.settings, found.setup, runs={"W": replace(run, locality=worse)})
    assert held(short)["local_W"] is False
    sentence = next(claim.sentence for claim in claims(short) if claim.key == "local_W")
    assert "not locally optimal" in sentence


@pytest.mark.parametrize(
    ("plain", "exact", "holds"),
    [((0.9, 0.1), (0.5, 1.0), True), ((0.5, 0.9), (0.5, 1.0), None), ((0.9, 0.1), (1.0, 0.5), False)],
)
def test_precision(plain: tuple[float, float], exact: tuple[float, float], holds: bool | None) -> None:
    found = easy()
    runs = tuple(
        PrecisionRun(dtype, numerics, np.array([1, 10]), np.array(curve), 0.0)
        for dtype, numerics, curve in (("float32", "exact", exact), ("float32", "autograd", plain))
    )
    short = Study(found.settings, found.setup, precision=runs)
    assert held(short)["precision"] is holds


def test_stopping_keeps_what_is_done() -> None:
    for stop_at in ("Asking", "Training W with", "Training K and Q", "Training W again in float64"):
        found = study(
            data_set(8, 4, 12, 8),
            Settings(train=6, steps=200, shuffles=1),
            lambda stage, share, stop_at=stop_at: stage.startswith(stop_at),
        )
        assert not found.complete
        assert ("W" in found.runs) == (stop_at not in ("Asking", "Training W with"))
        assert len(found.precision) == (1 if "float64" in stop_at else 0)
        json.dumps(verdict(found, "command"), allow_nan=False)
        assert headline(found)


def test_stopping_in_the_middle_of_training_compares_what_was_trained() -> None:
    found = study(
        data_set(8, 4, 12, 8),
        Settings(train=6, steps=200, shuffles=1),
        lambda stage, share: stage.startswith("Training W") and share > 0.1,
    )
    run = found.runs["W"]
    assert 0 < run.trace.step[-1] < 200
    assert run.correlation is not None
    assert run.controls == ()


def test_the_json_holds_version_seed_parameters_and_every_number() -> None:
    made = verdict(easy(), "attsvm study data")
    text = json.dumps(made, allow_nan=False)
    assert {"attsvm", "seed", "parameters", "claims", "quantities", "complete", "versions"} <= set(json.loads(text))
    assert made["parameters"]["train"] == 6
    for name in (
        "correlation_W_frobenius",
        "correlation_KQ_nuclear",
        "control_hebbian_W",
        "optimal_gap",
        "rank_W_nuclear",
    ):
        assert isinstance(made["quantities"][name]["value"], (int, float)), name
