"""What a study says, in every case it can meet."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, Status, TokenData, solve
from attsvm.data.dataset import Dataset
from attsvm.data.table import read_texts
from attsvm.data.text import word_dataset
from attsvm.report.prose import method, tiles
from attsvm.report.study import verdict
from attsvm.study import Settings, Study, study
from attsvm.study.accuracy import accuracies
from attsvm.study.headline import cautions, headline, outcomes
from attsvm.study.intervals import share_interval
from attsvm.study.numbers import quantities
from attsvm.study.results import Accuracy, ControlDirections, PrecisionRun, Run, ShuffledLabels
from attsvm.study.run import prepare
from attsvm.study.spectrum import certified_rank
from attsvm.study.verdict import ALIKE, ARRIVES, MISSES, NEARER, claims, direction_state, nearest_control, needed_steps
from attsvm.study.words import correlation_text, share_text


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
    return study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=3))


def sentence_of(result: Study, key: str) -> str:
    return next(claim.sentence for claim in claims(result) if claim.key == key)


def claims_of(result: Study) -> dict[str, bool | None]:
    return {claim.key: claim.holds for claim in claims(result)}


def test_an_easy_problem_confirms_the_theory() -> None:
    holds = claims_of(easy())
    for key in ("feasible", "selects_W", "direction_W", "local_W", "selects_KQ", "direction_KQ", "local_KQ"):
        assert holds[key] is True, key
    assert headline(easy(), claims(easy())).startswith("Trained attention became the max-margin token selector. ")
    assert outcomes(easy(), claims(easy())) == {"W": "arrives", "KQ": "arrives"}
    run = easy().runs["W"]
    assert run.correlation is not None
    assert run.correlation > 0.98
    assert 0 < run.settled_at < 600
    assert (np.asarray(run.trace.attention[-1]).argmax(axis=1) == run.selected).all()
    best = np.count_nonzero(run.selected == easy().setup.optimal)
    assert sentence_of(easy(), "selects_W").endswith(f"the best-scored one in {best} of 6.")
    assert needed_steps(run) == 6000  # arrived: ten times the steps it took
    assert needed_steps(replace(run, curves={}, trace=replace(run.trace, step=np.array([0])))) == 10


def test_a_run_settles_at_the_record_after_its_last_change() -> None:
    run = easy().runs["W"]
    selected, other = np.eye(2), 1 - np.eye(2)  # (n, T): row i selects token i, or not
    for records, settled in (((other, selected, other, selected, selected), 5), ((selected,) * 5, 0)):
        trace: Any = SimpleNamespace(step=np.array([0, 1, 2, 5, 9]), attention=np.stack(records))
        assert replace(run, selected=np.arange(2), trace=trace).settled_at == settled


def test_a_correlation_is_that_of_the_last_record_and_may_round_above_one() -> None:
    run = with_controls((0.1, False))
    assert replace(run, curves={"frobenius": np.array([0.1, 0.2, 0.3])}).correlation == 0.3
    assert direction_state(replace(run, curves={"frobenius": np.array([0.5, 1 + 2e-16])})) == ARRIVES


@pytest.mark.parametrize(("gap", "text"), [(3e-7, "3×10⁻⁷"), (0.0, "rounding level")])
def test_the_gap_of_the_best_tokens_is_told(gap: float, text: str) -> None:
    optimal = easy().optimal
    assert optimal is not None
    bounds = replace(optimal.certified, lower_bound=1 - gap, upper_bound=1.0)
    result = replace(easy(), optimal=replace(optimal, certified=bounds))
    assert sentence_of(result, "feasible").endswith(f"certified to a relative gap of {text}.")


def test_neighbours_are_counted() -> None:
    """The first sequence has as many neighbours as a case says, and no other has any."""
    result, run = easy(), easy().runs["W"]
    locality = run.locality
    assert locality is not None
    endings = (
        "locally optimal: no other token lies at the margin of the Frobenius SVM.",
        "locally optimal: the one token at the margin of the Frobenius SVM scores lower than the one selected.",
        "locally optimal: all 2 tokens at the margin of the Frobenius SVM score lower than the one selected.",
    )
    for count, ending in enumerate(endings):
        neighbours = np.arange(24).reshape(6, 4) < count
        fixed = replace(run, locality=replace(locality, neighbours=neighbours, violations=np.zeros((6, 4), bool)))
        short = replace(result, runs={"W": fixed})
        assert sentence_of(short, "local_W").endswith(ending)
        values = {name: one["value"] for name, one in quantities(short).items()}
        assert (values["neighbours_W"], values["better_neighbours_W"]) == (count, 0)
        assert values["steps_W"] == run.trace.step[-1]
    unsolved = quantities(replace(result, runs={"W": replace(run, locality=None)}))
    assert not [name for name in unsolved if "neighbours" in name]


def test_ranks_are_lower_equal_or_higher() -> None:
    run = easy().runs["W"]
    low, high = run.solutions["nuclear"], run.solutions["frobenius"]
    assert certified_rank(low) < certified_rank(high)
    for nuclear, frobenius, holds in ((low, high, True), (high, high, None), (high, low, False)):
        swapped = replace(run, solutions={"nuclear": nuclear, "frobenius": frobenius})
        assert claims_of(replace(easy(), runs={"W": swapped}))["rank"] is holds


def test_the_hard_selection_of_an_svm_is_judged_where_there_is_one() -> None:
    rows = {row.key: row for row in accuracies(easy())}
    tokens, v = easy().setup.train.tokens, easy().setup.head.v
    for name, run in easy().runs.items():
        W = run.solutions[run.own].W
        selected = [X[np.argmax(X @ W @ z)] for X, z in zip(tokens.tokens, tokens.queries, strict=True)]
        assert rows[f"{name}_svm"].train == np.mean(tokens.labels * (np.array(selected) @ v) > 0)
    unsolved = replace(easy(), runs={"W": replace(easy().runs["W"], curves={})})
    assert "W_svm" not in {row.key for row in accuracies(unsolved)}


def test_soft_attention_is_judged_at_the_end_of_training() -> None:
    """With the sign of W turned round, attention lies on other tokens."""
    run, train, v = easy().runs["W"], easy().setup.train.tokens, easy().setup.head.v
    last, shares = np.asarray(run.trace.W[-1]), []
    for W in (last, -last):
        attention = softmax(np.einsum("ntd,de,ne->nt", train.tokens, W, train.queries), axis=1)
        shares.append(np.mean(train.labels * np.einsum("nt,ntd,d->n", attention, train.tokens, v) > 0))
        ending = replace(run, trace=replace(run.trace, W=np.stack([-W, W])))
        rows = {row.key: row for row in accuracies(replace(easy(), runs={"W": ending}))}
        assert rows["W"].train == shares[-1]
    assert shares[0] != shares[1]


def test_every_control_is_computed_and_says_if_it_is_the_reference() -> None:
    for run in easy().runs.values():
        controls = {control.key: control for control in run.controls}
        assert set(controls) == {"shuffled", "hebbian", "optimal"}
        assert controls["optimal"].coincides is bool((run.selected == easy().setup.optimal).all())
        assert ("this is the reference itself" in controls["optimal"].note) is controls["optimal"].coincides
        assert len(controls["shuffled"].directions) == 3
    for name in easy().runs:
        # One direction has no spread, so that only shuffles have a limit.
        limits = {key for key in quantities(easy()) if key.startswith("control_") and key.endswith(f"_limit_{name}")}
        assert limits == {f"control_shuffled_limit_{name}"}


def with_controls(*finals: tuple[float, bool]) -> Run:
    """An easy run whose controls end at given correlations; the second of each pair says whether it coincides."""
    run = easy().runs["W"]
    controls = tuple(
        ControlDirections(
            f"{place}", f"control {place}", (run.trace.W[-1],), np.array([[0.0, final]]), coincides=coincides
        )
        for place, (final, coincides) in enumerate(finals)
    )
    return replace(run, controls=controls)


def test_the_nearest_control_is_the_one_that_comes_nearest() -> None:
    nearest = nearest_control(with_controls((0.2, False), (0.7, False), (0.5, False), (0.99, True)))
    assert nearest is not None
    assert nearest.final == 0.7
    assert nearest_control(with_controls((0.99, True))) is None


def test_a_control_that_wins_takes_the_verdict() -> None:
    value = easy().runs["W"].correlation
    assert value is not None
    between = math.cos(math.acos(value) * (1 + NEARER) / 2)  # nearer than a control may come, farther than ours
    assert direction_state(with_controls((0.1, False))) == ARRIVES
    assert direction_state(with_controls((0.1, False), (between, False))) == ALIKE
    assert direction_state(with_controls((0.1, False), ((1 + value) / 2, False))) == MISSES
    assert direction_state(with_controls(((1 + value) / 2, True))) == ARRIVES


@pytest.mark.slow
def test_a_study_repeats_itself() -> None:
    result = study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=3))
    assert quantities(result) == quantities(easy())
    other = study(data_set(8, 4, 12, 8), Settings(train=6, steps=600, shuffles=3, seed=1))
    assert quantities(other) != quantities(easy())


def test_an_infeasible_problem_is_called_that() -> None:
    result = study(data_set(6, 3, 4, 3, duplicate=True), Settings(train=6, steps=50))
    assert np.isin(result.setup.optimal, (0, 1)).any()
    sentence = {claim.key: claim.sentence for claim in claims(result)}
    assert claims_of(result)["feasible"] is False
    assert "certificate" in sentence["feasible"]
    assert result.optimal is not None
    assert result.optimal.certificate is not None
    assert result.optimal.certificate.verify()
    if "frobenius" not in result.runs["W"].curves:
        assert claims_of(result)["direction_W"] is None
        assert "became" not in headline(result, claims(result))
        assert result.precision == ()


def test_one_token_leaves_nothing_to_select() -> None:
    with pytest.raises(ValueError, match="one visible token in every row"):
        study(data_set(4, 1, 3, 2), Settings(steps=20))


def test_a_control_as_close_as_the_svm_refutes_the_claim() -> None:
    result = easy()
    run = result.runs["W"]
    close = replace(run.controls[0], curves=np.ones_like(run.controls[0].curves))
    refuted = replace(run, controls=(close,))
    holds = {claim.key: claim.holds for claim in claims(Study(result.settings, result.setup, runs={"W": refuted}))}
    assert holds["direction_W"] is False
    coinciding = replace(run, controls=(replace(close, coincides=True),))
    holds = {claim.key: claim.holds for claim in claims(Study(result.settings, result.setup, runs={"W": coinciding}))}
    assert holds["direction_W"] is True


def test_a_correlation_below_the_threshold_refutes_the_claim() -> None:
    result = easy()
    run = result.runs["W"]
    low = replace(run, curves={norm: curve * 0.97 for norm, curve in run.curves.items()}, controls=())
    short = Study(result.settings, result.setup, runs={"W": low}, complete=True)
    assert claims_of(short)["direction_W"] is False
    opening = "Training did not arrive at the max-margin token selector."
    assert headline(short, claims(short)) == f"{opening} 1 of {len(claims(short))} claims does not hold."
    remedies = {claim.key: claim.remedy for claim in claims(short)}
    assert "--lr" in remedies["direction_W"]


def test_runs_that_end_differently_are_told_apart() -> None:
    result = easy()
    low = {norm: np.full_like(curve, 0.5) for norm, curve in result.runs["KQ"].curves.items()}
    runs = {"W": result.runs["W"], "KQ": replace(result.runs["KQ"], curves=low, controls=())}
    assert headline(replace(result, runs=runs), claims(replace(result, runs=runs))).startswith(
        "Training W arrived at the max-margin token selector; "
        "training K and Q did not arrive at the max-margin token selector. "
    )


def test_the_headline_counts_the_claims_that_fail() -> None:
    result, everything = easy(), claims(easy())
    for failing in (0, 1, 2):
        given = [replace(claim, holds=place >= failing) for place, claim in enumerate(everything)]
        text = headline(result, given)
        verb = "does" if failing == 1 else "do"
        assert ("claims" in text) is (failing > 0)
        assert not failing or text.endswith(f" {failing} of {len(given)} claims {verb} not hold.")


def test_a_better_neighbour_refutes_local_optimality() -> None:
    result = easy()
    run = result.runs["W"]
    assert run.locality is not None
    worse = replace(run.locality, violations=run.locality.neighbours)
    short = Study(result.settings, result.setup, runs={"W": replace(run, locality=worse)})
    assert claims_of(short)["local_W"] is False
    sentence = next(claim.sentence for claim in claims(short) if claim.key == "local_W")
    assert "not locally optimal" in sentence
    short.complete = True
    assert "not locally optimal" in headline(short, claims(short))


@pytest.mark.parametrize(
    ("plain", "exact", "holds"),
    [((0.9, 0.1), (0.5, 1.0), True), ((0.5, 0.9), (0.5, 1.0), None), ((0.9, 0.1), (1.0, 0.5), False)],
)
def test_precision(plain: tuple[float, float], exact: tuple[float, float], holds: bool | None) -> None:
    result = easy()
    runs = tuple(
        PrecisionRun(dtype, numerics, np.array([1, 10]), np.array(curve), 0.0)
        for dtype, numerics, curve in (("float32", "exact", exact), ("float32", "autograd", plain))
    )
    short = Study(result.settings, result.setup, precision=runs)
    assert claims_of(short)["precision"] is holds
    assert "after 10 steps its correlation" in sentence_of(short, "precision")
    for one in runs:
        alone = Study(result.settings, result.setup, precision=(one,))
        assert claims_of(alone)["precision"] is None
        assert sentence_of(alone, "precision").endswith(f"{correlation_text(float(one.curve[-1]))} in float32.")
        value = quantities(alone)[f"correlation_float32_{one.numerics}"]
        arithmetic = {"exact": "exact gradient", "autograd": "plain autograd"}[one.numerics]
        assert value == {"value": one.curve[-1], "meaning": f"W in float32, {arithmetic}, with the same SVM"}


def test_the_large_numbers_are_those_of_plain_float32_and_of_rows_held_out() -> None:
    ends = {("float64", "autograd"): 0.7, ("float32", "exact"): 0.8, ("float32", "autograd"): 0.3}
    runs = tuple(PrecisionRun(*kind, np.array([1, 10]), np.array([0.9, end]), 0.0) for kind, end in ends.items())
    shown = {tile.label: tile for tile in tiles(replace(easy(), precision=runs))}
    tile = shown["where plain float32 autograd ends"]
    assert (tile.value, tile.note) == (correlation_text(0.3), f"correlation; its best was {correlation_text(0.9)}")
    rows = {row.key: row for row in easy().accuracies}
    tile = shown["of 2 sequences right, test"]
    assert tile.value == share_text(rows["W"].test)
    assert f"uniform attention {share_text(rows['uniform'].test)}" in tile.note
    everything = replace(easy(), setup=replace(easy().setup, test=None), accuracies=(Accuracy("W", "W", 0.75, None),
        Accuracy("uniform", "uniform attention", 0.5, None)))  # fmt: skip
    (tile,) = (tile for tile in tiles(everything) if "right" in tile.label)
    assert (tile.value, tile.label) == (share_text(0.75), "of 6 sequences right, training")


def test_the_method_tells_how_many_tokens_a_row_shows() -> None:
    data = data_set(6, 4, 5, 3)
    mask = np.arange(4) < np.array([[2], [3], [2], [3], [3], [2]])
    some = replace(data, tokens=TokenData(data.tokens.tokens, data.tokens.queries, data.tokens.labels, mask))
    for one, size in ((data, "4 tokens each"), (some, "2 to 3 tokens each")):
        settings = Settings(train=6)
        assert f"nothing is held out; {size}" in dict(method(Study(settings, prepare(one, settings))))["Data"]


def test_stopping_keeps_what_is_done() -> None:
    for stop_at in ("Deciding", "Training W with", "Training K and Q", "Training W again in float64"):
        result = study(
            data_set(8, 4, 12, 8),
            Settings(train=6, steps=200, shuffles=1),
            lambda stage, share, stop_at=stop_at: stage.startswith(stop_at),
        )
        assert not result.complete
        assert ("W" in result.runs) == (stop_at not in ("Deciding", "Training W with"))
        assert len(result.precision) == (1 if "float64" in stop_at else 0)
        content = json.loads(json.dumps(verdict(result, claims(result), "command"), allow_nan=False))
        assert content["stopped_in"].startswith(stop_at)
        assert headline(result, claims(result)).startswith(f"Interrupted while {stop_at[0].lower()}{stop_at[1:]}")
        assert "became" not in headline(result, claims(result))


def test_stopping_in_the_middle_of_training_compares_what_was_trained() -> None:
    result = study(
        data_set(8, 4, 12, 8),
        Settings(train=6, steps=200, shuffles=1),
        lambda stage, share: stage.startswith("Training W") and share > 0.1,
    )
    run = result.runs["W"]
    assert 0 < run.trace.step[-1] < 200
    assert run.correlation is not None
    assert run.controls == ()


def test_a_second_interruption_loses_no_finished_training() -> None:
    def insist(stage: str, share: float) -> bool:
        if stage.startswith("Training K and Q with"):
            raise KeyboardInterrupt
        return False

    result = study(data_set(8, 4, 12, 8), Settings(train=6, steps=200, shuffles=1), insist)
    assert not result.complete
    assert result.stopped_in.startswith("Training K and Q")
    assert result.runs["W"].correlation is not None
    assert result.accuracies


def test_the_json_holds_version_seed_parameters_and_every_number() -> None:
    document = verdict(easy(), claims(easy()), "attsvm study data")
    text = json.dumps(document, allow_nan=False)
    assert {"attsvm", "seed", "parameters", "claims", "quantities", "complete", "versions"} <= set(json.loads(text))
    assert document["parameters"]["train"] == 6
    assert verdict(replace(easy(), seconds=12.34567), claims(easy()), "")["seconds"] == 12.35
    for name in (
        "correlation_W_frobenius",
        "correlation_KQ_nuclear",
        "control_hebbian_W",
        "optimal_gap",
        "rank_W_nuclear",
    ):
        assert isinstance(document["quantities"][name]["value"], (int, float)), name


def random_data(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    tokens = TokenData(rng.standard_normal((n, 5, d)), rng.standard_normal((n, d)), rng.choice([-1.0, 1.0], n))
    return Dataset("random", tokens)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_data_in_two_dimensions_get_no_success(seed: int) -> None:
    """Four weights: controls come near by chance, the best tokens cannot be selected, and nothing can be predicted."""
    result = study(random_data(80, 2, seed), Settings(steps=500, max_steps=500))
    text, holds = headline(result, claims(result)), claims_of(result)
    assert not text.startswith("Trained attention became")
    assert f"{sum(value is False for value in holds.values())} of {len(holds)} claims do not hold." in text
    assert holds["feasible"] is False
    assert holds["predicts_W"] is not True
    for claim in claims(result):
        assert claim.holds is not False or claim.remedy, claim.key


def planted(seed: int) -> Dataset:
    """Forty noise tokens in forty dimensions, and in each sequence one that carries its label and its query."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1.0, 1.0], 120)
    tokens = 0.3 * rng.standard_normal((120, 4, 40))
    tokens[np.arange(120), rng.integers(0, 4, 120), :2] = np.stack([2 * labels, np.full(120, 2.0)], axis=1)
    return Dataset("planted", TokenData(tokens, np.ones((120, 1)), labels))


