"""Similar tokens: rivals, rows on a small data set, verdicts and figure of rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm.study.controls import shuffle
from attsvm.study.results import Settings, Setup
from attsvm.study.run import prepare
from attsvm.theory.tokens import Trial
from attsvm_paper.beyond import token_similarity
from attsvm_paper.beyond.token_similarity import Config
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval
from drawn import all_curves, curves, in_one_column, legend_words, levels, panel_height, ticks, titles

CLASSES = ["3-8", "numpy-scipy"]


@pytest.mark.parametrize(("effort", "trials", "steps"), [("quick", 10, 2000), ("full", 50, 10_000)])
def test_the_sweep_has_no_rivals_and_five_distances_at_two_shares_on_both_data_sets(
    effort: Any, trials: int, steps: int
) -> None:
    """docs/paper.md: digits and text, without rivals and down to a hundredth of a token's length."""
    cells = token_similarity.sweep(effort)
    pairs = [(0.0, 1.0), *((distance, share) for share in (0.9, 0.1) for distance in (1.0, 0.3, 0.1, 0.03, 0.01))]
    assert [(one.classes, one.distance, one.share) for one in cells] == [
        (classes, *pair) for classes in CLASSES for pair in pairs
    ]
    assert {(one.n, one.lr, one.trials, one.steps) for one in cells} == {(20, 1.0, trials, steps)}


@pytest.mark.parametrize(
    "given", [{"distance": -0.1}, {"distance": 1.0, "share": 0.0}, {"distance": 1.0, "share": 1.1}]
)
def test_distances_and_shares_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a distance from 0 and a share in"):
        Config(**given)
    assert (Config(0.0, 1.0).distance, Config(5.0, 0.01).share) == (0.0, 0.01)


@pytest.mark.parametrize(
    ("classes", "text", "nouns"),
    [
        ("3-8", False, ("digits", "image")),
        ("numpy-scipy", True, ("text", "text")),
        ("odd-even", False, ("digits", "image")),
    ],
)
def test_two_words_are_libraries_but_for_odd_and_even(classes: str, text: bool, nouns: tuple[str, str]) -> None:
    assert token_similarity.is_text(classes) is text
    assert token_similarity.nouns_of(classes) == nouns


def test_text_is_read_from_documentation_and_all_else_from_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docstrings", "word_dataset", "digits"):
        monkeypatch.setattr(token_similarity, name, lambda given, name=name: f"{name} of {given}")
    read = token_similarity.real_data.__wrapped__
    assert read("numpy-scipy") == "word_dataset of docstrings of numpy-scipy"
    assert read("3-8") == "digits of 3-8"


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(token_similarity.real_data("3-8"), Settings(train=10, seed=3))


@pytest.mark.parametrize(("distance", "share"), [(0.5, 0.9), (0.01, 0.1), (2.0, 1.0)])
def test_a_rival_is_at_its_distance_and_scores_less_by_a_share_of_it(
    setup: Setup, distance: float, share: float
) -> None:
    trial = token_similarity.with_rivals(setup, distance, share, np.random.default_rng(4))
    n, T = setup.trial.mask.shape
    np.testing.assert_array_equal(trial.tokens[:, :T], setup.trial.tokens)
    np.testing.assert_array_equal(trial.mask[:, :T], setup.trial.mask)
    assert trial.mask[:, T].all()
    best = setup.trial.gamma.argmax(1)
    away = trial.tokens[np.arange(n), best] - trial.tokens[:, T]
    np.testing.assert_allclose(np.linalg.norm(away, axis=1), distance, rtol=1e-9)
    np.testing.assert_allclose(trial.gamma[np.arange(n), best] - trial.gamma[:, T], share * distance, atol=1e-9)
    np.testing.assert_array_equal(trial.queries, setup.trial.queries)
    np.testing.assert_array_equal(trial.labels, setup.trial.labels)


