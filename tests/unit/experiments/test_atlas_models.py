"""The atlas's optimisers, its file of predictions, and the instances of its models, draw by draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.training.optimisers.steepest import AxisDescent
from attsvm_paper.beyond import atlas_cells, atlas_models
from attsvm_paper.beyond.atlas_cells import (
    MODELS,
    OPTIMISERS,
    _theorem,  # pyright: ignore[reportPrivateUsage]
    expectations,
    optimizer_of,
    parameterization_of,
)
from attsvm_paper.beyond.atlas_models import (
    Sizes,
    _smallest_norms,  # pyright: ignore[reportPrivateUsage]
    margin,
    problem_of,
    smallest_norms,
    training_set,
)
from attsvm_paper.published.instances import draw

SEEDS = [3, 4]

# Steps and schedules; docs/findings.md refers to the code for them.
RULES: dict[str, tuple[float, str, dict[str, Any]]] = {
    "gradient": (1.0, "constant", {}),
    "gradient, growing": (1.0, "exponential", {}),
    "coordinate": (0.1, "constant", {}),
    "sign": (0.02, "constant", {}),
    "signum": (0.2, "sqrt", {}),
    "Lion": (0.2, "sqrt", {}),
    "Adam": (0.02, "constant", {}),
    "Adam, decaying": (0.2, "sqrt", {"betas": (0.9, 0.95)}),
    "AdamW": (0.2, "sqrt", {}),
    "spectral": (0.1, "constant", {}),
    "Muon": (0.5, "sqrt", {}),
    "Muon, Newton-Schulz": (0.5, "sqrt", {"orthogonalization": "newton-schulz"}),
    "Shampoo": (0.5, "sqrt", {}),
    "SOAP": (0.2, "sqrt", {}),
    "row norms": (0.1, "constant", {"axis": "rows"}),
    "column norms": (0.1, "constant", {"axis": "columns"}),
}
OF_W: dict[str, tuple[float, str, dict[str, Any]]] = {
    "normalised": (0.1, "constant", {}),
    "momentum": (2.0, "constant", {}),
    "mirror, p=3": (0.1, "constant", {"p": 3.0}),
}
OF_FACTORS: dict[str, tuple[float, str, dict[str, Any]]] = {
    "normalised": (0.5, "sqrt", {"relative": True}),
    "apart": (0.1, "constant", {}),
    "compositional Muon": (0.5, "sqrt", {}),
}


@pytest.mark.parametrize("model", MODELS)
def test_every_optimiser_has_its_step_and_schedule(model: str) -> None:
    assert parameterization_of(model) == ("KQ" if model == "factors" else "W")
    table = RULES | (OF_FACTORS if model == "factors" else OF_W)
    assert sorted(table) == sorted(OPTIMISERS[parameterization_of(model)])
    for name, (lr, schedule, options) in table.items():
        rule = optimizer_of(model, name)
        assert (rule.lr, rule.schedule) == (lr, schedule), name
        assert {field: getattr(rule, field) for field in options} == options
    assert isinstance(optimizer_of(model, "row norms"), AxisDescent)


def test_a_theorem_is_told_from_a_prediction() -> None:
    assert _theorem("max", "a reason").from_theorem
    assert not _theorem("max", "a reason").slow
    assert _theorem("max", "a reason", slow=True).slow


def predicting(monkeypatch: pytest.MonkeyPatch, change: Any) -> Any:
    """The expectations read from a file of predictions with a change."""
    entries = [
        f'[[prediction]]\nmodels = ["{model}"]\noptimiser = "{name}"\nnorm = "{case.norm}"\nreason = "Why"'
        for (model, name), case in expectations().items()
        if not case.from_theorem
    ]
    text = "\n".join(change(entries))
    folder = SimpleNamespace(joinpath=lambda name: SimpleNamespace(read_text=lambda encoding: text))
    monkeypatch.setattr(atlas_cells, "resources", SimpleNamespace(files=lambda package: folder))
    return expectations.__wrapped__()


def test_predictions_are_one_for_each_pair_without_a_theorem(monkeypatch: pytest.MonkeyPatch) -> None:
    known = expectations()
    table = predicting(monkeypatch, lambda entries: entries)
    assert {pair: case.norm for pair, case in table.items()} == {pair: case.norm for pair, case in known.items()}
    assert {case.reason for pair, case in table.items() if pair not in atlas_cells.THEOREMS} == {"Why"}


@pytest.mark.parametrize(("change", "words"), [
    (lambda entries: entries[1:], "predictions differ from the cells in"),
    (lambda entries: [*entries, entries[0]], "one for each open pair was expected"),
    (lambda entries: [*entries, entries[0].replace("attention", "rnn")], "predictions differ from the cells in"),
    (lambda entries: [entries[0].replace('norm = "', 'norm = "l_7'), *entries[1:]], "and norm 'l_7"),
])  # fmt: skip
def test_a_file_of_predictions_that_does_not_fit_is_refused(
    change: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=words):
        predicting(monkeypatch, change)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt((rows**2).sum(-1))[..., None]


def test_classes_are_drawn_in_turn_around_their_means() -> None:
    n, T, d = 7, 3, 4
    data = training_set(SEEDS, Sizes("multiclass", n, T, d))
    assert data.weight is None
    assert (data.loss, data.head.tolist()) == ("log", [1.0])
    for b, seed in enumerate(SEEDS):
        rng = np.random.default_rng(seed)
        means, noise = unit(rng.standard_normal((T, d))), unit(rng.standard_normal((n, d)))
        inputs = np.array([means[i % T] + 0.5 * noise[i] for i in range(n)])
        np.testing.assert_allclose(data.data.queries[b], inputs, rtol=1e-14)
        np.testing.assert_array_equal(data.data.values[b, ..., 0].argmax(-1), np.arange(n) % T)
        np.testing.assert_array_equal(data.data.tokens[b], np.broadcast_to(np.eye(T), (n, T, T)))
        problem = problem_of(seed, Sizes("multiclass", n, T, d), np.empty(0))
        np.testing.assert_allclose(problem.queries, inputs, rtol=1e-14)
        np.testing.assert_array_equal(problem.reference, np.arange(n) % T)


def test_two_words_follow_every_other_context() -> None:
    n, T, d = 5, 4, 3
    sizes = Sizes("next-token", n, T, d)
    data = training_set(SEEDS, sizes)
    assert data.weight is not None
    for b, seed in enumerate(SEEDS):
        rng = np.random.default_rng(seed)
        contexts = unit(rng.standard_normal((n, d)))
        words = [rng.permutation(T)[:2] for _ in range(n)]
        first = rng.uniform(0.3, 0.7, n)
        first[1::2] = 1
        # Every context is two queries, one for each of two words.
        np.testing.assert_allclose(data.data.queries[b], np.repeat(contexts, 2, axis=0), rtol=1e-14)
        np.testing.assert_array_equal(data.data.values[b, ..., 0], np.eye(T)[np.concatenate(words)])
        np.testing.assert_allclose(data.weight[b], [share for one in first for share in (one, 1 - one)])
        problem = problem_of(seed, sizes, np.empty(0))
        np.testing.assert_allclose(problem.queries, contexts, rtol=1e-14)
        follows = [{*pair} if i % 2 == 0 else {pair[0]} for i, pair in enumerate(words)]
        assert [set(np.flatnonzero(row)) for row in problem.selected] == follows


@pytest.mark.parametrize("model", ["attention", "factors"])
def test_attention_has_the_published_instances_and_the_selected_tokens(model: str) -> None:
    sizes, selected = Sizes(model, 3, 4, 5), np.array([2, 0, 3])
    data = training_set(SEEDS, sizes)
    expected = draw(SEEDS, 3, 4, 5, 0.1)
    np.testing.assert_array_equal(data.data.tokens, expected.data.tokens)
    np.testing.assert_array_equal(data.head, expected.v)
    assert (data.loss, data.weight) == ("logistic", None)
    # The best score leads the second by a tenth.
    gamma = np.sort(expected.gamma, axis=-1)
    assert (gamma[..., -1] - gamma[..., -2]).min() >= 0.1
    problem = problem_of(SEEDS[1], sizes, selected)
    np.testing.assert_array_equal(problem.tokens, expected.data.tokens[1])
    np.testing.assert_array_equal(problem.queries, expected.data.queries[1])
    np.testing.assert_array_equal(problem.reference, selected)


@pytest.mark.parametrize("model", ["attention", "multiclass"])
def test_only_problems_of_attention_depend_on_the_selection(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = {"l_1": 1.0, "max": "max"}
    monkeypatch.setattr(atlas_models, "NORMS", norms)
    sizes = Sizes(model, 2, 3, 2)
    _smallest_norms.cache_clear()
    for selected in ([0, 1], [1, 1]):
        bounds = smallest_norms(1, sizes, np.array(selected, dtype=np.int32))
        for name, norm in norms.items():
            least = solve(problem_of(1, sizes, np.array(selected)), norm, tol=1e-6).certified
            # Two solutions with gaps of 1e-6 enclose the same number.
            assert bounds[name][0] <= least.upper_bound * (1 + 1e-12)
            assert bounds[name][1] >= least.lower_bound * (1 - 1e-12)
            assert bounds[name][1] - bounds[name][0] <= 2e-6 * bounds[name][1]
    assert _smallest_norms.cache_info().misses == (2 if model == "attention" else 1)
    _smallest_norms.cache_clear()


def test_the_margin_is_the_least_lead_of_a_selected_token() -> None:
    # By hand: both queries give scores 1, 4, -2 and 3, of which the second and the fourth are selected.
    tokens, selected = np.diag([1.0, 4.0, -2.0, 3.0])[None], [[False, True, False, True]] * 2
    problem = SelectionProblem(tokens, np.ones((2, 1)), selected, sequence=[0, 0])
    assert margin(problem, np.ones((4, 1))) == 2
    assert margin(problem, np.array([[1.0], [0.5], [-1.0], [0.5]])) == pytest.approx(1.5 - 2)
    # The reference may score less than the other selected token.
    assert margin(problem, np.array([[1.0], [0.5], [1.0], [1.0]])) == pytest.approx(1)