@pytest.mark.slow
def test_labels_are_told_from_random_labels_by_rows_held_out() -> None:
    settings = Settings(train=60, steps=300, max_steps=300, shuffles=6)
    with_pattern = planted(0)
    random = replace(with_pattern, tokens=replace_labels(with_pattern.tokens, np.random.default_rng(1)))
    real, null = study(with_pattern, settings), study(random, settings)
    assert claims_of(real)["predicts_W"] is True
    assert "On held-out rows it is right in" in headline(real, claims(real))
    assert claims_of(null)["predicts_W"] is False
    assert "predicts held-out rows no better than chance" in headline(null, claims(null))
    for result in (real, null):
        assert "uniform attention" in headline(result, claims(result))
        assert "shuffled labels" in headline(result, claims(result))
        assert len(result.shuffled_labels["W"].test) == 6


def replace_labels(data: TokenData, rng: np.random.Generator) -> TokenData:
    return TokenData(data.tokens, data.queries, rng.permutation(data.labels), data.mask)


def test_a_control_that_comes_near_leaves_the_direction_open() -> None:
    result = easy()
    run = result.runs["W"]
    assert run.correlation is not None
    # Twice the angle of W to its own SVM: nearer than three times, so the two cannot be told apart.
    near = np.cos(2 * np.arccos(run.correlation))
    control = replace(run.controls[-1], curves=np.full_like(run.controls[-1].curves[:1], near), coincides=False)
    assert control.final < run.correlation
    unclear = Study(result.settings, result.setup, runs={"W": replace(run, controls=(control,))}, complete=True)
    assert claims_of(unclear)["direction_W"] is None
    assert f"too near the {control.label} to tell which of the two" in headline(unclear, claims(unclear))
    assert sentence_of(unclear, "direction_W").endswith("too near to tell the two apart.")
    assert "too near" not in sentence_of(result, "direction_W")


