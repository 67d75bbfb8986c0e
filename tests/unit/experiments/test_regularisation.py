"""Regularisation and size: settings, rows of each topic, and verdicts of rows made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attsvm_paper.beyond import regularisation, shrinkage
from attsvm_paper.beyond.regularisation import FIELDS, Config
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval
from attsvm_paper.published.instances import Instances, draw


def row(**values: Any) -> dict[str, Any]:
    """Make a row that leaves all other fields empty."""
    sizes = {"n": 6, "T": 8, "d": 10, "heads": 1, "strength": 0.0, "seed": 0}
    return sizes | dict.fromkeys(FIELDS) | {"infeasible": False, "local": True} | values


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topic": "decay"}, "strength is 0.0; a positive weight decay was expected"),
        ({"topic": "decay", "strength": -1e-3}, "a positive weight decay was expected"),
        ({"topic": "tokens", "strength": 1.0}, "strength is 1.0; a number from 0 and below 1"),
        ({"topic": "weights", "strength": -0.1}, "strength is -0.1; a number from 0"),
        ({"topic": "size", "heads": 0}, "heads is 0; at least 1"),
        ({"topic": "size", "T": 1}, "T is 1; at least 2 tokens"),
    ],
)
def test_parameters_out_of_range_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config(**given)


def test_the_least_parameters_are_taken() -> None:
    least = Config("tokens", 0.0, T=2, heads=1)
    assert (least.strength, least.T, least.heads) == (0.0, 2, 1)
    assert Config("decay", 1e-9).strength == 1e-9


@pytest.mark.parametrize(("effort", "trials"), [("quick", 20), ("full", 100)])
def test_the_sweep_takes_published_instances_and_changes_one_size_at_a_time(effort: Any, trials: int) -> None:
    """From n = 3, T = 5, d = 8 and one head; the other topics have the published n = 6, T = 8, d = 10."""
    cells = regularisation.sweep(effort)
    published = [one for one in cells if one.topic != "size"]
    assert {(one.n, one.T, one.d, one.heads) for one in published} == {(6, 8, 10, 1)}
    assert {one.trials for one in cells} == {trials}
    assert [(one.topic, one.strength, one.steps) for one in published] == [
        *(("decay", strength, 1000) for strength in (0.01, 0.001, 0.0001, 0.00001)),
        *(("tokens", rate, 1000) for rate in (0.0, 0.1, 0.3, 0.5)),
        *(("weights", rate, 1000) for rate in (0.0, 0.1, 0.3, 0.5)),
        ("early", 0.0, 3000),
    ]
    sizes = [one for one in cells if one.topic == "size"]
    assert [(one.d, one.T, one.heads) for one in sizes] == [
        (3, 5, 1), (5, 5, 1), (8, 5, 1), (16, 5, 1), (8, 3, 1), (8, 8, 1), (8, 5, 2), (8, 5, 4)
    ]  # fmt: skip
    assert {(one.n, one.strength, one.steps) for one in sizes} == {(3, 0.0, 1000)}


@pytest.mark.parametrize(
    ("topic", "function", "given"),
    [
        ("decay", "decay", (0.1,)),
        ("early", "early", (15,)),
        ("size", "size", (2, 15, [3, 8])),
        ("tokens", "dropout", ("tokens", 0.1, 15, [3, 8])),
        ("weights", "dropout", ("weights", 0.1, 15, [3, 8])),
    ],
)
def test_each_topic_gives_the_rows_of_its_run(
    topic: Any, function: str, given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(instances: Instances, *arguments: Any) -> list[Any]:
        assert instances.data.tokens.shape == (2, 2, 3, 4)
        np.testing.assert_array_equal(instances.v, draw([3, 8], 2, 3, 4).v)
        assert arguments == given
        if topic == "early":
            return [[{"step": 1}, {"step": 2}], [{"step": 3}, {"step": 4}]]
        return [{"margin": 0.5}, {"margin": 0.7}]

    monkeypatch.setattr(shrinkage, function, run)
    config = Config(topic, 0.1, d=4, n=2, T=3, heads=2, steps=15)
    rows = regularisation.trials(config, [3, 8])
    own = [(3, "margin", 0.5), (8, "margin", 0.7)]
    if topic == "early":
        own = [(3, "step", 1), (3, "step", 2), (8, "step", 3), (8, "step", 4)]
    assert rows == [dict.fromkeys(FIELDS) | {"seed": seed, name: value} for seed, name, value in own]


# Trials of two decays; seed 2 ends elsewhere than on the path, and seed 3 has no SVM at the stronger decay.
DECAY = [
    row(topic="decay", strength=strength, seed=seed, path=path, excess=excess, radius=radius, relative=relative,
        infeasible=relative is None)
    for strength, seed, path, excess, radius, relative in (
        (0.01, 1, 1.0, 0.0, 2.0, 1.0),
        (0.01, 2, 0.5, 0.03, 4.0, 2.0),
        (0.01, 3, 0.9, 0.01, 3.0, None),
        (0.001, 1, 1.0, 0.0, 5.0, 3.0),
        (0.001, 2, 1.0, 0.0, 6.0, 5.0),
        (0.001, 3, 1 - 1e-6, 0.0, 7.0, 4.0),
    )
]  # fmt: skip


def test_weight_decay_reports_radius_path_and_growth() -> None:
    second, first, growth = regularisation.verdicts(DECAY)
    name = "correlation of weight decay {} with the path at its norm, n=6, T=8, d=10"
    assert (second.quantity, first.quantity) == (name.format("0.001"), name.format("0.01"))
    assert first.measured == pytest.approx(0.8)
    assert (first.low, first.high) == bootstrap_interval([1.0, 0.5, 0.9])
    assert (first.trials, first.infeasible, second.infeasible) == (3, 1, 0)
    assert first.note == (
        "It is on the path in 1 of 3 trials, and elsewhere at a local minimum whose risk is higher by 0.02. "
        "R is 3.00 on average, 1.50 times the norm of the SVM of the tokens on top."
    )
    assert second.note == (
        "It is on the path in 3 of 3 trials. R is 6.00 on average, 4.00 times the norm of the SVM of the tokens on top."
    )
    # Seeds 1 and 2 have both decays: 2 and 3 norms of the SVM per factor of ten.
    slopes = [2 / math.log(10), 3 / math.log(10)]
    assert growth.quantity == "growth of R over the norm of the SVM when weight decay falls by a factor e"
    assert growth.measured == pytest.approx(2.5 / math.log(10))
    assert (growth.low, growth.high) == pytest.approx(mean_interval(slopes))
    assert (growth.trials, growth.note) == (
        2,
        "Which R? It grows by 1.09 norms of the SVM whenever the decay falls by a factor e; "
        "the exponential tail of the loss alone would make it 1.",
    )


def test_weight_decay_without_an_svm_reports_the_radius_alone() -> None:
    """One seed with two decays gives one slope, which is no sample."""
    (only,) = regularisation.verdicts([DECAY[2]])
    assert only.note == (
        "It is on the path in 0 of 1 trials, and elsewhere at a local minimum whose risk is higher by 0.01. "
        "R is 3.00 on average."
    )
    assert len(regularisation.verdicts([DECAY[0], DECAY[3]])) == 2
    assert len(regularisation.verdicts([DECAY[0], DECAY[3], DECAY[1]])) == 2


def test_a_correlation_of_exactly_the_limit_is_on_the_path() -> None:
    (edge,) = regularisation.verdicts([row(topic="decay", strength=0.1, path=1 - 1e-5, excess=0.1, radius=1.0)])
    assert edge.note.startswith("It is on the path in 1 of 1 trials. R")
    (below,) = regularisation.verdicts([row(topic="decay", strength=0.1, path=1 - 2e-5, excess=0.1, radius=1.0)])
    assert below.note.startswith("It is on the path in 0 of 1 trials, and")


def drops(topic: str, strength: float, margins: list[float | None], same: float = 0.5) -> list[dict[str, Any]]:
    return [
        row(topic=topic, strength=strength, seed=seed, margin=margin, same=same, local=seed % 2 == 0,
            infeasible=margin is None)
        for seed, margin in enumerate(margins)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "phrase"), [(0.1, "a larger"), (-0.1, "a smaller"), (0.0, "no measurably different")]
)
@pytest.mark.parametrize("topic", ["tokens", "weights"])
def test_dropout_is_compared_with_none_on_the_same_instances(topic: str, change: float, phrase: str) -> None:
    plain = [0.9, 0.2, None, 0.5]
    # The second seed has no SVM with dropout and the third none without; the fifth was not run without.
    dropped = [0.9 + change, None, 0.3, 0.5 + change, 0.7]
    verdicts = regularisation.verdicts([*drops(topic, 0.0, plain, same=1.0), *drops(topic, 0.3, dropped)])
    assert [one.quantity for one in verdicts] == [
        f"margin as a share of the largest, dropout of {topic} 0",
        f"margin as a share of the largest, dropout of {topic} 0.3",
        f"same tokens as without, dropout of {topic} 0.3",
    ]
    none, margin, same = verdicts
    assert none.note == "Locally optimal in 2 of 4 trials."
    assert (
        margin.note
        == same.note
        == (f"Dropping {topic} gives {phrase} margin than dropping none. Locally optimal in 3 of 5 trials.")
    )
    assert (none.measured, none.trials, none.infeasible) == (pytest.approx(1.6 / 3), 4, 1)
    assert (margin.measured, margin.trials, margin.infeasible) == (pytest.approx((2.4 + 2 * change) / 4), 5, 1)
    assert (margin.low, margin.high) == bootstrap_interval([one for one in dropped if one is not None])
    assert (same.measured, same.low, same.high) == (0.5, 0.5, 0.5)


def test_dropout_of_one_common_instance_is_not_compared() -> None:
    rows = [*drops("tokens", 0.0, [0.5]), *drops("tokens", 0.1, [0.9, 0.9])]
    assert regularisation.verdicts(rows)[1].note == "Locally optimal in 1 of 2 trials."


def test_early_stops_report_margin_rank_and_tokens() -> None:
    rows = [
        row(topic="early", step=step, margin=margin, correlation=corr, stable_rank=rank, same=same,
            infeasible=margin is None)
        for step, margin, corr, rank, same in (
            (100, 0.8, 0.91, 2.0, 1.0), (100, 0.6, 0.95, 3.0, 0.5), (100, None, None, 1.0, 1.0),
            (10, None, None, 1.5, 0.25),
        )
    ]  # fmt: skip
    first, second = regularisation.verdicts(rows)
    assert (first.quantity, second.quantity) == (
        "margin as a share of the largest, stopped after 10 steps",
        "margin as a share of the largest, stopped after 100 steps",
    )
    assert math.isnan(first.measured)
    assert (first.trials, first.infeasible) == (1, 1)
    assert (
        first.note
        == "Stable rank 1.50, correlation with the own SVM unknown; 25 % of the final tokens are on top already."
    )
    assert (second.measured, second.trials, second.infeasible) == (pytest.approx(0.7), 3, 1)
    assert (second.low, second.high) == bootstrap_interval([0.8, 0.6])
    assert second.note == (
        "Stable rank 2.00, correlation with the own SVM 0.930; 83 % of the final tokens are on top already."
    )


def sizes(d: int = 8, T: int = 5, heads: int = 1, count: int = 2, **columns: list[Any]) -> list[dict[str, Any]]:
    return [
        row(topic="size", n=3, d=d, T=T, heads=heads, seed=seed, **{name: own[seed] for name, own in columns.items()})
        for seed in range(count)
    ]


def test_a_size_reports_the_largest_margin_and_local_optima() -> None:
    rows = sizes(
        count=3, largest=[0.5, 0.7, None], rank=[3, 2, None], nuclear_rank=[2, 1, None], local_optima=[4, 6, 5],
        optimal=[1.0, 0.5, 0.6], infeasible=[False, False, True],
    )  # fmt: skip
    margin, optima = regularisation.verdicts(rows)
    assert margin.quantity == "largest margin per norm, d=8, T=5, n=3"
    assert (margin.measured, margin.trials, margin.infeasible) == (pytest.approx(0.6), 3, 1)
    assert margin.note == "Rank 2.50 in the Frobenius norm and 1.50 in the nuclear."
    assert optima.quantity == "number of locally optimal selections, d=8, T=5, n=3"
    assert (optima.measured, optima.trials, optima.infeasible) == (5.0, 3, 1)
    assert (optima.low, optima.high) == pytest.approx(mean_interval([4, 6, 5]))
    # Five tokens in each of three sequences.
    assert optima.note == "Of 125 selections; trained from zero, 70 % of the tokens are the best."


def test_a_size_without_an_svm_has_no_ranks() -> None:
    rows = sizes(largest=[None, None], local_optima=[1, 1], optimal=[1.0, 1.0], infeasible=[True, True])
    margin, optima = regularisation.verdicts(rows)
    assert math.isnan(margin.measured)
    assert margin.note == ""
    assert optima.measured == 1
    # One trial is a cell too.
    assert [one.quantity for one in regularisation.verdicts(rows[:1])] == [margin.quantity, optima.quantity]


def test_several_heads_report_agreement_and_margin() -> None:
    rows = sizes(heads=2, agree=[0.5, 1.0], margin=[0.8, None], infeasible=[False, True])
    (agree,) = regularisation.verdicts(rows)
    assert agree.quantity == "sequences where 2 heads agree, d=8, T=5, n=3"
    assert (agree.measured, agree.trials, agree.infeasible) == (0.75, 2, 1)
    assert agree.note == (
        "In 75 % of the sequences all heads agree: heads select different tokens. "
        "Margin of a head as a share of the largest for its tokens: 0.800."
    )
    (agree,) = regularisation.verdicts(sizes(heads=3, agree=[0.96, 0.96], margin=[None, None]))
    assert agree.note == "In 96 % of the sequences all heads agree: all heads select alike."


FLAT = {"rank": [2, 2], "nuclear_rank": [1, 1], "local_optima": [5, 5], "optimal": [1.0, 1.0]}


def test_trends_compare_the_ends_at_the_common_other_size() -> None:
    """The base of a trend is the most frequent other size, and the smallest of several."""
    rows = [
        *sizes(3, 5, largest=[0.1, 0.3], **FLAT),
        *sizes(8, 5, largest=[0.9, 0.9], **FLAT),
        *sizes(16, 5, largest=[0.6, 1.0], infeasible=[True, False], **FLAT),
        *sizes(8, 3, largest=[0.9, 1.1], **FLAT),
    ]
    found = {one.quantity: one for one in regularisation.trends(rows)}
    margin = found["change of largest margin per norm, d from 3 to 16 at T=5"]
    # Variances 0.02 and 0.08 of two trials each.
    half = 1.96 * math.sqrt(0.02 / 2 + 0.08 / 2)
    assert (margin.measured, margin.low, margin.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert (margin.trials, margin.infeasible) == (4, 1)
    assert margin.note == "The largest margin per norm rises: 0.20 at d=3, 0.80 at d=16."
    length = found["change of largest margin per norm, T from 3 to 5 at d=8"]
    assert (length.measured, length.trials, length.infeasible) == (pytest.approx(-0.1), 4, 0)
    assert length.note == "The largest margin per norm does not measurably change: 1.00 at T=3, 0.90 at T=5."
    assert len(found) == 6
    # A margin of the two ends decides, not those of the sizes between.
    flat = found["change of rank of the nuclear SVM, d from 3 to 16 at T=5"]
    assert (flat.measured, flat.low, flat.high) == (0, 0, 0)
    assert flat.note == "The rank of the nuclear SVM does not measurably change: 1.00 at d=3, 1.00 at d=16."


@pytest.mark.parametrize(
    ("ends", "phrase"),
    [
        (([0.0, 0.2], [0.35, 0.55]), "rises"),
        (([0.35, 0.55], [0.0, 0.2]), "falls"),
        (([0.0, 0.2], [0.3, 0.5]), "rises"),
        (([0.0, 0.2], [0.25, 0.45]), "does not measurably change"),
        (([0.25, 0.45], [0.0, 0.2]), "does not measurably change"),
    ],
)
def test_a_trend_of_two_standard_errors_is_measurable(ends: tuple[list[float], list[float]], phrase: str) -> None:
    """Each end has the variance 0.02 of two trials: 1.96 standard errors of the difference are 0.277."""
    rows = [*sizes(3, largest=ends[0], **FLAT), *sizes(9, largest=ends[1], **FLAT)]
    notes = [one.note for one in regularisation.trends(rows) if "largest margin" in one.quantity]
    assert len(notes) == 1
    assert notes[0].startswith(f"The largest margin per norm {phrase}: ")


def test_a_trend_needs_two_sizes_and_two_trials_at_each_end() -> None:
    three, nine = sizes(3, largest=[0.1, 0.3], **FLAT), sizes(9, largest=[0.1, None], **FLAT)
    assert regularisation.trends(three) == []
    assert [one.quantity for one in regularisation.trends([*three, *nine])] == [
        "change of number of locally optimal selections, d from 3 to 9 at T=5",
        "change of rank of the nuclear SVM, d from 3 to 9 at T=5",
    ]
    assert regularisation.trends(sizes(3, heads=2, largest=[0.1, 0.3], **FLAT)) == []
    assert regularisation.trends([]) == []


@pytest.mark.parametrize(("values", "expected"), [([3, 5, 5], 5), ([8, 3, 3, 8], 3), ([3, 8, 8, 3], 3), ([2], 2)])
def test_the_most_frequent_value_is_the_smallest_of_several(values: list[int], expected: int) -> None:
    assert regularisation.most(values) == expected


def test_topics_report_in_their_order_and_without_rows_nothing() -> None:
    assert regularisation.verdicts([]) == []
    early = row(topic="early", step=5, margin=0.5, correlation=0.5, stable_rank=1.0, same=1.0)
    quantities = [one.quantity for one in regularisation.verdicts([early, *drops("tokens", 0.0, [0.5]), DECAY[0]])]
    assert [name.split(",")[0] for name in quantities] == [
        "correlation of weight decay 0.01 with the path at its norm",
        "margin as a share of the largest",
        "margin as a share of the largest",
    ]
    assert quantities[1].endswith("dropout of tokens 0")
