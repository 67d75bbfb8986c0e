"""Prompt attention in the plane: the published problems, what a row says of a run, its verdicts and its figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.axes import Axes

from attsvm import TokenData
from attsvm.plots.style import NARROW, WIDE
from attsvm.training.optimisers.descent import NormalizedGD
from attsvm_paper.figures import prompt_attention
from attsvm_paper.figures.prompt_attention import Config, Setting, figure, offset, sweep, trials, verdicts
from attsvm_paper.judging.comparison import value_verdict
from attsvm_paper.judging.verdict import Row, Verdict
from drawn import has_readable_panels

NAME = "prompt-attention"
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
LOSSES = ("logistic", "exponential", "correlation")


# --- settings and problems ---


def test_the_sweep_is_every_published_run() -> None:
    """arXiv 2306.13596: six starts (0, t, 0) of two problems, both joint problems, three losses at three ratios."""
    cells = sweep("quick")
    assert cells == sweep("full")
    single = ("equal scores", "third scores less")
    expected = [(setting, start, "logistic", 1.0) for setting in single for start in STARTS]
    expected += [(setting, -1.0, "logistic", 1.0) for setting in ("tight", "relaxed")]
    expected += [("losses", 0.0, loss, C) for loss in LOSSES for C in (0.5, 2.0, 3.0)]
    assert [(cell.setting, cell.start, cell.loss, cell.C) for cell in cells] == expected
    assert {(cell.lr, cell.steps, cell.trials) for cell in cells} == {(0.1, 2000, 1)}


def test_a_run_has_at_least_the_steps_that_are_all_recorded() -> None:
    assert Config("tight", steps=60).steps == 60
    with pytest.raises(ValueError, match="steps is 59; at least 60 were expected"):
        Config("tight", steps=59)


def posed(config: Config, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int] = (4,)) -> tuple[list[Row], Any]:
    """Return the rows of a run that goes nowhere, and what it was asked to train."""
    said = SimpleNamespace()

    def ended(data: TokenData, v: np.ndarray, **options: Any) -> SimpleNamespace:
        said.__dict__.update(data=data, v=v, **options)
        path = np.arange(12.0).reshape(4, 3, 1)
        return SimpleNamespace(W=path, head={"v": np.array([[1.0, 2], [3, 4], [5, 6]])}, selected=np.array([1, 0, 2]))

    monkeypatch.setattr(prompt_attention, "train", ended)
    return trials(config, np.array(seeds)), said


ONE_INPUT = [[[-0.1, 1, 1], [1, 0, 0.9], [0, 0, 0.9]]]
THREE_INPUTS = [[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, 1.0]]]
TWO_SCORES = [[[1, -1, 1], [0, 0, 0]], [[1, 1, 3], [0, 0, 0]]]
PROBLEMS: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    # Tokens, labels, key, head, start.
    "equal scores": (ONE_INPUT, [1], np.diag([1, 1, 0]), [0, 0, 1], [0, 0.5, 0]),
    "third scores less": ([[*ONE_INPUT[0][:2], [0, 0, 0]]], [1], np.diag([1, 1, 0]), [0, 0, 1], [0, 0.5, 0]),
    "tight": (THREE_INPUTS, [1, -1, 1], np.eye(2), [-1, 0], [0, 0.5]),
    "relaxed": ([*THREE_INPUTS[:2], [[0, 0], [0.5, 1.5]]], [1, -1, 1], np.eye(2), [-1, 0], [0, 0.5]),
    "losses": (TWO_SCORES, [1, 1], np.eye(3)[:2], [0, 0, 1], [0, 0]),
}


@pytest.mark.parametrize("setting", PROBLEMS)
def test_the_problems_are_the_published_ones(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """arXiv 2306.13596, its figures; scores 1 and C of the selected tokens are ours."""
    tokens, labels, key, head, start = PROBLEMS[setting]
    config = Config(setting, start=0.5, loss="exponential", C=3.0, lr=0.2, steps=6000)
    rows, said = posed(config, monkeypatch)
    np.testing.assert_array_equal(said.data.values, np.array(tokens, dtype=float))
    np.testing.assert_allclose(said.data.tokens, np.array(tokens, dtype=float) @ key.T)
    np.testing.assert_array_equal(said.data.labels, labels)
    np.testing.assert_array_equal(said.data.queries, np.ones((len(labels), 1)))
    np.testing.assert_array_equal(said.v, head)
    np.testing.assert_array_equal(said.init, np.array(start, dtype=float)[:, None])
    assert (said.optimizer, said.steps, said.loss) == (NormalizedGD(0.2), 6000, "exponential")
    joint = setting in ("tight", "relaxed")
    # The head learns with the prompt's step or not at all.
    assert said.head_lr == (0.2 if joint else None)
    assert rows[0]["head"] == ([5.0, 6.0] if joint else None)


def test_sixty_steps_are_all_recorded_and_sixty_more_at_equal_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    record = posed(Config("tight", steps=6000), monkeypatch)[1].record_every
    assert record[:61] == list(range(61))
    assert (record[-1], len(record)) == (6000, 120)
    # 59 ratios from 60 to 6,000, rounded down.
    np.testing.assert_allclose(record[60:], 60 * 100 ** (np.arange(60) / 59), atol=1)


def test_every_seed_has_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = posed(Config("losses"), monkeypatch, (4, 9))
    same = {"x": [0.0, 3.0, 6.0, 9.0], "y": [1.0, 4.0, 7.0, 10.0], "head": None, "selected": [1, 0, 2]}
    assert rows == [{"seed": 4, **same}, {"seed": 9, **same}]


def test_a_path_is_normalised_descent_on_the_prompt() -> None:
    """One input, logistic loss: the gradient is l'(gamma s) K^T (diag(s) - s s^T) gamma."""
    K, gamma = np.array([[-0.1, 1], [1, 0], [0, 0]]), np.array([1, 0.9, 0])
    p, path = np.array([0.0, -1.5]), []
    for _ in range(61):
        path.append(p)
        s = np.exp(K @ p) / np.exp(K @ p).sum()
        gradient = -K.T @ (s * (gamma - s @ gamma)) / (1 + np.exp(s @ gamma))
        p = p - 0.1 * gradient / np.linalg.norm(gradient)
    (row,) = trials(Config("third scores less", start=-1.5, steps=60), [0])
    np.testing.assert_allclose(np.transpose([row["x"], row["y"]]), path, atol=1e-9)
    assert row["selected"] == [int((K @ path[-1]).argmax())]