def test_no_svm_to_compare_with_is_infeasible_or_inaccurate() -> None:
    result = easy()
    run = result.runs["W"]
    infeasible = solve(SelectionProblem(np.zeros((1, 2, 1)), np.ones((1, 1)), [0]))
    assert infeasible.status is Status.INFEASIBLE
    inaccurate = replace(run.solutions["frobenius"], status=Status.TIME_LIMIT)
    for solution, reason, remedy in (
        (infeasible, "a certificate proves that no matrix selects them all.", ""),
        (inaccurate, "it was not solved accurately", "Allow more time"),
    ):
        short = replace(run, curves={}, solutions={**run.solutions, "frobenius": solution})
        (claim,) = (
            one for one in claims(Study(result.settings, result.setup, runs={"W": short})) if one.key == "direction_W"
        )
        assert claim.holds is None
        assert reason in claim.sentence
        assert claim.remedy.startswith(remedy)
        assert bool(claim.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("share", "shuffled", "holds"),
    [
        (0.9, (0.48, 0.5, 0.52), True),
        (0.5, (0.5, 0.5, 0.5), False),  # at the limit of what chance gives, and not above it
        (0.55, (0.48, 0.5, 0.52), False),
        (0.7, (0.1, 0.5, 0.9), None),  # chance may give everything
        (0.9, (0.5, 0.5), None),
    ],
)
def test_a_prediction_is_held_against_shuffled_labels(
    share: float, shuffled: tuple[float, ...], holds: bool | None
) -> None:
    result = easy()
    rows = (Accuracy("W", "W", 1.0, share), Accuracy("uniform", "uniform attention", 1.0, 0.55))
    labels = {"W": ShuffledLabels(np.ones(len(shuffled)), np.array(shuffled), 10)}
    setup = replace(result.setup, test=data_set(40, 4, 12, 8))
    runs = {"W": result.runs["W"]}
    short = Study(result.settings, setup, runs=runs, shuffled_labels=labels, accuracies=rows, complete=True)
    assert claims_of(short)["predicts_W"] is holds
    opening = {
        True: "On held-out rows it is right in",
        False: "It predicts held-out rows no better than chance:",
        None: "Whether it predicts cannot be told: on held-out rows it is right in",
    }[holds]
    assert f"selector. {opening} {share_text(share)} (uniform" in headline(short, claims(short))
    if len(shuffled) > 2:
        low, high = share_interval(round(share * 40), 40)
        assert f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %)" in sentence_of(short, "predicts_W")
        assert f"by chance up to {share_text(min(labels['W'].limit, 1.0))}" in sentence_of(short, "predicts_W")