def test_the_direction_of_a_rival_does_not_depend_on_its_distance(setup: Setup) -> None:
    near, far = (
        token_similarity.with_rivals(setup, distance, 0.9, np.random.default_rng(4)) for distance in (0.1, 1.0)
    )
    best = setup.trial.tokens[np.arange(10), setup.trial.optimal]
    np.testing.assert_allclose(10 * (best - near.tokens[:, -1]), best - far.tokens[:, -1], atol=1e-9)
    rng, other = np.random.default_rng(4), np.random.default_rng(4)
    assert token_similarity.with_rivals(setup, 0.0, 0.9, rng) is setup.trial
    token_similarity.with_rivals(setup, 1.0, 0.9, other)
    # Without rivals the numbers that follow are those with them.
    assert rng.random() == other.random()


@pytest.mark.parametrize("distance", [0.0, 0.2])
def test_a_row_compares_w_with_its_svm_early_and_at_the_end(distance: float) -> None:
    config = Config(distance, 0.5, "3-8", n=6, steps=50)
    seeds = np.array([3, 5])
    rows = token_similarity.trials(config, seeds)
    assert [row["seed"] for row in rows] == [3, 5]
    for row, seed in zip(rows, (3, 5), strict=True):
        setup = prepare(token_similarity.real_data("3-8"), Settings(train=6, seed=seed))
        rng = np.random.default_rng((seed, 1))
        trial = token_similarity.with_rivals(setup, distance, 0.5, rng)
        W, early = (np.asarray(train(trial.data, setup.head.v, steps=steps, lr=1.0).W[-1]) for steps in (50, 2))
        logits = np.where(trial.mask, np.einsum("ntd,nd->nt", trial.tokens, trial.queries @ W.T), -np.inf)
        top = logits.argmax(1)
        other = shuffle(top, trial.mask, rng)
        assert other is not None
        mm, control = (
            solve(SelectionProblem(trial.tokens, trial.queries, one, mask=trial.mask)) for one in (top, other)
        )

        def cosine(A: np.ndarray, B: Any) -> float:
            return float((A * B).sum() / np.sqrt((A * A).sum() * (B * B).sum()))

        assert row["infeasible"] is False
        assert row["correlation"] == pytest.approx(cosine(W, mm.W), abs=1e-8)
        assert row["error"] == pytest.approx(1 - cosine(W, mm.W), abs=1e-8)
        assert row["early"] == pytest.approx(1 - cosine(early, mm.W), abs=1e-8)
        feasible = np.isfinite(control.objective)
        assert row["control"] == (pytest.approx(cosine(W, control.W), abs=1e-6) if feasible else None)
        leads = np.where(trial.mask, logits[np.arange(6), top][:, None] - logits, np.inf)
        leads[np.arange(6), top] = np.inf
        norm = np.sqrt((np.asarray(mm.W) ** 2).sum())
        assert row["margin"] == pytest.approx(leads.min() / np.sqrt((W * W).sum()) * norm, rel=1e-6)
        assert row["svm_norm"] == pytest.approx(norm, rel=1e-6)
        assert row["optimal"] == np.mean(top == trial.gamma.argmax(1))
        assert row["rival"] == np.mean(top == setup.trial.tokens.shape[1])
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        assert row["attention"] == pytest.approx(weights.max(1).mean(), rel=1e-9)
        assert ({"by_distance", "by_gap"} <= set(row)) is (distance == 0)
        if distance == 0:
            own = token_similarity.by_sequence(trial, W, top)
            assert {name: row[name] for name in own} == pytest.approx(own)


