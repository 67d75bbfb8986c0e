"""Conditions and global convergence: settings, starts, destinations and verdicts from rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import Status, TokenData, correlation, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm.theory import Trial, explore, local_optimality
from attsvm_paper.beyond import overparameterisation
from attsvm_paper.beyond.overparameterisation import GROUPS, Config, estimates, figure, group_of, sweep, trials
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import Instances, draw, start_seeds
from drawn import columns_of, curves, panel_height, place, ticks


def test_sizes_grow_in_dimension_and_have_few_selections() -> None:
    dimensions = (3, 5, 8, 12, 20, 32)
    quick = [Config(n, 3, d, 4, 2000, 24) for n in (2, 3) for d in dimensions[:-1]]
    assert sweep("quick") == quick
    sizes = ((2, 3), (3, 3), (4, 3), (3, 4))
    assert sweep("full") == [Config(n, T, d, 4, 2000, 150) for n, T in sizes for d in dimensions]


@pytest.mark.parametrize(
    "change", [{"n": 0}, {"T": 1}, {"d": 0}, {"starts": 0}, {"steps": 0}, {"n": 13}, {"n": 7, "T": 4}]
)
def test_impossible_sizes_and_too_many_selections_are_refused(change: dict[str, int]) -> None:
    """At most 4096 selections T^n are enumerated."""
    size = {"n": 1, "T": 2, "d": 1, "starts": 1, "steps": 1}
    Config(**size)
    Config(**size | {"n": 12})
    Config(**size | {"n": 6, "T": 4})
    with pytest.raises(ValueError, match="expected"):
        Config(**size | change)


@dataclass
class FakeBasins:
    """Destinations given beforehand, the calls, and what they were called with."""

    given: list[list[int]]
    calls: list[tuple[np.ndarray, int]] = field(default_factory=list)
    landscapes: list[Any] = field(default_factory=list)

    def __call__(self, trial: Trial, starts: Any, *, landscape: Any, steps: int) -> Any:
        self.calls.append((np.array(starts), steps))
        self.landscapes.append(landscape)
        given = self.given[len(self.calls) - 1] if self.given else [0] * len(starts)
        assert len(given) == len(starts)
        return SimpleNamespace(destination=np.array(given), correlation=np.linspace(0.9, 0.1, len(starts)))


def run_with(monkeypatch: pytest.MonkeyPatch, config: Config, seed: int, *given: list[int]) -> tuple[Row, FakeBasins]:
    fake = FakeBasins(list(given))
    monkeypatch.setattr(overparameterisation, "map_basins", fake)
    (row,) = trials(config, [seed])
    return row, fake


def trial_of(seed: int, n: int, T: int, d: int) -> Trial:
    instances = draw([seed], n, T, d)
    return Trial.of(instances.data[0], instances.v[0])


def unit(matrices: np.ndarray) -> np.ndarray:
    return matrices / np.linalg.norm(matrices, axis=(-2, -1), keepdims=True)


def test_starts_are_zero_random_ones_at_three_distances_and_far_ones_along_every_other_svm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, fake = run_with(monkeypatch, Config(2, 3, 3, starts=2, steps=7), 0)
    ((starts, steps),) = fake.calls
    assert steps == 7
    # Zero, two at each distance, and the eight selections beside the optimal one, all of which have an SVM.
    np.testing.assert_allclose(np.linalg.norm(starts, axis=(1, 2)), [0, 1, 1, 10, 10, 30, 30, *[30] * 8], rtol=1e-12)
    trial = trial_of(0, 2, 3, 3)
    others = [(i, j) for i in range(3) for j in range(3) if (i, j) != tuple(trial.optimal)]
    expected = np.stack([np.asarray(solve(trial.problem(list(other))).W) for other in others])
    cosines = np.einsum("aij,bij->ab", unit(starts[7:]), unit(expected))
    np.testing.assert_allclose(cosines.max(0), 1, atol=1e-7)
    np.testing.assert_allclose(cosines.max(1), 1, atol=1e-7)
    # The random ones are directions drawn uniformly, from the seed of the start.
    rng = np.random.default_rng(int(start_seeds([0])[0]))
    np.testing.assert_allclose(unit(starts[1:7]), unit(rng.standard_normal((6, 3, 3))), rtol=1e-12)


def test_of_many_other_selections_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overparameterisation, "HOSTILE", 3)
    drawn = [run_with(monkeypatch, Config(2, 3, 3, starts=1), seed)[1].calls[0][0][4:] for seed in (0, 3)]
    for seed, hostile in zip((0, 3), drawn, strict=True):
        trial = trial_of(seed, 2, 3, 3)
        logits = np.stack([trial.logits(W) for W in hostile]).argmax(-1)
        assert len({tuple(row) for row in [*logits.tolist(), trial.optimal.tolist()]}) == 4
        for W, selected in zip(hostile, logits, strict=True):
            cosine = correlation(W, np.asarray(solve(trial.problem(selected)).W))
            assert float(cosine) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("seed", [0, 3])
def test_runs_that_reach_no_local_direction_are_trained_longer(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Seed 0 has two directions, of which the second is optimal, and seed 3 has one."""
    landscape = explore(trial_of(seed, 2, 3, 3))
    best = landscape.index(landscape.trial.optimal)
    assert (best, len(landscape.directions)) == ((1, 2) if seed == 0 else (0, 1))
    other = 1 - best
    # Zero; six random starts; eight starts along other selections.
    first = [-1, best, -1, best, other, best, best, best, -1, best, best, other, best, best, best]
    row, fake = run_with(monkeypatch, Config(2, 3, 3, starts=2, steps=7), seed, first, [best, -1, other], [-1], [-1])
    (starts, _), *longer = fake.calls
    assert [steps for _, steps in fake.calls] == [7, 70, 700, 7000]
    for (again, _), left in zip(longer, ([0, 2, 8], [2], [2]), strict=True):
        np.testing.assert_array_equal(again, starts[left])
    assert all(one.trial.optimal.tolist() == landscape.trial.optimal.tolist() for one in fake.landscapes)
    assert row["zero_global"] is True
    assert row["random_global"] == pytest.approx(4 / 6)
    assert row["hostile_global"] == pytest.approx(6 / 8)
    assert (row["lost"], row["unfinished"]) == (4, 1)
    # The correlation is of the first run, in which the zero start had not arrived.
    assert row["correlation"] is None


