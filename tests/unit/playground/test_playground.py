"""The playground's files and its notebook side, without a browser."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.playground.frontend import INDEX_PAGE, module, presets, style


def test_presets_of_the_figure_are_its_instances() -> None:
    from attsvm_paper.figures.gd_paths import instance

    for name, T in (("three-tokens", 3), ("five-tokens", 5)):
        data, v = instance(T)
        for key, values in (("tokens", data.tokens), ("queries", data.queries), ("v", v)):
            np.testing.assert_allclose(presets()[name]["state"][key], values, atol=5.01e-4)


def test_the_notebook_shows_the_scripts_of_the_page() -> None:
    anywidget = pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    assert issubclass(Playground, anywidget.AnyWidget)
    assert (Playground._esm, Playground._css) == (module(), style())
    assert module().count("export default") == 1
    scripts = [file.name for file in INDEX_PAGE.parent.glob("*.js")]
    assert all((INDEX_PAGE.parent / name).read_text(encoding="utf-8") in module() for name in scripts)


def test_a_problem_becomes_a_page_whose_solution_is_certified() -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    tokens = np.array([[[1.0, 0.4], [0.0, 0.2], [-0.8, 0.7]], [[0.3, 1.0], [0.1, 0.0], [0.4, -0.5]]])
    problem = SelectionProblem(tokens, [[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], [0, 0])
    page = Playground(problem)
    assert (page.state["tokens"], page.state["queries"]) == (tokens.tolist(), problem.queries.tolist())
    assert page.solution.objective == solve(problem).objective  # training selects the same tokens
    page.state = page.state | {"norm": "max"}
    assert page.solution.objective == solve(problem, "max").objective
    inner = SelectionProblem(np.array([[[0.1, 0.0], [1, 0], [-1, 1], [-1, -1.0]]]), [[1.0]], [0])
    assert Playground(inner).solution.status.name == "INFEASIBLE"
    assert np.linalg.norm(Playground(inner).state["v"]) == 1.0  # a head all the same


def test_a_page_without_training_selects_the_tokens_of_the_largest_score(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    tokens = np.array([[[1.0, 0.4], [0.0, 0.2], [-0.8, 0.7]], [[0.3, 1.0], [0.1, 0.0], [0.4, -0.5]]])
    page = Playground(SelectionProblem(tokens, np.eye(2), [0, 0]))
    # The head is the separator of margin one over the common query, divided by its norm.
    v = np.array(page.state["v"])
    assert np.linalg.norm(v) == pytest.approx(1.0, rel=1e-8)
    np.testing.assert_array_equal((tokens @ v).argmax(axis=1), [0, 0])
    monkeypatch.setattr("attsvm.training.train", lambda *_, **options: pytest.fail("training runs"))
    page.state = page.state | {"keep": "best", "labels": [1, -1]}
    scores = tokens @ v * np.array([1.0, -1.0])[:, None]
    np.testing.assert_array_equal(page.problem.reference, scores.argmax(axis=1))


@pytest.mark.parametrize("name", presets())
def test_what_a_browser_shows_is_certified_here(name: str) -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    page = Playground(preset=name)
    assert (page.state, page.certified) == (presets()[name]["state"], {})
    selected = [[t == 0 for t in range(len(sequence))] for sequence in page.state.get("tokens", ())]
    page.picture = {"state": page.state, "runs": {"W": {"selected": selected}}}
    assert page.certified["state"] == page.state
    assert page.certified["sentence"] == page.solution.sentence
    feasible = np.isfinite(page.solution.objective)
    assert page.certified["gap"] == (page.solution.gap if feasible else None)


def test_a_mixture_of_tokens_needs_a_browser() -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    with pytest.raises(ValueError, match="head is 'relu'; a page displayed in a browser was expected"):
        Playground(preset="composition").problem  # noqa: B018
    page = Playground(preset="composition")
    page.state = page.state | {"keep": "best"}  # which a mixture does not have
    with pytest.raises(ValueError, match="head is 'relu'; a page displayed in a browser was expected"):
        page.problem  # noqa: B018


def test_a_problem_that_the_page_cannot_show_is_refused() -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    with pytest.raises(ValueError, match=r"problem has tokens \(n, T, d\) = \(1, 2, 3\); one to 3 queries"):
        Playground(SelectionProblem(np.eye(3)[None, :2], [[1.0]], [0]))
    with pytest.raises(ValueError, match=r"problem has queries \(1, 9\); rows of at most 8 numbers"):
        Playground(SelectionProblem(np.eye(2)[None], np.ones((1, 9)), [0]))
    with pytest.raises(ValueError, match="problem hides tokens or ties several"):
        Playground(SelectionProblem(np.eye(2)[None], [[1.0]], [[True, True]]))
    with pytest.raises(ValueError, match="problem hides tokens or ties several"):
        Playground(SelectionProblem(np.eye(3)[None, :, :2], [[1.0]], [0], mask=[[True, True, False]]))
    with pytest.raises(ValueError, match="problem has type str"):
        Playground("five-tokens")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="preset is 'six'; one of 'turn'"):
        Playground(preset="six")
    with pytest.raises(ValueError, match="problem and preset are both given"):
        Playground(SelectionProblem(np.eye(2)[None], [[1.0]], [0]), preset="turn")