def test_selections_without_an_svm_leave_their_fields_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences with the same tokens and query: no W selects two different tokens."""
    tokens, queries = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2), np.ones((2, 2))
    none = solve(SelectionProblem(tokens, queries, np.array([0, 1])))
    assert not np.isfinite(none.objective)
    monkeypatch.setattr(token_similarity, "solve", lambda *_, **__: none)
    (row,) = token_similarity.trials(Config(0.2, 0.5, "3-8", n=4, steps=20), [3])
    assert row["infeasible"] is True
    assert all(row[name] is None for name in ("correlation", "error", "early", "control", "margin", "svm_norm"))
    # One token selected everywhere cannot be shuffled: there is no control to solve.
    monkeypatch.undo()
    monkeypatch.setattr(token_similarity, "shuffle", lambda *_: None)
    (row,) = token_similarity.trials(Config(0.2, 0.5, "3-8", n=4, steps=20), [3])
    assert row["control"] is None
    assert row["correlation"] is not None


def small_trial(tokens: np.ndarray, queries: np.ndarray, mask: np.ndarray | None = None) -> Trial:
    n = len(tokens)
    return Trial.of(TokenData(tokens, queries, np.where(np.arange(n) % 2, -1.0, 1.0), mask), np.array([1.0, -2.0, 0.5]))


def test_margins_of_sequences_are_rank_correlated_with_distance_and_gap() -> None:
    rng = np.random.default_rng(2)
    tokens, queries, W = rng.standard_normal((7, 4, 3)), rng.standard_normal((7, 3)), rng.standard_normal((3, 3))
    mask = np.ones((7, 4), dtype=bool)
    mask[2, 3] = mask[5, 0] = False
    trial = small_trial(tokens, queries, mask)
    logits = np.where(mask, np.stack([x @ W @ z for x, z in zip(tokens, queries, strict=True)]), -np.inf)
    top = logits.argmax(1)
    margins, distances, gaps = [], [], []
    for i in range(7):
        others = [t for t in range(4) if t != top[i] and mask[i, t]]
        margins.append(min(logits[i, top[i]] - logits[i, t] for t in others))
        distances.append(min(np.linalg.norm(tokens[i, top[i]] - tokens[i, t]) for t in others))
        gaps.append(min(abs(trial.gamma[i, top[i]] - trial.gamma[i, t]) for t in others))
    assert token_similarity.by_sequence(trial, W, top) == {
        "by_distance": pytest.approx(spearmanr(margins, distances)[0]),
        "by_gap": pytest.approx(spearmanr(margins, gaps)[0]),
    }


def test_equal_numbers_have_no_rank_correlation() -> None:
    rng = np.random.default_rng(2)
    tokens = np.broadcast_to(rng.standard_normal((1, 3, 3)), (4, 3, 3)).copy()
    queries, W = rng.standard_normal((4, 3)), np.eye(3)
    equal = small_trial(tokens, queries)
    assert token_similarity.by_sequence(equal, W, np.zeros(4, dtype=int)) == {"by_distance": None, "by_gap": None}
    varied = small_trial(rng.standard_normal((4, 3, 3)), queries)
    assert token_similarity.by_sequence(varied, 0 * W, np.zeros(4, dtype=int)) == {"by_distance": None, "by_gap": None}


def row(distance: float, share: float = 0.9, classes: str = "3-8", seed: int = 0, **values: Any) -> dict[str, Any]:
    fixed = {"distance": distance, "share": share, "classes": classes, "seed": seed, "infeasible": False}
    fixed |= {"correlation": 0.9, "error": 0.1, "early": 0.25, "control": None, "optimal": 0.75, "rival": 0.125}
    return fixed | {"attention": 0.5, "by_distance": None, "by_gap": None} | values


def test_a_verdict_states_selection_early_correlation_attention_and_control() -> None:
    rows = [
        row(0.0, 1.0, seed=1, correlation=0.8, control=0.25), row(0.0, 1.0, seed=2, correlation=None, infeasible=True),
        # Another share without rivals is the same run.
        row(0.0, 0.5, seed=1, correlation=0.1),
        row(0.3, 0.1, seed=1, optimal=0.5, early=None), row(0.3, 0.1, seed=2, rival=0.375, early=None),
    ]  # fmt: skip
    none, near = token_similarity.verdicts(rows)
    assert none.quantity == "correlation of W with the SVM of its tokens, digits, no rivals"
    assert (none.measured, none.trials, none.infeasible) == (0.8, 2, 1)
    assert none.note == (
        "75 % of the images select their best token. After 5 % of the steps: 0.750. "
        "Attention to the selected token is 0.50. Shuffled selections: 0.25."
    )
    assert near.quantity == "correlation of W with the SVM of its tokens, digits, rivals at distance 0.3, gap 0.03"
    assert (near.measured, near.low, near.high, near.trials) == (0.9, 0.9, 0.9, 2)
    assert near.note == (
        "62 % of the images select their best token, 25 % the rival. Attention to the selected token is 0.50."
    )
    assert {one.experiment for one in (none, near)} == {"token-similarity"}


def test_intervals_of_correlations_are_bootstrapped() -> None:
    values = [0.7, 0.8, 0.95]
    (one,) = token_similarity.verdicts([row(0.0, correlation=value) for value in values])
    assert (one.low, one.high) == bootstrap_interval(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([0.4, 0.5, 0.6], "The margin of one {one} with a larger {what} is larger."),
        ([-0.4, -0.5, -0.6], "The margin of one {one} with a larger {what} is smaller."),
        (
            [-0.4, 0.3, 0.2],
            "Between the margin of one {one} and its {what} there is no relation that these trials show.",
        ),
        ([0.0, 0.0], "Between the margin of one {one} and its {what} there is no relation that these trials show."),
    ],
)
@pytest.mark.parametrize(("classes", "data", "one"), [("3-8", "digits", "image"), ("numpy-scipy", "text", "text")])
@pytest.mark.parametrize(
    ("field", "what"), [("by_distance", "distance to the nearest token"), ("by_gap", "smallest score gap")]
)
def test_the_relation_of_margin_to_similarity_is_a_rank_correlation(
    values: list[float], sentence: str, classes: str, data: str, one: str, field: str, what: str
) -> None:
    rows = [row(0.0, classes=classes) | {field: value} for value in values]
    *_, relation = token_similarity.verdicts([*rows, row(0.1, classes=classes) | {field: 1.0}])
    assert relation.quantity == f"rank correlation of margin and {what}, {data}, no rivals"
    assert relation.measured == pytest.approx(np.mean(values))
    assert (relation.low, relation.high) == pytest.approx(mean_interval(values))
    assert relation.note == sentence.format(one=one, what=what)


def test_one_rank_correlation_is_no_relation() -> None:
    assert len(token_similarity.verdicts([row(0.0, by_gap=0.5), row(0.0)])) == 1


@pytest.mark.parametrize(
    ("factors", "phrase", "median"),
    [
        ((10.0, 100.0, 1000.0), "keeps W farther from", "1e+02"),
        ((0.1, 0.01, 0.01), "brings W nearer to", "0.01"),
        ((10.0, 0.1, 1.0), "makes no difference to", "1"),
    ],
)
def test_nearer_rivals_multiply_the_distance_of_w_from_its_svm(
    factors: tuple[float, ...], phrase: str, median: str
) -> None:
    rows = [
        *(row(1.0, seed=seed, error=0.001) for seed in range(3)),
        # A distance between the ends is not compared.
        *(row(0.3, seed=seed, error=0.5) for seed in range(3)),
        *(row(0.01, seed=seed, error=0.001 * factor) for seed, factor in enumerate(factors)),
        # No partner, no SVM, and an error of zero, which has no logarithm.
        row(0.01, seed=7, error=0.9), row(1.0, seed=8, error=None), row(1.0, seed=9, error=0.0),
    ]  # fmt: skip
    (change,) = token_similarity.differences(rows, "text")
    logs = np.log10(factors)
    assert change.quantity == "log10 of the change of 1 - correlation, text, distance of rivals from 1 to 0.01"
    assert (change.measured, change.trials) == (pytest.approx(logs.mean()), 3)
    assert (change.low, change.high) == pytest.approx(bootstrap_interval(logs))
    assert change.note == (
        f"A distance of rivals of 0.01 instead of 1 {phrase} its SVM: "
        f"1 - correlation is multiplied by {median} (median)."
    )


def test_smaller_gaps_are_compared_at_the_same_distance() -> None:
    rows = [
        row(0.1, 0.9, seed=1, error=0.01), row(0.1, 0.9, seed=2, error=0.02), row(0.1, 0.1, seed=1, error=0.02),
        row(0.1, 0.1, seed=2, error=0.08),
        # The other distance has one gap only.
        row(0.1, 0.1, seed=3, error=0.5),
    ]  # fmt: skip
    (change,) = token_similarity.differences(rows, "digits")
    assert change.quantity == (
        "log10 of the change of 1 - correlation, digits, gap, as a share of the distance, from 0.9 to 0.1"
    )
    assert change.measured == pytest.approx(np.log10([2, 4]).mean())
    assert change.note == (
        "A gap, as a share of the distance, of 0.1 instead of 0.9 keeps W farther from its SVM: "
        "1 - correlation is multiplied by 2.8 (median)."
    )
    assert token_similarity.differences(rows[:1] + rows[2:3], "digits") == []
    assert token_similarity.differences([row(0.0, 0.1), row(0.0, 0.9)], "digits") == []


def test_digits_and_text_are_reported_each_with_its_differences() -> None:
    rows = [
        row(distance, classes=classes, seed=seed, error=error)
        for classes in CLASSES
        for distance, error in ((1.0, 0.01), (0.1, 0.02))
        for seed in (1, 2)
    ]
    quantities = [one.quantity for one in token_similarity.verdicts(rows)]
    assert [("digits" in name, "log10" in name) for name in quantities] == [
        (digits, change) for digits in (True, False) for change in (False, False, True)
    ]


FIGURE = [
    row(distance, share, classes, seed, error=error + share / 100, early=2 * error, control=0.25, optimal=share)
    for classes in CLASSES
    for distance, share, error in (
        (0.1, 0.1, 0.2),
        (1.0, 0.1, 0.1),
        (0.1, 0.9, 0.02),
        (1.0, 0.9, 0.01),
        (0.0, 1.0, 0.001),
    )
    for seed in (0, 1)
] + [row(0.1, 0.1, "3-8", 5, error=0.9, early=0.9, control=None, optimal=0.1)]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_draws_medians_against_the_distance_and_the_level_without_rivals(width: float) -> None:
    figure = token_similarity.figure(FIGURE, width)
    panels = ("W and its SVM", "shuffled selections", "optimal token")
    assert titles(figure.axes) == [f"{data}: {panel}" for data in ("digits", "text") for panel in panels]
    assert in_one_column(figure) is (width == NARROW)
    assert 2.4 < panel_height(figure) < 3.5
    assert {ax.get_xlabel() for ax in figure.axes} == {"distance of the rival"}
    assert [ax.get_ylabel() for ax in figure.axes] == 2 * [
        "median 1 - correlation", "median correlation", "median share selected"
    ]  # fmt: skip
    assert all(ticks(ax.xaxis) == {0.1: "0.1", 1.0: "1"} for ax in figure.axes)
    assert set(legend_words(figure.axes)) == {
        "gap 0.1 of the distance", "gap 0.9 of the distance", "after 5 % of the steps", "without rivals"
    }  # fmt: skip


def test_curves_of_one_gap_share_their_look_and_early_ones_are_dotted() -> None:
    error, control, optimal, text, *_ = token_similarity.figure(FIGURE).axes
    near, wide, early = "gap 0.1 of the distance", "gap 0.9 of the distance", "after 5 % of the steps"
    drawn = all_curves(error)
    assert [(one.label, one.look, one.style) for one in drawn] == [
        (near, 0, "-"), (early, 0, ":"), (wide, 1, "-"), (early, 1, ":")
    ]  # fmt: skip
    medians = [[0.201, 0.101], [0.4, 0.2], [0.029, 0.019], [0.04, 0.02]]
    assert [one.y for one in drawn] == [pytest.approx(own) for own in medians]
    # Points of equal distance are set apart by at most a few percent.
    assert all(one.x == pytest.approx([0.1, 1.0], rel=0.05) for one in drawn)
    assert drawn[0].x == drawn[1].x != drawn[2].x
    assert error.get_yscale() == "log"
    assert "log" not in (control.get_yscale(), optimal.get_yscale())
    assert curves(control)[near].y == [0.25, 0.25]
    assert curves(optimal)[wide].y == [0.9, 0.9]
    assert set(curves(control)) == {near, wide}
    assert levels(error) == {"without rivals": pytest.approx(0.011)}
    assert levels(control) == {"without rivals": 0.25}
    assert levels(optimal) == {"without rivals": 1.0}
    assert {one.label: one for one in all_curves(text)}[near].low == pytest.approx([0.201, 0.101])


def test_panels_without_rivals_have_the_level_alone() -> None:
    error, *_ = token_similarity.figure([one for one in FIGURE if one["distance"] == 0]).axes
    assert all_curves(error) == []
    assert levels(error) == {"without rivals": pytest.approx(0.011)}
    assert error.get_xlabel() == "distance of the rival"
    assert error.get_xscale() == "linear"
    error, control, *_ = token_similarity.figure([row(0.1), row(1.0), row(0.0, error=None)]).axes
    assert levels(error) == levels(control) == {}
