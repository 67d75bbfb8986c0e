"""Figs 8 and 11b judged: hand-made draws of the ReLU head and the sentences, numbers and pairings made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from attsvm_paper.figures import multi_token_verdicts
from attsvm_paper.figures.multi_token import Config, Numerics
from attsvm_paper.figures.multi_token_verdicts import (
    below,
    end,
    joint,
    points,
    printed_curve,
    printed_scatter,
    readings,
    scatter_points,
    threshold_points,
    verdicts,
)
from attsvm_paper.judging.comparison import mean_verdict, share_verdict
from attsvm_paper.judging.points import Point, next_values, swap
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.ledger import curve
from printed_points import check_points, printed
from relu_rows import NAMES, STEP, accepted, row, upper

NAME = "multi-token"
MARKS = (200, 500, 1000, 1500, 2000)
THRESHOLDS = tuple(range(-16, -5))
NUMERICS: tuple[Numerics, ...] = ("exact", "published")


def theirs(d: int, threshold: int) -> list[float]:
    """Distances of their draws below a threshold, from the scatter of Fig. 8."""
    scatter = curve(f"Fig. 8 lower: d={d}").scatter
    assert scatter is not None
    return [10**y for x, y in zip(scatter["x"], scatter["y"], strict=True) if x < threshold]


def check(ours: Sequence[Verdict], expected: Sequence[Verdict]) -> None:
    """Compare whole verdicts; their repr has NaN equal to NaN."""
    assert [one.quantity for one in ours] == [one.quantity for one in expected]
    for one, other in zip(ours, expected, strict=True):
        assert repr(one) == repr(other)


# --- helpers ---


def test_printed_curves_and_points_are_those_of_the_four_dimensions() -> None:
    for d in (4, 6, 8, 10):
        assert [printed_curve(d, name).key for name in NAMES] == [upper(d, name) for name in NAMES]
        scatter = printed_scatter(d)
        # v1, p. 14: 500 accepted draws.
        assert len(scatter["x"]) == len(scatter["y"]) == 500
    assert printed_curve(5, "mm") is None


def test_the_end_of_a_draw_is_its_last_record() -> None:
    assert end(accepted(0)) == pytest.approx(0.3 / 7)
    assert end(accepted(0), "single") == pytest.approx(0.9 / 7)
    assert end(row(0)) is None


def test_a_draw_lies_below_a_threshold_if_its_largest_masked_output_does() -> None:
    draw = accepted(0, masked=10.0**-8)
    assert below(draw, -7) == pytest.approx(0.3 / 7)
    assert below(draw, -8) is None
    assert below(draw, -9) is None
    assert below(row(0), -6) is None


# --- verdicts ---


def distances(cell: Sequence[Row], d: int, numerics: str, same: bool, notes: Mapping[str, str] | None = None) -> Any:
    """Return the verdicts on distances along training; undecided and finite draws are discarded."""
    sample = [one for one in cell if one["state"] == "accepted"]
    infeasible = sum(one["state"] == "infeasible" for one in cell)
    for name, words in NAMES.items():
        for x in MARKS:
            reference = printed(upper(d, name), x) if same else None
            yield mean_verdict(
                NAME, f"1 - correlation with the {words}, d={d}, iteration {x}, {numerics} numerics",
                [one[name][STEP.index(x + 1)] for one in sample], published=reference, interval="bootstrap",
                trials=len(cell), margin=1.0 if reference is None else 0.33 * reference.value,
                discarded=len(cell) - len(sample) - infeasible, infeasible=infeasible, note=(notes or {}).get(name, ""),
            )  # fmt: skip


def mixed(d: int = 4, **other: Any) -> list[Row]:
    """Four accepted draws, one of them with a dead query, two undecided, one finite and one infeasible."""
    pairs = ((0.3, 1e-17), (0.2, 10.0**-12), (0.5, 3e-9), (0.4, 2e-7))
    cell = [accepted(seed, d, *pair, dead=int(seed == 2), **other) for seed, pair in enumerate(pairs)]
    states = ("undecided", "finite", "undecided", "infeasible")
    return cell + [row(seed, d, state, **other) for seed, state in enumerate(states, start=4)]


FATES = "2 undecided, 1 finite, 1 infeasible. 1 of 4 accepted draws have a query without gradient."


@pytest.mark.parametrize("d", [4, 6, 8, 10])
def test_accepted_draws_are_compared_with_the_printed_curves_and_points(d: int) -> None:
    cell = mixed(d)
    expected = list(distances(cell, d, "published", True))
    masked = {-16: 1, -15: 1, -14: 1, -13: 1, -12: 1, -11: 2, -10: 2, -9: 2, -8: 3, -7: 3}
    expected += [
        share_verdict(
            NAME, f"share of accepted draws with all masked probabilities below 1e{t}, d={d}", hits, 4,
            published=printed(f"Fig. 8 lower: d={d}", t),
        )
        for t, hits in masked.items()
    ]  # fmt: skip
    for t, hits in (masked | {-6: 4}).items():
        reference, own = printed(f"Fig. 11b: d={d}", t), theirs(d, t)
        expected.append(
            mean_verdict(
                NAME, f"1 - correlation with the SVM equivalent, d={d}, masked below 1e{t}",
                [level / 7 for level in (0.3, 0.2, 0.5, 0.4)[:hits]], published=reference, interval="bootstrap",
                trials=8, margin=0.33 * reference.value, discarded=3, infeasible=1, assumed_trials=len(own),
                published_deviation=float(np.std(own, ddof=1)),
            )
        )  # fmt: skip
    quantity = f"draws accepted, d={d}, published numerics"
    expected.append(share_verdict(NAME, quantity, 4, 8, infeasible=1, note=FATES))
    check(verdicts(cell), expected)


@pytest.mark.parametrize("other", [{"n": 2}, {"T": 5}, {"d": 5}])
def test_other_sizes_are_measured_only(other: dict[str, Any]) -> None:
    cell = [one | other for one in mixed()]
    d = cell[0]["d"]
    expected = list(distances(cell, d, "published", False))
    expected.append(share_verdict(NAME, f"draws accepted, d={d}, published numerics", 4, 8, infeasible=1, note=FATES))
    check(verdicts(cell), expected)


def test_exact_training_is_measured_and_its_drift_noted() -> None:
    """Without the draw that has a dead query the means at the end are 0.3, 0.2 and 0.4 over seven, on average 0.3."""
    flat = "Queries in the flat part of the ReLU have no gradient and drift"
    notes = {
        name: f"{flat}; without them the mean at the end is {value} (3 draws)."
        for name, value in (("equivalent", "0.0429"), ("mm", "0.0857"), ("single", "0.129"))
    }
    cell = mixed(numerics="exact")
    expected = list(distances(cell, 4, "exact", False, notes))
    expected.append(share_verdict(NAME, "draws accepted, d=4, exact numerics", 4, 8, infeasible=1, note=FATES))
    check(verdicts(cell), expected)
    (first, *_) = verdicts([accepted(0, numerics="exact", dead=1)])
    assert first.note == flat + "."


def test_short_runs_state_the_last_iteration_without_a_value() -> None:
    cell = [one | {"step": one["step"] and [*STEP[:-2], 1300, 1700]} for one in mixed()]
    ours = verdicts(cell)
    quantities = [one.quantity for one in ours if "iteration" in one.quantity]
    assert quantities == [
        f"1 - correlation with the {words}, d=4, iteration {x}, published numerics"
        for words in NAMES.values()
        for x in (200, 500, 1000, 2000)
    ]
    last = [one for one in ours if "iteration 2000" in one.quantity]
    assert [(one.verdict, np.isnan(one.measured)) for one in last] == [("measured", True)] * 3
    assert verdicts([]) == []


def test_a_cell_without_accepted_draws_says_what_became_of_them() -> None:
    ours = verdicts([row(0, state="finite"), row(1), row(2)])
    assert [one.quantity for one in ours] == [
        *(f"1 - correlation with the {words}, d=4, iteration 2000, published numerics" for words in NAMES.values()),
        "draws accepted, d=4, published numerics",
    ]
    assert (ours[-1].measured, ours[-1].infeasible) == (0.0, 2)
    assert ours[-1].note.startswith("0 undecided, 1 finite, 2 infeasible. 0 of 0 accepted")
    assert (ours[0].discarded, ours[0].infeasible, ours[0].trials) == (1, 2, 3)


# --- pairings ---


OUTSIDE = [row(30), accepted(31, n=2), accepted(32, T=5), accepted(33, 5)]


def test_distances_are_paired_by_dimension_and_iteration() -> None:
    cells = {d: [accepted(seed, d, 0.2 + 0.1 * seed) for seed in range(3)] for d in (4, 10)}
    ours = points([*cells[10], *cells[4], *OUTSIDE])
    expected = [
        (upper(d, name), x, {one["seed"]: one[name][STEP.index(x + 1)] for one in cell})
        for d, cell in cells.items()
        for name in NAMES
        for x in MARKS
    ]
    check_points(ours, expected)
    assert {(one.margin, one.kind, one.trials, one.deviation) for one in ours} == {(0.33, "log", None, None)}


def test_distances_are_paired_by_threshold_with_the_deviation_of_their_own_draws() -> None:
    cell = [accepted(seed, 6, 0.7, masked=10.0 ** -(7.5 + seed)) for seed in range(3)]
    ours = threshold_points([*cell, *OUTSIDE])
    seeds = {-6: (0, 1, 2), -7: (0, 1, 2), -8: (1, 2), -9: (2,)}
    check_points(ours, [("Fig. 11b: d=6", t, dict.fromkeys(seeds.get(t, ()), 0.1)) for t in THRESHOLDS])
    for one, t in zip(ours, THRESHOLDS, strict=True):
        own = theirs(6, t)
        assert (one.margin, one.kind, one.trials) == (0.33, "log", len(own))
        assert one.deviation == pytest.approx(np.std(own, ddof=1))


def test_a_printed_draw_at_a_threshold_does_not_lie_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scatter = {"x": [-17.0, -16.5, -16.0, -15.5], "y": [-1.0, -2.0, -3.0, -1.0]}
    monkeypatch.setattr(multi_token_verdicts, "printed_scatter", lambda _: scatter)
    first = threshold_points([accepted(0)])[0]
    # Distances 0.1 and 0.01.
    assert (first.trials, first.deviation) == (2, pytest.approx(0.09 / np.sqrt(2)))


def test_masked_probabilities_are_paired_by_threshold() -> None:
    cell = [accepted(seed, 8, masked=10.0 ** -(7 + seed)) for seed in range(3)]
    ours = scatter_points([*cell, *OUTSIDE, accepted(34, 5)])
    shares = {-8: (0.0, 0.0, 1.0), -7: (0.0, 1.0, 1.0)}
    expected = [("Fig. 8 lower: d=8", t, dict(enumerate(shares.get(t, (0.0,) * 3)))) for t in THRESHOLDS[:-1]]
    check_points(ours, expected)
    assert {(one.margin, one.kind) for one in ours} == {(0.1, "share")}
    assert scatter_points(cell[:1]) == []
    assert len(scatter_points(cell[:2])) == 10


# --- whole figures ---


def posed(
    _: str, figure: str, own: Sequence[Point], others: Mapping[str, Mapping[str, Point]], reading: str, note: str = ""
) -> Any:
    """Return what a joint test is asked, or None if no point has ten trials."""
    if not any(one.is_determinate for one in own):
        return None
    alternatives = {
        name: {key: (one.published.key, one.values) for key, one in points_of.items()}
        for name, points_of in others.items()
    }
    return figure, reading, note, [(one.published.key, one.values) for one in own], alternatives


def test_figures_are_tested_against_other_dimensions_iterations_and_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of d is 4, 6, 8, 10; W^SVMeq and W^mm are exchanged, W^1token is not."""
    monkeypatch.setattr(multi_token_verdicts, "joint_test", posed)
    plain = [
        accepted(seed, d, 0.2 + 0.01 * seed + 0.001 * d, 10.0 ** -(seed + d))
        for d in (4, 6, 8, 10)
        for seed in range(10)
    ]
    exact = [accepted(seed, d, numerics="exact") for d in (4, 6) for seed in range(10, 20)]
    main, by_threshold, masked = points(plain), threshold_points(plain), scatter_points(plain)
    further = {4: 6, 6: 8, 8: 10}
    next_d = {upper(d, name): upper(other, name) for d, other in further.items() for name in NAMES}
    dense = {f"Fig. 8 lower: d={d}": f"Fig. 8 lower: d={other}" for d, other in further.items()}
    pairs = [(upper(d, "equivalent"), upper(d, "mm")) for d in (4, 6, 8, 10)]
    exchanged = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    grid, reading = "d at the next grid value (2 further)", "published arithmetic and filter"
    expected = [
        posed(
            NAME, "Fig. 8", main,
            {
                grid: swap(main, next_d), "iteration at the next grid value": next_values(main),
                "W^SVMeq and W^mm exchanged": swap(main, exchanged),
            },
            reading,
        ),
        posed(
            NAME, "Fig. 11b", by_threshold, {"threshold at the next grid value": next_values(by_threshold)}, reading,
            "The trials below a threshold are those of the scatter of Fig. 8.",
        ),
        posed(
            NAME, "Fig. 8, lower", masked,
            {grid: swap(masked, dense), "threshold at the next grid value": next_values(masked)}, reading,
        ),
    ]  # fmt: skip
    assert None not in expected
    assert joint([*plain, *exact]) == expected
    assert joint(exact) == joint([]) == []


def test_as_many_readings_are_searched_as_the_documentation_says() -> None:
    """docs/paper.md: 4 of Fig. 8, by arithmetic and by draws that have a query with no gradient."""
    ours = readings()
    kinds: list[tuple[Numerics, str]] = [(numerics, dead) for numerics in NUMERICS for dead in ("kept", "left out")]
    assert [(one.factors["arithmetic"], one.factors["draws with a dead query"]) for one in ours] == kinds
    rows = [accepted(seed, dead=seed % 3) for seed in range(6)]
    for one, (numerics, dead) in zip(ours, kinds, strict=True):
        assert one.figure == "Fig. 8"
        assert one.cells == (Config(4, numerics, trials=400), Config(6, numerics, trials=600))
        assert set(one.points(rows)[0].values) == ({0, 3} if dead == "left out" else set(range(6)))