def test_a_run_from_zero_has_a_correlation_if_it_is_global_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(2, 3, 3, starts=1, steps=7)
    row, fake = run_with(monkeypatch, config, 0, [1, *[0] * 3, *[1] * 8])
    assert len(fake.calls) == 1
    assert (row["zero_global"], row["correlation"]) == (True, 0.9)
    assert (row["random_global"], row["hostile_global"], row["lost"], row["unfinished"]) == (0, 1, 3, 0)
    row, _ = run_with(monkeypatch, config, 0, [0, *[1] * 11])
    assert (row["zero_global"], row["correlation"]) == (False, None)
    assert (row["random_global"], row["hostile_global"], row["lost"]) == (1, 1, 1)


def test_an_instance_whose_other_selections_have_no_svm_has_no_start_along_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, fake = run_with(monkeypatch, Config(2, 3, 1, starts=1), 2)
    assert explore(trial_of(2, 2, 3, 1)).feasible.sum() == 1
    assert len(fake.calls[0][0]) == 4
    assert (row["random_global"], row["hostile_global"]) == (1, None)


def test_conditions_are_those_of_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict B.1: every non-optimal token is a neighbour. D: every other selection has an optimal one as neighbour."""
    seeds = [0, 3, 9, 11]
    monkeypatch.setattr(overparameterisation, "map_basins", FakeBasins([]))
    for seed, row in zip(seeds, trials(Config(2, 3, 3, starts=1), seeds), strict=True):
        trial = trial_of(seed, 2, 3, 3)
        solution = solve(trial.problem(trial.optimal))
        assert (row["seed"], row["feasible"], row["infeasible"]) == (seed, True, False)
        assert row["b1"] == bool(solution.support[solution.problem.rejected].all())
        assert row["b1_slack"] == bool(np.asarray(solution.margins)[solution.problem.rejected].mean() <= 1.1)
        localities = [local_optimality(trial, np.array([i, j])) for i in range(3) for j in range(3)]
        differing = [one for one in localities if (one.selected != trial.optimal).any()]
        near = [
            any(one.neighbours[i, t] for i, t in enumerate(trial.optimal) if one.selected[i] != t) for one in differing
        ]
        assert row["D"] == all(near)
        assert row["local"] == sum(one.holds for one in localities)
        assert row["only_optimal"] == (row["local"] == 1)


def test_the_correlation_of_a_global_run_from_zero_is_with_the_svm() -> None:
    (row,) = trials(Config(2, 3, 3, starts=1, steps=300), [3])
    trial = trial_of(3, 2, 3, 3)
    W = train(trial.data, trial.v, steps=300, init=np.zeros((3, 3))).W[-1]
    assert row["correlation"] == pytest.approx(float(correlation(W, np.asarray(trial.optimal_solution.W))), rel=1e-7)


@pytest.mark.parametrize(("seed", "infeasible"), [(15, True), (0, True), (14, False)])
def test_an_instance_without_an_svm_is_not_trained(
    monkeypatch: pytest.MonkeyPatch, seed: int, infeasible: bool
) -> None:
    """The optimal tokens of seed 15 have no SVM, though another selection has one."""
    assert (solve(trial_of(seed, 2, 3, 1).problem(trial_of(seed, 2, 3, 1).optimal)).status is Status.INFEASIBLE) == (
        infeasible
    )
    row, fake = run_with(monkeypatch, Config(2, 3, 1, starts=1), seed)
    assert (row["infeasible"], row["feasible"]) == (infeasible, not infeasible)
    assert len(fake.calls) == (not infeasible)
    if infeasible:
        trained = ("zero_global", "random_global", "hostile_global", "lost", "unfinished", "correlation")
        assert [row[key] for key in trained] == [None] * 6


def test_an_instance_with_two_best_tokens_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def headless(seeds: Any, n: int, T: int, d: int) -> Instances:
        one = draw(seeds, n, T, d)
        return Instances(TokenData(one.data.tokens, one.data.queries, one.data.labels), 0 * one.v)

    monkeypatch.setattr(overparameterisation, "draw", headless)
    row, fake = run_with(monkeypatch, Config(2, 3, 3, starts=1), 3)
    assert (row["infeasible"], row["feasible"], row["lost"]) == (False, False, None)
    assert not fake.calls


def made(trial: int, b1: bool, D: bool | None, lost: int = 0, **fields: Any) -> Row:
    """Make a row of ten starts; an instance that loses some has something else that is locally optimal."""
    plain = {"n": 2, "T": 3, "d": 5, "steps": 40, "unfinished": 0, "only_optimal": not lost, "hostile_global": 0.5}
    plain |= {"trial": trial, "seed": 100 + trial, "feasible": True, "infeasible": False, "correlation": None}
    plain |= {"b1": b1, "D": D, "lost": lost, "zero_global": not lost, "random_global": 1 - lost / 10}
    return plain | fields


NOTHING = dict.fromkeys(("lost", "unfinished", "zero_global", "random_global", "hostile_global"))
ROWS = [
    made(0, True, True, correlation=0.9),
    made(1, True, True, correlation=0.7, hostile_global=None),
    made(2, True, False, 3, hostile_global=0.1),
    made(3, True, None),
    made(0, False, True, d=8, only_optimal=True),
    made(1, False, False, 1, d=8, zero_global=True, correlation=0.8),
    made(2, False, False, d=8),
    made(3, False, False, d=8, feasible=False, infeasible=True, only_optimal=False) | NOTHING,
    made(4, True, True, d=8, feasible=False, only_optimal=True) | NOTHING,
]


def verdicts(rows: Sequence[Row]) -> dict[str, Verdict]:
    result = overparameterisation.verdicts(rows)
    by_quantity = {one.quantity: one for one in result}
    assert len(by_quantity) == len(result)
    assert {one.experiment for one in result} == {"overparameterisation"}
    return by_quantity


@pytest.mark.parametrize(
    ("b1", "D", "group"),
    [
        (True, True, "B.1 and D"),
        (True, False, "B.1 only"),
        (True, None, "B.1 only"),
        (False, True, "D only"),
        (False, False, "neither"),
        (False, None, "neither"),
    ],
)
def test_an_undecided_condition_counts_as_violated(b1: bool, D: bool | None, group: str) -> None:
    assert group_of({"b1": b1, "D": D}) == group


@pytest.mark.parametrize(
    ("group", "hits", "count", "note"),
    [
        (
            "B.1 and D", 2, 2, "No counterexample: every start of all 2 instances with strict B.1 and D became global, "
            "those along other selections included.",
        ),
        ("B.1 only", 1, 2, "1 of 2 instances became global from every start without both conditions."),
        ("D only", 1, 1, "1 of 1 instances became global from every start without both conditions."),
        ("neither", 1, 2, "1 of 2 instances became global from every start without both conditions."),
    ],
)  # fmt: skip
def test_global_convergence_is_counted_under_each_combination(group: str, hits: int, count: int, note: str) -> None:
    one = verdicts(ROWS)[f"global from every start, {group}"]
    assert (one.measured, one.trials, one.infeasible, one.note) == (hits / count, count, 1, note)
    assert (one.low, one.high) == wilson_interval(hits, count)


def test_counterexamples_are_listed() -> None:
    rows = [*ROWS, made(7, True, True, 4, unfinished=3), made(9, True, True, 1, d=8)]
    one = verdicts(rows)["global from every start, B.1 and D"]
    assert (one.measured, one.trials) == (0.5, 4)
    assert one.note == (
        "Of 4 instances with strict B.1 and D, 2 have a start that does not become global: "
        "n=2, T=3, d=5, trial 7 (seed 107): 4 starts, 3 of them at no local direction; "
        "n=2, T=3, d=8, trial 9 (seed 109): 1 starts, 0 of them at no local direction."
    )
    many = verdicts([made(k, True, True, 1) for k in range(22)])["global from every start, B.1 and D"].note
    assert many.startswith("Of 22 instances with strict B.1 and D, 22 have")
    # Twenty are listed.
    assert many.count("seed") == 20
    assert "trial 19 (seed 119)" in many


def test_shares_of_starts_are_means_over_the_instances_of_a_combination() -> None:
    found = verdicts(ROWS)
    for what, group, values, count in (
        ("zero start", "B.1 only", [0, 1], 2),
        ("random starts", "B.1 only", [0.7, 1], 2),
        ("starts along other selections", "B.1 only", [0.1, 0.5], 2),
        ("starts along other selections", "B.1 and D", [0.5], 2),
        ("random starts", "neither", [0.9, 1], 2),
        ("zero start", "neither", [1, 1], 2),
    ):
        one, middle = found[f"share global, {what}, {group}"], estimate(values, "bootstrap")
        assert (one.measured, one.low, one.high) == (middle.value, middle.low, middle.high)
        assert one.trials == count
    # Nothing is said of starts that no instance has.
    alone = verdicts(ROWS[1:2])
    assert [one for one in alone if one.startswith("share global")] == [
        "share global, zero start, B.1 and D",
        "share global, random starts, B.1 and D",
    ]


def test_instances_with_nothing_else_locally_optimal_are_counted() -> None:
    rows = [*ROWS, made(8, True, True, 2, only_optimal=True)]
    one = verdicts(rows)["global from every start, nothing else locally optimal"]
    # Trials 0, 1, 3 and 8 at d = 5 and trials 0 and 2 at d = 8.
    assert (one.measured, one.trials, one.infeasible) == (5 / 6, 6, 1)
    assert one.note == (
        "3 of these 6 instances lack strict B.1 or D; that nothing else is locally optimal asks less than the two "
        "conditions."
    )


def test_the_distance_from_the_svm_is_a_mean_over_global_runs_from_zero() -> None:
    one = verdicts(ROWS)["1 - correlation with the SVM of the optimal tokens, global runs from zero"]
    middle = estimate(1 - np.array([0.9, 0.7, 0.8]), "bootstrap")
    assert (one.measured, one.low, one.high) == (middle.value, middle.low, middle.high)
    assert (one.trials, one.note) == (7, "After 40 steps.")
    assert not any(quantity.startswith("1 - correlation") for quantity in verdicts(ROWS[3:4]))


def test_each_size_tells_how_often_both_conditions_hold() -> None:
    found = verdicts(ROWS)
    few = found["strict B.1 and D hold, n=2, T=3, d=5"]
    assert (few.measured, few.trials, few.note) == (0.5, 4, "Global from every start: 3 of 4.")
    many = found["strict B.1 and D hold, n=2, T=3, d=8"]
    assert (many.measured, many.trials, many.note) == (0, 3, "Global from every start: 2 of 3.")


def test_rows_without_an_svm_give_no_share() -> None:
    found = verdicts(ROWS[7:])
    assert {one.trials for one in found.values()} == {0}
    assert {one.infeasible for one in found.values()} == {1}
    assert len(found) == len(GROUPS) + 1


# Shares at d = 5 and d = 8.
SHARES = {
    "strict B.1": ((4, 4), (0, 3)),
    "D": ((2, 4), (1, 3)),
    "strict B.1 and D": ((2, 4), (0, 3)),
    "nothing else locally optimal": ((3, 4), (2, 3)),
    "global from every start": ((3, 4), (2, 3)),
    "global from zero": ((3, 4), (3, 3)),
}


def test_a_panel_draws_each_share_in_percent_against_the_dimension() -> None:
    (ax,) = figure(ROWS).axes
    assert ax.get_title(loc="left") == "n = 2, T = 3"
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("dimension d", "share of instances (%)", "log")
    assert ticks(ax.xaxis) == {5: "5", 8: "8"}
    assert ax.get_ylim() == (-3, 103)
    drawn = curves(ax)
    assert list(drawn) == list(SHARES)
    for name, counts in SHARES.items():
        assert drawn[name].y == pytest.approx([100 * hits / count for hits, count in counts])
        for at, (hits, count) in enumerate(counts):
            interval = (drawn[name].low[at], drawn[name].high[at])
            assert interval == pytest.approx([100 * end for end in wilson_interval(hits, count)])
    # The points of a dimension stand apart, around it.
    places = np.array([one.x for one in drawn.values()]) / [5, 8]
    assert (np.diff(places, axis=0) > 0.01).all()
    np.testing.assert_allclose(places.mean(0), 1, rtol=1e-12)
    assert np.abs(places - 1).max() < 0.1
    assert len({(one.color, one.marker) for one in drawn.values()}) == 6


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 2), (NARROW, 1)])
def test_each_size_has_a_panel(width: float, columns: int) -> None:
    rows = [*ROWS, *(row | {"n": 3} for row in ROWS[:4]), *(row | {"T": 4} for row in ROWS[4:])]
    drawing = figure(rows, width)
    shown = [ax for ax in drawing.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == ["n = 2, T = 3", "n = 2, T = 4", "n = 3, T = 3"]
    assert 1.3 < panel_height(drawing) < 5
    assert {place(ax)[:2] for ax in shown} == {(2, 2) if columns == 2 else (3, 1)}
    assert [len(curves(ax)["D"].x) for ax in shown] == [2, 1, 1]
    assert curves(shown[1])["global from every start"].y == pytest.approx([200 / 3])
    (legend,) = drawing.legends
    assert columns_of(legend) == (3 if width == WIDE else 1)
    assert [text.get_text() for text in legend.get_texts()] == list(SHARES)
    assert estimates(rows).of((3, 3, 5), "D").hits == 2


def test_two_sizes_share_a_row_and_none_leaves_an_empty_figure() -> None:
    two = figure([*ROWS, *(row | {"n": 3} for row in ROWS[:4])])
    assert len(two.axes) == 2
    assert all(ax.get_visible() for ax in two.axes)
    none = figure(ROWS[7:])
    assert [ax.get_visible() for ax in none.axes] == [False]
    assert not none.legends
