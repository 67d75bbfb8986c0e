"""Fig. 1: the two instances, the paths of W z and their angles to the rays, and the figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.plots.style import NARROW, NORM_COLOURS, WIDE
from attsvm_paper.figures import gd_paths as module
from attsvm_paper.figures.gd_paths import Config, figure, instance, sweep, trials, verdicts
from attsvm_paper.judging.comparison import value_verdict
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import descent
from drawn import heading, in_one_column, legend_words, titles


@pytest.mark.parametrize(("effort", "starts"), [("quick", 10), ("full", 50)])
def test_w_has_one_start_and_the_factors_have_several(effort: Any, starts: int) -> None:
    """v1, Fig. 1: T = 3 and 5, 2000 iterations; W starts at zero, and the seed of K is not published."""
    assert [(c.T, c.parameterization, c.numerics, c.trials, c.steps) for c in sweep(effort)] == [
        (T, p, numerics, trials, 2000)
        for T in (3, 5)
        for p, trials in (("W", 1), ("KQ", starts))
        for numerics in ("exact", "published")
    ]


def test_the_steps_that_are_all_recorded_are_the_least_number_of_steps() -> None:
    assert Config(3, steps=60).steps == 60
    with pytest.raises(ValueError, match="steps is 59; at least 60 were expected"):
        Config(3, steps=59)


@pytest.mark.parametrize("T", [3, 5])
def test_an_instance_is_drawn_as_in_the_notebook(T: int) -> None:
    """Seed 1 for three tokens around (-1, 0) and (1, 0); seed 3 for five, of which the first are (1, 0.5 or -0.5)."""
    data, v = instance(T)
    generator = torch.Generator().manual_seed(1 if T == 3 else 3)
    head, noise, queries = (torch.randn(shape, generator=generator).numpy() for shape in ((2,), (2, T, 2), (2, 2)))
    np.testing.assert_allclose(v, head / np.hypot(*head), rtol=1e-6)
    for i in range(2):
        np.testing.assert_allclose(data.queries[i], queries[i] / np.hypot(*queries[i]), rtol=1e-6)
        for t in range(T):
            if T == 3:
                token = 0.3 * noise[i, t] + ([-1, 0], [1, 0])[i]
            else:
                token = 0.5 * noise[i, t] + [-1, 0] if t else ([1, 0.5], [1, -0.5])[i]
            np.testing.assert_allclose(data.tokens[i, t], token, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(data.labels, [1, 1])


def turned(data: TokenData, v: Any, angle: float) -> tuple[TokenData, Any]:
    """Turn tokens and head; the queries stay."""
    R = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return TokenData(np.asarray(data.tokens) @ R.T, data.queries, data.labels), R @ v


def degrees_between(path: np.ndarray, ray: np.ndarray) -> float:
    """Return the signed angle from a ray to a vector."""
    return float(np.degrees(np.arctan2(ray[0] * path[1] - ray[1] * path[0], ray @ path)))


@pytest.mark.parametrize(("T", "p", "steps"), [(3, "W", 300), (5, "KQ", 80)])
def test_a_path_is_w_z_at_the_recorded_steps(T: Any, p: Any, steps: int) -> None:
    seeds = [5, 6]
    found = trials(Config(T, p, "exact", steps), np.array(seeds))
    assert [row["seed"] for row in found] == seeds
    data, v = instance(T)
    best = (data.tokens @ v).argmax(-1)
    target = np.asarray(
        solve(SelectionProblem(data.tokens, data.queries, best), "frobenius" if p == "W" else "nuclear").W
    )
    # Every step to the sixtieth, then sixty in equal ratios.
    ratio = (steps / 60) ** (1 / 59)
    later = [int(60 * ratio**k + 1e-9) for k in range(60)]
    records = sorted({*range(60), *later, steps})
    for row in found:
        start = int(start_seeds([row["seed"]])[0])
        trace = train(data, v, steps=steps, seed=start, record_every=1, **descent("exact", p))
        W = np.asarray(trace.W)
        for i in range(2):
            path = np.array([row[f"x{i + 1}"], row[f"y{i + 1}"]])
            np.testing.assert_allclose(path.T, W[records] @ data.queries[i], rtol=1e-8, atol=1e-12)
            ray = np.array([row[f"ray_x{i + 1}"], row[f"ray_y{i + 1}"]])
            np.testing.assert_allclose(ray, target @ data.queries[i], rtol=1e-6)
            assert row["angles"][i] == pytest.approx(degrees_between(path[:, -1], ray), abs=1e-6)
        cosine = (W[-1] * target).sum() / np.linalg.norm(W[-1]) / np.linalg.norm(target)
        assert row["correlation"] == pytest.approx(cosine, abs=1e-8)
        logits = np.einsum("ntd,de,ne->nt", data.tokens, W[-1], data.queries)
        assert row["global"] == (logits.argmax(-1) == best).all()
        assert len(row["angles"]) == 2
        assert set(row) == {
            "seed", "global", "correlation", "angles",
            *(f"{ray}{axis}{i}" for ray in ("", "ray_") for axis in "xy" for i in (1, 2)),
        }  # fmt: skip


@pytest.mark.parametrize("p", ["W", "KQ"])
def test_published_arithmetic_is_trained_from_the_same_starts(monkeypatch: pytest.MonkeyPatch, p: Any) -> None:
    calls: list[dict[str, Any]] = []

    def spy(data: TokenData, v: Any, **options: Any) -> Any:
        calls.append(options)
        # Its outcome is not looked at, and this arithmetic is faster.
        plain = {key: value for key, value in options.items() if key not in descent("published", p)}
        return train(data, v, **plain, **descent("exact", p))

    monkeypatch.setattr(module, "train", spy)
    trials(Config(3, p, "published", 60), np.array([1, 2]))
    (given,) = calls
    assert {key: value for key, value in given.items() if key in descent("published", p)} == descent("published", p)
    np.testing.assert_array_equal(given["seed"], start_seeds([1, 2]))
    assert given["steps"] == 60


def test_angles_do_not_depend_on_the_direction_of_the_first_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Path and ray turn together; between them the angle of either may jump from 180 to -180 degrees."""
    data, v = instance(5)
    (row,) = trials(Config(5, "W", steps=60), np.array([0]))
    assert min(map(abs, row["angles"])) > 0.5
    for i in (1, 2):
        path, ray = (np.arctan2(row[f"{name}y{i}"], row[f"{name}x{i}"]) for name in ("", "ray_"))
        middle = float((path[-1] + ray) / 2)
        for turn in (0.0, np.pi - middle, -np.pi / 2 - middle, np.pi / 2 - middle):
            monkeypatch.setattr(module, "instance", lambda T, turn=turn: turned(data, v, turn))
            (other,) = trials(Config(5, "W", steps=60), np.array([0]))
            assert other["angles"] == pytest.approx(row["angles"], abs=1e-6)
            assert other["correlation"] == pytest.approx(row["correlation"], abs=1e-9)