def test_shuffles_count_with_the_spread_they_have() -> None:
    control = easy().runs["W"].controls[0]
    tight = replace(control, curves=np.array([[0.5], [0.5], [0.5], [0.51]]))
    wide = replace(control, curves=np.array([[0.5], [-0.5], [0.9], [0.1]]))
    assert tight.final == 0.51
    assert 0.51 <= tight.limit < 0.55
    assert 0.9 < wide.limit < 1
    labels = ShuffledLabels(np.ones(3), np.array([0.4, 0.5, 0.6]), 10)
    # Student's t with two degrees of freedom at 97.5 % is 4.3027; mean 0.5, deviation 0.1.
    assert labels.limit == pytest.approx(0.5 + 4.302652729 * 0.1 * np.sqrt(4 / 3))


def test_one_strong_direction_does_not_make_chance_right() -> None:
    """A head fitted to random labels has a random sign; the control must not call 0 and 1 in turn what chance gives."""
    control = study(planted(0), Settings(train=60, steps=50, max_steps=50, shuffles=8)).shuffled_labels["W"]
    # 60 rows held out: a fair share has deviation 0.065, and t of 7 degrees of freedom is 2.36.
    assert control.test.std(ddof=1) < 3 * 0.065
    assert control.limit < 0.5 + 3 * 2.36 * 0.065 * np.sqrt(9 / 8)