@pytest.mark.parametrize("C", [0.5, 3.0])
def test_the_offset_is_half_the_logarithm_of_the_ratio_of_slopes(C: float) -> None:
    """Slopes of log(1 + e^-u), e^-u and -u."""
    ratio = {"logistic": (1 + math.e) / (1 + math.exp(C)), "exponential": math.exp(1 - C), "correlation": 1.0}
    for loss in LOSSES:
        assert offset(loss, C) == pytest.approx(math.log(C * ratio[loss]) / 2, rel=1e-12)


# --- verdicts ---


def row(setting: str, end: tuple[float, float], start: float = 0.0, **other: Any) -> Row:
    x, y = end
    path = {"x": [0.0, 0.5, x / 2, x], "y": [start, 0.25, y / 2, y]}
    fields = {"seed": 1, "trial": 0, "loss": "logistic", "C": 1.0, "head": None, "selected": [0]}
    return fields | {"setting": setting, "start": start, **path} | other


def measured(quantity: str, value: float, note: str, trials: int = 1) -> Verdict:
    return value_verdict(NAME, quantity, value, value, value, trials=trials, note=note)


def check(ours: Sequence[Verdict], expected: Sequence[Verdict]) -> None:
    assert [(one.quantity, one.note, one.trials) for one in ours] == [
        (one.quantity, one.note, one.trials) for one in expected
    ]
    for one, other in zip(ours, expected, strict=True):
        assert (one.experiment, one.verdict, one.published) == (NAME, "measured", None)
        assert [one.measured, one.low, one.high] == pytest.approx([other.measured] * 3, abs=1e-9)


def finite(length: float) -> str:
    return f"A finite part up to 3 is {math.degrees(3 / length):.2g} degrees at the length reached."