def test_one_best_token_of_two_is_not_global(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sequence has its best token beside a worse one that W = c v z^T prefers."""
    tokens = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.2, 0.0], [-1.0, 0.0]]])
    # Opposite queries: no W lets both sequences have their best token.
    data = TokenData(tokens, np.array([[1.0, 0.0], [-1.0, 0.0]]), [1.0, 1.0])
    monkeypatch.setattr(module, "instance", lambda T: (data, np.array([1.0, 0.0])))
    monkeypatch.setattr(module, "solve", lambda problem, norm: solve(SelectionProblem(tokens, np.eye(2), [0, 0]), norm))
    (row,) = trials(Config(3, "W", steps=60), np.array([0]))
    assert not row["global"]
    assert row["x1"][-1] > 0 > row["x2"][-1]


def made(T: int = 3, p: str = "W", numerics: str = "exact", seed: int = 0, **fields: Any) -> Row:
    rng = np.random.default_rng([T, len(p), len(numerics), seed])
    path = np.cumsum(rng.standard_normal((4, 9)) + 2, axis=1)
    row: Row = {
        "T": T, "parameterization": p, "numerics": numerics, "seed": seed, "steps": 700, "global": seed % 3 > 0,
        "correlation": 1 - 0.01 * rng.random(), "angles": rng.uniform(-3, 3, 2).tolist(),
    }  # fmt: skip
    row |= {name: part.tolist() for name, part in zip(("x1", "y1", "x2", "y2"), path, strict=True)}
    rays = zip(("ray_x1", "ray_y1", "ray_x2", "ray_y2"), rng.standard_normal(4).tolist(), strict=True)
    return row | dict(rays) | fields


@pytest.mark.parametrize("numerics", ["exact", "published"])
def test_the_largest_angle_of_a_start_is_measured(numerics: str) -> None:
    angles = ([0.5, -1.5], [1.0, 0.2], [-0.1, 0.3], [2.5, -0.4])
    rows = [made(5, "KQ", numerics, seed, angles=angles[seed], correlation=0.99 + 0.001 * seed) for seed in range(4)]
    one = made(3, "W", numerics, 1, angles=[-0.25, 0.125], correlation=0.5)
    stops = " Published arithmetic stops turning when the gradient is rounded to zero." * (numerics == "published")
    low, high = bootstrap_interval([1.5, 1.0, 0.3, 2.5], np.median)
    name = "largest angle to the SVM ray in degrees"
    # Seeds 0 and 3 select other tokens. A single start has no interval.
    assert verdicts([*rows, one]) == [
        value_verdict(
            "gd-paths", f"{name}, W, T=3, {numerics} numerics", 0.25, 0.25, 0.25, trials=1,
            note="Median over starts, 0 of 1 select other tokens; 2 degrees show in print. "
            f"Smallest correlation 0.500000.{stops}",
        ),
        value_verdict(
            "gd-paths", f"{name}, KQ, T=5, {numerics} numerics", 1.25, low, high, trials=4,
            note="Median over starts, 2 of 4 select other tokens; 2 degrees show in print. "
            f"Smallest correlation 0.990000.{stops}",
        ),
    ]  # fmt: skip


def test_two_starts_have_an_interval() -> None:
    (verdict,) = verdicts([made(angles=[1.0, 0.0], seed=0), made(angles=[2.0, 0.0], seed=1)])
    assert (verdict.low, verdict.measured, verdict.high) == (1.0, 1.5, 2.0)


def log_radius(vector: np.ndarray) -> np.ndarray:
    length = np.hypot(*vector)
    return vector / length * np.log(1 + length)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_paths_end_on_the_unit_circle_beside_their_rays(width: float) -> None:
    rows = {(T, p): made(T, p) for T in (3, 5) for p in ("W", "KQ")}
    # The first start is drawn, in exact arithmetic.
    others = [made(3, "KQ", "exact", 1), made(3, "W", "published"), made(5, "KQ", "published")]
    drawing = figure([*rows.values(), *others], width)
    axes = drawing.axes
    assert in_one_column(drawing) == (width == NARROW)
    assert 3 < drawing.get_figheight() / (2 if width == NARROW else 1) < 6
    assert titles(axes) == ["T = 3 tokens", "T = 5 tokens"]
    assert heading(axes) == "Paths of gradient descent from zero, exact numerics, n = d = 2, 700 steps"
    for ax, T in zip(axes, (3, 5), strict=True):
        drawn = list(ax.lines)
        for p, norm, style in (("W", "frobenius", "-"), ("KQ", "nuclear", "--")):
            row = rows[T, p]
            for i, marker in ((1, "o"), (2, "s")):
                path, end, ray = (drawn.pop(0) for _ in range(3))
                places = [np.asarray(line.get_data(), dtype=float).T for line in (path, end, ray)]
                points = np.array(
                    [log_radius(np.array(point)) for point in zip(row[f"x{i}"], row[f"y{i}"], strict=True)]
                )
                points /= np.hypot(*points[-1])
                np.testing.assert_allclose(places[0], points)
                np.testing.assert_allclose(places[1], points[-1:])
                direction = np.array([row[f"ray_x{i}"], row[f"ray_y{i}"]])
                # The ray is seen beyond the end of the path.
                np.testing.assert_allclose(places[2], [[0, 0], 1.12 * direction / np.hypot(*direction)])
                assert (path.get_linestyle(), end.get_marker(), ray.get_linestyle()) == (style, marker, "-")
                assert {line.get_color() for line in (path, end, ray)} == {NORM_COLOURS[norm]}
                assert ray.get_alpha() is not None
                assert ray.get_linewidth() > path.get_linewidth()
        assert not drawn
        assert ax.get_aspect() == 1
        # At most five intervals between ticks.
        assert all(len(axis.get_major_locator().tick_values(0, 6)) <= 6 for axis in (ax.xaxis, ax.yaxis))
        assert (ax.get_xlabel(), ax.get_ylabel()) == (
            "first coordinate, radius log(1 + length)", "second coordinate",
        )  # fmt: skip
    assert legend_words(axes) == [
        "W z, z = first and second query", "ray of the SVM (Frobenius norm)",
        r"$KQ^\top$ z, z = first and second query", "ray of the SVM (nuclear norm)",
    ]  # fmt: skip


def test_a_part_of_the_cells_leaves_the_other_panel_empty() -> None:
    axes = figure([made(5, "KQ")]).axes
    assert [len(ax.lines) for ax in axes] == [0, 6]
    checks: list[Callable[[Any], str]] = [lambda ax: ax.get_xlabel(), lambda ax: ax.get_title("left")]
    assert all(check(ax) for ax in axes for check in checks)