def test_training_that_climbs_goes_on_by_itself_or_says_how_long() -> None:
    settings = Settings(train=24, steps=60, shuffles=3, max_steps=60)
    data = random_data(32, 20, 0)
    short = study(data, settings)
    assert outcomes(short, claims(short))["W"] == "climbs"
    assert short.runs["W"].trace.step[-1] == 60
    assert "still approaching the max-margin token selector after 60 steps" in headline(short, claims(short))
    assert ", still climbing after 60 steps; " in sentence_of(short, "direction_W")
    advice = next(claim.remedy for claim in claims(short) if claim.key == "direction_W")
    steps = int(advice.split("--steps ")[1].rstrip("."))
    assert steps >= 120
    assert "did not" not in headline(short, claims(short))
    long = study(data, replace(settings, max_steps=4000))
    assert outcomes(long, claims(long))["W"] == "arrives"
    assert "climbing" not in sentence_of(long, "direction_W")
    assert 60 < long.runs["W"].trace.step[-1] <= 4000
    # What the short run advised is of the size of what was needed.
    first = int(long.runs["W"].trace.step[np.argmax(long.runs["W"].curves["frobenius"] >= 0.98)])
    assert first / 4 < steps < 20 * first


@pytest.mark.slow
def test_a_table_of_texts_that_still_climbs_is_no_refutation(tmp_path: Path) -> None:
    """Stopped early, texts once read "did not"; with more steps "became"."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(50)])
    lines = ["text,label"]
    for row in range(60):
        weight = np.ones(50)
        weight[:5] *= 4 if row % 2 else 0.5
        lines.append(f"{' '.join(rng.choice(words, 10, p=weight / weight.sum()))},{'good' if row % 2 else 'bad'}")
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = word_dataset(read_texts(path, "text", "label"))
    settings = Settings(train=40, steps=200, max_steps=200, shuffles=3)
    short = study(data, settings)
    assert outcomes(short, claims(short))["KQ"] == "climbs"
    assert "did not" not in headline(short, claims(short))
    assert "Train longer: --steps" in headline(short, claims(short))
    long = study(data, replace(settings, max_steps=20_000))
    assert outcomes(long, claims(long)) == {"W": "arrives", "KQ": "arrives"}
    assert (short.runs["KQ"].correlation or 1.0) < (long.runs["KQ"].correlation or 0.0)
    assert headline(long, claims(long)).startswith("Trained attention became the max-margin token selector.")


def test_going_on_is_the_same_as_training_on() -> None:
    data = random_data(10, 6, 0)
    rounds = study(data, Settings(train=8, steps=50, shuffles=0, max_steps=200))
    for run in rounds.runs.values():
        steps = int(run.trace.step[-1])
        straight = study(data, Settings(train=8, steps=steps, shuffles=0, max_steps=steps)).runs[run.parameterization]
        # The same steps in the same order; only the compiled loop's rescaling may round differently.
        np.testing.assert_allclose(run.trace.W[-1], straight.trace.W[-1], rtol=1e-9, atol=1e-9)
        assert (np.diff(run.trace.step) > 0).all()
        assert len(run.trace.attention) == len(run.trace.step)
    assert any(run.trace.step[-1] > 50 for run in rounds.runs.values())


def test_few_rows_carry_a_caution() -> None:
    text = " ".join(cautions(easy()))
    assert "Only 6 sequences were trained on" in text
    assert "need not hold for the next 6." in text
    assert "Only 2 sequences are held out: one more right or wrong moves the accuracy by 50 points." in text
    one = replace(easy(), setup=replace(easy().setup, train=easy().setup.train.take(np.array([0]))))
    text = " ".join(cautions(one))
    assert "Only 1 sequence was trained on" in text
    assert "need not hold for the next one." in text
    assert claims_of(easy())["predicts_W"] is None
    assert cautions(study(random_data(80, 2, 0), Settings(train=40, steps=5, max_steps=5, shuffles=0))) == []


@pytest.mark.parametrize(("label", "name"), [(1.0, "'+1'"), (-1.0, "'-1'")])
def test_rows_of_one_label_carry_a_caution(label: float, name: str) -> None:
    train = easy().setup.train
    labels = np.full(6, label)
    for others, share in ((0, "100 %"), (1, "")):
        labels[:others] *= -1
        tokens = TokenData(train.tokens.tokens, train.tokens.queries, labels.copy())
        alike = replace(easy(), setup=replace(easy().setup, train=replace(train, tokens=tokens)))
        text = " ".join(cautions(alike))
        assert (f"{share} of the sequences trained on are {name}: always saying so" in text) is bool(share)


def test_words_of_a_study_stay_words_and_what_is_missing_stays_missing() -> None:
    result = replace(easy(), accuracies=(Accuracy("W", "W", 0.75, None),))
    values = {name: one["value"] for name, one in quantities(result).items()}
    assert result.optimal is not None
    assert values["optimal_status"] == result.optimal.status.name
    assert values["accuracy_train_W"] == 0.75
    assert values["accuracy_test_W"] is None