def test_directions_are_measured_from_the_limit_of_the_token_at_the_end() -> None:
    """The limits are (-0.1, 1) and (1, 0); equal scores have the first only. Turns are the shorter ones."""
    best = math.degrees(math.atan2(1, -0.1))
    rows = [
        row("equal scores", (30.0, 40.0), 0.5, selected=[1]),
        row("third scores less", (-50.0, -50.0), -1.5),
        row("third scores less", (0.0, 20.0), 1.0, selected=[1]),
        row("third scores less", (0.0, -20.0), -0.5, selected=[2]),
    ]
    expected = [
        measured("degrees off the limit, equal scores, start 0.5, token 2", 53.13010235415598 - best, finite(50)),
        measured("degrees off the limit, third scores less, start -1.5, token 1", 225 - best, finite(50 * 2**0.5)),
        measured("degrees off the limit, third scores less, start -0.5, token 3", -90, finite(20)),
        measured("degrees off the limit, third scores less, start 1, token 2", 90, finite(20)),
    ]
    check(verdicts(rows), expected)


@pytest.mark.parametrize(("kept", "some"), [(0, 0.0), (1, 1.0), (3, 1.0)])
def test_starts_kept_by_the_second_token_are_counted_once_all_six_are_there(kept: int, some: float) -> None:
    rows = [row("third scores less", (0.0, 9.0), start, selected=[int(at < kept)]) for at, start in enumerate(STARTS)]
    quantity = "some of the six starts kept by the second token, third scores less"
    ours = verdicts(rows)
    check(ours[6:], [measured(quantity, some, f"{kept} of 6.", 6)])
    # One start less, and other trials of the same runs.
    assert len(verdicts(rows[1:])) == 5
    assert verdicts([*rows, *(one | {"trial": 1, "x": [5.0]} for one in rows)]) == ours


def test_joint_directions_are_measured_from_theirs() -> None:
    """The limits are (4, 1) for three support vectors and (1, 0) for two."""
    rows = [row("tight", (40.0, 40.0), -1.0), row("relaxed", (30.0, 0.0), -1.0), row("relaxed", (0.0, 30.0), 0.5)]
    turn = 45 - math.degrees(math.atan2(1, 4))
    expected = [
        measured("degrees off the limit, head and prompt, tight", turn, finite(40 * 2**0.5)),
        measured("degrees off the limit, head and prompt, relaxed", 0, finite(30)),
        measured("degrees off the limit, head and prompt, relaxed, start 0.5", 90, finite(30)),
    ]
    check(verdicts(rows), expected)


def test_offsets_stand_beside_the_formula() -> None:
    rows = [
        row("losses", (30.0, 0.4), loss="logistic", C=2.0), row("losses", (30.0, 0.35), loss="correlation", C=2.0),
        row("losses", (30.0, -0.85), loss="exponential", C=0.5),
    ]  # fmt: skip
    expected = [
        measured("offset, correlation loss, C=2", 0.35, "1/2 log(C |l'(C)| / |l'(1)|) is 0.346574."),
        measured("offset, exponential loss, C=0.5", -0.85, "1/2 log(C |l'(C)| / |l'(1)|) is -0.0965736."),
        measured("offset, logistic loss, C=2", 0.4, f"1/2 log(C |l'(C)| / |l'(1)|) is {offset('logistic', 2):.6g}."),
    ]
    check(verdicts(rows), expected)
    assert verdicts([]) == []


# --- figure ---


def lines(ax: Axes, style: str) -> list[tuple[str, np.ndarray]]:
    """Labels and points (2, k) of the lines of a style; "None" is markers alone."""
    return [(str(one.get_label()), np.array(one.get_data())) for one in ax.lines if one.get_linestyle() == style]


def shortened(path: Row) -> np.ndarray:
    points = np.array([path["x"], path["y"]])
    length = np.hypot(*points)
    return points * (np.log1p(length) / np.maximum(length, 1e-300))


