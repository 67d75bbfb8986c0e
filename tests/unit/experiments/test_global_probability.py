"""Fig. 6: what a trial contains, which share is compared with which printed one, and the figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.data.synthetic import gapped_trial, random_trial
from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.figures import global_probability as module
from attsvm_paper.figures.global_probability import Config, figure, joint, points, readings, sweep, trials, verdicts
from attsvm_paper.judging.comparison import share_verdict
from attsvm_paper.judging.estimates import share_estimate
from attsvm_paper.judging.joint import joint_test
from attsvm_paper.judging.points import Point, by_key, next_values, swap
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import LedgerNumber, curve
from attsvm_paper.published.numerics import descent
from drawn import all_curves, has_readable_panels, heading, in_one_column, legend_words, printed, ticks, titles

NAME, FIGURE = "global-probability", "Fig. 6"
SIZES = ((5, 5), (10, 5), (20, 5), (5, 10), (5, 20))
KEYS = {
    (5, 5): "Fig. 6a: {}, n=5",
    (10, 5): "Fig. 6a: {}, n=10",
    (20, 5): "Fig. 6a: {}, n=20",
    (5, 10): "Fig. 6b: {}, T=10",
    (5, 20): "Fig. 6b: {}, T=20",
}


@pytest.mark.parametrize(
    ("effort", "dimensions", "offsets", "trials", "steps"),
    [("quick", (5, 10, 20, 30), (6, 11), 100, 1000), ("full", (5, 10, 15, 20, 25, 30), (6, 11, 16), 500, 2000)],
)
def test_a_full_run_has_the_sizes_and_trials_of_the_figure(
    effort: Any, dimensions: tuple[int, ...], offsets: tuple[int, ...], trials: int, steps: int
) -> None:
    """v1, Fig. 6: T = 5 with n = 5, 10, 20, and n = 5 with T = 5, 10, 20; 500 trials, score gap 0.1 (p. 53)."""
    cells = [(c.n, c.T, c.parameterization, c.d, c.trials) for c in sweep(effort)]
    assert cells == [
        (n, T, p, d, count)
        for values, count in ((dimensions, trials), (offsets, 100))
        for n, T in SIZES
        for p in ("W", "KQ")
        for d in values
    ]
    assert {(c.gap, c.numerics, c.steps) for c in sweep(effort)} == {(0.1, "published", steps)}


@pytest.mark.parametrize(
    "config",
    [
        Config(3, 4, 2, "W", "exact", steps=25),
        Config(2, 3, 2, "KQ", "published", steps=10),
        Config(2, 3, 3, "KQ", "exact", gap=0.0, steps=15),
    ],
)
def test_a_row_tells_whether_all_tokens_are_the_best_and_whether_these_have_an_svm(config: Config) -> None:
    seeds = list(range(10))
    found = trials(config, np.array(seeds))
    assert [row["seed"] for row in found] == seeds
    n, T, d = config.n, config.T, config.d
    instances = draw(seeds, n, T, d, config.gap or None)
    options = descent(config.numerics, config.parameterization)
    trace = train(
        instances.data, instances.v, steps=config.steps, init="torch", seed=start_seeds(seeds), **options
    )  # fmt: skip
    for row, W in zip(found, np.asarray(trace.W[:, -1]), strict=True):
        rng = np.random.default_rng(row["seed"])
        *parts, v = gapped_trial(rng, n, T, d, config.gap) if config.gap else random_trial(rng, n, T, d)
        data = TokenData(*parts)
        best = (data.labels[:, None] * (data.tokens @ v)).argmax(-1)
        attention = softmax(np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries), -1)
        assert row["global"] == (attention.argmax(-1) == best).all()
        assert row["attention"] == pytest.approx(attention.max(-1).min())
        objective = solve(SelectionProblem(data.tokens, data.queries, best)).objective
        # What training selects has an SVM.
        assert row["feasible"] == (row["global"] or bool(np.isfinite(objective)))
    assert {row["global"] for row in found} == {True, False}


def test_trials_that_all_hit_pose_no_svm() -> None:
    (row,) = trials(Config(1, 2, 8, "W", "exact", steps=60), np.array([1]))
    assert row["global"]
    assert row["feasible"]


def made(n: int = 5, T: int = 5, d: int = 5, p: str = "W", trials: int = 10, **fields: Any) -> list[Row]:
    """Make rows of which other numbers are global, feasible and settled; more are global with W than with (K, Q)."""
    rng = np.random.default_rng([n, T, d, len(p), trials])
    return [
        {"n": n, "T": T, "d": d, "parameterization": p, "numerics": "published", "gap": 0.1, "seed": seed}
        | {"global": bool(rng.random() < (0.9 if p == "W" else 0.3)), "feasible": bool(rng.random() < 0.7)}
        | {"attention": float(rng.choice([0.5, 0.998, 0.999, 1.0]))}
        | fields
        for seed in range(trials)
    ]


def number(key: str, d: int) -> LedgerNumber:
    one = curve(key).at(d)
    assert one is not None
    return one


@pytest.mark.parametrize(
    ("fields", "words", "published"),
    [
        ({}, "", True),
        ({"gap": 0.0}, ", gap 0", False),
        ({"gap": 0.25}, ", gap 0.25", False),
        ({"numerics": "exact"}, ", exact numerics", False),
        ({"numerics": "exact", "gap": 0.0}, ", gap 0, exact numerics", False),
    ],
)
def test_a_share_is_compared_if_gap_and_arithmetic_are_the_published_ones(
    fields: dict[str, Any], words: str, published: bool
) -> None:
    cells = [made(n, T, d, p, **fields) for p in ("KQ", "W") for n, T in sorted(SIZES) for d in (5, 7, 10)]
    found = verdicts([row for cell in reversed(cells) for row in cell])
    expected = []
    for cell in cells:
        n, T, d, p = (cell[0][name] for name in ("n", "T", "d", "parameterization"))
        expected.append(
            share_verdict(
                NAME,
                f"P(global), {p}, n={n}, T={T}, d={d}{words}",
                sum(row["global"] for row in cell),
                len(cell),
                published=number(KEYS[n, T].format(p), d) if published and d != 7 else None,
                margin=0.1,
                infeasible=sum(not row["feasible"] for row in cell),
            )
        )
    assert found == expected


def test_other_sizes_are_measured() -> None:
    rows = made(4, 5) + made(5, 4) + made(10, 10)
    assert {(one.verdict, one.published) for one in verdicts(rows)} == {("measured", None)}
    assert module._reference_curve("W", 4, 5) is None


def test_neighbouring_dimensions_have_a_verdict_only_if_there_are_no_others() -> None:
    """They are for the joint test, which compares d + 1 with the number printed at d."""
    others = made(d=6) + made(d=11) + made(d=16)
    assert [one.quantity for one in verdicts(others + made(d=5))] == ["P(global), W, n=5, T=5, d=5"]
    assert len(verdicts(others)) == 3


Counts = Callable[[Row], bool]


def pairs(rows: Sequence[Row], counts: Counts = lambda row: True, offset: int = 0) -> list[Point]:
    """Pair each printed probability with the counted trials whose d is `offset` larger."""
    found = []
    for p in ("KQ", "W"):
        for n, T in sorted(SIZES):
            one = curve(KEYS[n, T].format(p))
            for at, d in enumerate(one.x):
                cell = [
                    row
                    for row in rows
                    if (row["parameterization"], row["n"], row["T"], row["d"]) == (p, n, T, d + offset)
                ]
                values = {row["seed"]: float(row["global"]) for row in cell if counts(row)}
                found += [Point(number(one.key, d), values, 0.1, "share", (one.key, at))] * bool(cell)
    return found


def plain(points: Sequence[Point]) -> list[Any]:
    return [(p.published.key, p.place, dict(p.values), p.margin, p.kind, p.trials, p.deviation) for p in points]


def grid(dimensions: tuple[int, ...] = (5, 6, 10), **fields: Any) -> list[Row]:
    cells = [made(n, T, d, p, **fields) for p in ("W", "KQ") for n, T in (*SIZES, (4, 5)) for d in dimensions]
    return [row for cell in cells for row in cell]


def test_a_point_has_the_trials_that_count() -> None:
    rows = grid()
    assert plain(points(rows)) == plain(pairs(rows))
    assert plain(points(rows, lambda row: row["feasible"])) == plain(pairs(rows, lambda row: row["feasible"]))
    assert plain(points(rows, offset=1)) == plain(pairs(rows, offset=1))
    assert {one.place[1] for one in pairs(rows, offset=1)} == {0}


def test_the_joint_test_has_the_printed_setting_and_power_against_its_neighbours() -> None:
    rows = grid()
    main = pairs(rows)
    partner = {key.format(p): key.format(q) for key in KEYS.values() for p, q in (("W", "KQ"), ("KQ", "W"))}
    alternatives = {
        "d at the next grid value (5 further)": next_values(main),
        "d off by one": by_key(pairs(rows, offset=1)),
        "W and (K, Q) swapped": swap(main, partner),
    }
    expected = joint_test(NAME, FIGURE, main, alternatives, "published arithmetic, score gap 0.1 (p. 53)")
    assert joint(rows + grid(gap=0.0) + grid(numerics="exact")) == [expected]
    assert joint(grid(gap=0.0) + grid(numerics="exact")) == []
    assert all(module._swap(key) == other for key, other in partner.items())


def test_every_combination_of_the_open_choices_is_tried_once() -> None:
    """docs/paper.md: 12 readings, of the gap, the arithmetic, and which trials count."""
    found = readings()
    assert len({one.name for one in found}) == len(found) == 12
    rows = grid()
    counted: dict[str, Counts] = {
        "none": lambda row: True,
        "optimal tokens have an SVM": lambda row: row["feasible"],
        "attention settled": lambda row: row["attention"] >= 0.999,
    }
    for one in found:
        assert one.figure == FIGURE
        assert [(c.n, c.T, c.parameterization, c.d) for c in one.cells] == [
            (n, T, p, d) for n, T in ((10, 5), (20, 5), (5, 20)) for p in ("W", "KQ") for d in (5, 10, 20)
        ]
        assert {f"{c.gap:g}" for c in one.cells} == {one.factors["score gap"]}
        assert {c.numerics for c in one.cells} == {one.factors["arithmetic"]}
        assert {(c.steps, c.trials) for c in one.cells} == {(1000, 100)}
        assert plain(one.points(rows)) == plain(pairs(rows, counted[one.factors["filter"]]))
    assert {one.factors["score gap"] for one in found} == {"0", "0.1"}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_n_varies_in_the_left_column_and_t_in_the_right(width: float) -> None:
    cells = {(n, T, p): (made(n, T, 5, p), made(n, T, 10, p)) for n, T in SIZES for p in ("W", "KQ")}
    rows = [row for pair in cells.values() for cell in pair for row in cell]
    drawing = figure(rows + made(d=6, n=5, T=5), width)
    axes = drawing.axes
    assert in_one_column(drawing) == (width == NARROW)
    assert has_readable_panels(drawing, 4 if width == NARROW else 2)
    assert titles(axes) == [
        "training W, T = 5", "training W, n = 5", "training (K, Q), T = 5", "training (K, Q), n = 5",
    ]  # fmt: skip
    columns = (((5, 5), (10, 5), (20, 5)), ((5, 5), (5, 10), (5, 20)))
    for down, p in enumerate(("W", "KQ")):
        for across, sizes in enumerate(columns):
            drawn = all_curves(axes[2 * down + across])
            assert [(one.label, one.style) for one in drawn] == [(f"n = {n}, T = {T}", "-") for n, T in sizes]
            # The size in both columns has one look, the others have their own.
            assert [one.look for one in drawn] == ([0, 1, 2] if across == 0 else [0, 3, 4])
            for one, (n, T) in zip(drawn, sizes, strict=True):
                one.shows({c[0]["d"]: share_estimate(sum(row["global"] for row in c), 10) for c in cells[n, T, p]})
            keys = [curve(KEYS[size].format(p)) for size in sizes]
            assert [(x, y) for x, y in printed(axes[2 * down + across])] == [
                (list(map(float, key.x)), list(key.y)) for key in keys
            ]
    for ax in axes:
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension d", "probability")
        assert ax.get_xscale() == "linear"
        assert ax.get_ylim() == pytest.approx((-0.03, 1.03))
        assert list(ticks(ax.xaxis).items()) == [(d, str(d)) for d in (5, 10, 15, 20, 25, 30)]
    assert heading(axes) == "Probability that training selects every globally optimal token (score gap at least 0.1)"
    assert sorted(legend_words(axes)) == sorted(
        [*(f"n = {n}, T = {T}" for n, T in SIZES), "ours, 95 % interval", "published"]
    )


def test_other_sizes_have_a_panel_of_their_own() -> None:
    drawing = figure(made(4, 5, 7) + made(3, 2, 7, "KQ"))
    axes = drawing.axes
    sizes = "n = 3, T = 2, n = 4, T = 5"
    assert titles(axes) == [f"training W, {sizes}", f"training (K, Q), {sizes}"]
    assert [[(one.label, one.look, one.x) for one in all_curves(ax)] for ax in axes] == [
        [("n = 4, T = 5", 1, [7.0])], [("n = 3, T = 2", 0, [7.0])],
    ]  # fmt: skip
    assert not any(printed(ax) for ax in axes)
    assert [d for d, _ in list(ticks(axes[0].xaxis).items())] == [5, 7, 10, 15, 20, 25, 30]


def test_more_sizes_than_looks_begin_again() -> None:
    rows = [row for n in range(2, 10) for row in made(n, 3, 7)]
    drawing = figure(rows)
    assert [one.look for one in all_curves(drawing.axes[0])] == [0, 1, 2, 3, 4, 5, 0, 1]
    # The panel of (K, Q) has no curve, and those of W are in the legend.
    assert {f"n = {n}, T = 3" for n in range(2, 10)} < set(legend_words(drawing.axes))