ROWS = [
    row("equal scores", (-2.0, 20.0), 0.5),
    row("equal scores", (-3.0, 30.0), -1.5),
    row("third scores less", (40.0, 2.0), -1.0, selected=[1]),
    row("third scores less", (-2.0, 20.0), 1.0),
    row("tight", (40.0, 10.0), -1.0),
    row("relaxed", (40.0, 1.0), -1.0),
    *(row("losses", (30.0, 0.1 * C * at), loss=loss, C=C) for at, loss in enumerate(LOSSES) for C in (0.5, 2.0)),
]
FIRST, SECOND, JOINT = np.array([-0.1, 1]), np.array([1.0, 0]), np.array([4.0, 1])


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_paths_are_drawn_over_their_limits(width: float) -> None:
    picture = figure(ROWS, width)
    axes = picture.axes
    assert len(axes) == 4
    assert has_readable_panels(picture, 2 if width == WIDE else 4)
    panels = (
        ("one input, equal scores", ROWS[:2], ["ends at token 1"] * 2, [FIRST]),
        ("one input, third scores less", ROWS[2:4], ["ends at token 2", "ends at token 1"], [FIRST, SECOND]),
        (
            "head and prompt together", ROWS[4:6],
            ["head and prompt, tight", "head and prompt, relaxed"], [JOINT, SECOND],
        ),
    )  # fmt: skip
    for ax, (title, own, labels, limits) in zip(axes, panels, strict=False):
        assert ax.get_title(loc="left") == title
        paths, starts, rays = (lines(ax, style) for style in ("-", "None", "--"))
        assert [label for label, _ in paths] == labels
        for (_, path), (_, start), one in zip(paths, starts, own, strict=True):
            np.testing.assert_allclose(path, shortened(one))
            np.testing.assert_allclose(start[:, 0], shortened(one)[:, 0])
        for (label, points), limit in zip(rays, limits, strict=True):
            assert label == "limits"
            np.testing.assert_array_equal(points[:, 0], 0)
            # A ray is as long as the panel's diagonal at least.
            assert points[:, 1] @ limit / np.linalg.norm(limit) == pytest.approx(np.linalg.norm(points[:, 1]))
            assert np.hypot(6, 5.7) < np.linalg.norm(points[:, 1]) < 16
        # Paths hide their limits, not the other way round.
        order = {style: [one.get_zorder() for one in ax.lines if one.get_linestyle() == style] for style in ("-", "--")}
        assert max(order["--"]) < min(order["-"])
        assert (ax.get_xlim(), ax.get_ylim()) == ((-2, 6), pytest.approx((-1.7, 5.7)))
        # Angles are seen only at equal scales.
        assert ax.get_aspect() == 1
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("first coordinate of p", "second coordinate of p")


def test_paths_that_end_alike_look_alike() -> None:
    paths = [one for ax in figure(ROWS).axes[:3] for one in ax.lines if one.get_linestyle() == "-"]
    colours = {str(one.get_label()): one.get_color() for one in paths}
    assert len(colours) == len(set(colours.values())) == 4
    for one in paths:
        assert one.get_color() == colours[str(one.get_label())]


def test_offsets_are_drawn_over_the_formula() -> None:
    picture = figure(ROWS)
    ax = picture.axes[3]
    measured_points, formulas = lines(ax, "None"), lines(ax, "--")
    assert [label for label, _ in measured_points] == [f"{loss} loss" for loss in LOSSES]
    for at, (loss, (_, points), (_, line)) in enumerate(zip(LOSSES, measured_points, formulas, strict=True)):
        np.testing.assert_allclose(points, [[0.5, 2.0], [0.05 * at, 0.2 * at]])
        np.testing.assert_allclose(line[1], [offset(loss, C) for C in line[0]])
        # The ratios of the sweep lie between its ends.
        assert 0.2 < line[0][0] < 0.5 < 3 < line[0][-1] < 4
    assert [one.get_ydata() for one in ax.lines if one.get_linestyle() == "-"] == [[0, 0]]
    assert ax.get_title(loc="left") == "offset by loss (dashed: the formula)"
    assert ax.get_xlabel() == "score C of the second selected token"
    assert ax.get_ylabel() == "second coordinate of p at the end"
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "limits", "ends at token 1", "ends at token 2", "head and prompt, tight", "head and prompt, relaxed",
        *(f"{loss} loss" for loss in LOSSES),
    ]  # fmt: skip
    assert cast("Any", picture)._suptitle.get_text() == "Paths of the prompt p in the plane, radius log(1 + length)"
