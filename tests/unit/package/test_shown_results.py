"""Every public result is one short line in a terminal and one small card in a notebook."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from test_docstrings import public_callables

from attsvm import (
    ProblemBatch,
    SelectionProblem,
    ShardedProblem,
    TokenData,
    diagnose,
    margin_path,
    margin_report,
    pretrained,
    proofs,
    regularization_path,
    solve,
    solve_batch,
    svm_equivalent,
    theory,
    train,
)
from attsvm.platform.summary import LONGEST_LINE, one_line
from attsvm.solvers.common.control import IterationState
from attsvm.theory.graph import graph_svm
from attsvm.theory.prompt import joint_svm
from attsvm.training import Vocabulary
from pretrained_models import batch, tiny

LARGEST_CARD = 20_000
# Public classes that are no results: what is given to solve and train, estimators and layers, and single values.
INSTANCES = {
    "Status", "UnsolvedError", "AttentionSVM", "MarginClassifier", "AttentionClassifier", "Attention", "Entrywise",
    "Weighted", "Schatten", "KyFan", "Mixed", "Mahalanobis", "Sum", "Largest", "Norm", "Smooth", "PredictionHead",
    "LinearHead", "ReLUHead", "ShardedProblem", "LambdaHead", "Loss", "Outcome", "Playground", "AttentionMonitor",
    "TokenScaler", "MarginRecorder",
}  # fmt: skip


def _results() -> dict[str, Any]:
    random = np.random.default_rng(0)
    tokens, queries, v = random.normal(size=(30, 40, 50)), random.normal(size=(30, 50)), random.normal(size=50)
    problem = SelectionProblem(tokens, queries, np.zeros(30, int))
    impossible = SelectionProblem(random.normal(size=(30, 5, 3)), random.normal(size=(30, 3)), np.zeros(30, int))
    data = TokenData(tokens[:4, :5], queries[:4], labels=np.ones(4))
    trace = train(data, v, steps=200, record_every=10)
    trial = theory.Trial.of(data, v)
    landscape = theory.explore(trial, starts=3, steps=50)
    prediction = theory.predict(trial, landscape=landscape)
    solution, soft = solve(problem), solve(impossible, C=1.0)
    direction = theory.local_optimality(trial, trial.optimal)
    model, inputs = tiny("bert"), batch("bert")
    head = pretrained.extract_head(model, 0, 0, inputs)
    small = SelectionProblem(tokens[:2, :3], queries[:2], [0, 0])
    rank = pretrained.rank_profile(model, inputs)[0]
    claim = proofs.Claim(problem, solution.norm, solution.status, solution.certified, None, 1e-9)
    types = pretrained.head_types(head, draws=2)
    split = pretrained.attribute(model, 1, 0, inputs)
    language_model, ids = pretrained.example_model("gpt2")
    logit = pretrained.attribute_logit(language_model, ids, answer=9)
    effects = pretrained.head_effects(language_model, 1, 0, ids, answers=np.array([9]), draws=2)
    series = pretrained.over_checkpoints({0: model}, inputs, layers=[0], draws=2)
    return {
        type(result).__name__: result
        for result in (
            problem, solution, soft,
            solve(ShardedProblem.from_arrays(tokens[:4], queries[:4], np.zeros(4, int), chunk=2)),
            ProblemBatch(tokens[None], queries[None], np.zeros((1, 30), int)),
            solve_batch([problem] * 3), IterationState(3, 1.0, 0.5, 0.1, "interior point"), solution.verify(),
            solve(impossible).certificate, claim, data, trace, Vocabulary(np.eye(3), np.zeros((2, 2), int)),
            regularization_path(data, v, [1.0, 2.0]), diagnose(data, v, trace, starts=2, samples=20),
            margin_report(trace.W[-1], data.problem(trace.selected), ("frobenius", "max")), trial,
            margin_path(trace, norms=("frobenius", "max")),
            theory.map_basins(trial, random.normal(size=(3, 50, 50)), landscape=landscape, steps=20),
            prediction.hypotheses["A"], landscape, landscape.ends[0], theory.local_constants(trial, direction),
            theory.temperature_saving(small, max_iter=3), direction, theory.relevance_ceiling(np.eye(3, dtype=bool)),
            theory.loss_constants("logistic", 1.0), theory.observe(trial, trace.W[-1]), prediction,
            theory.check_separability(trial), theory.smoothness(trial), graph_svm(np.eye(3), [[0, 1, 2]], [0]),
            joint_svm(tokens[:4, :5], tokens[:4, :5], [1, -1, 1, 1], [0, 0, 0, 0]),
            svm_equivalent(data, trace.attention[-1], trace.W[-1]), solve(small).influence(),
            head, rank,
            pretrained.solve_kernel(head, C=1.0), pretrained.rope_lift(head),
            pretrained.margin_audit(head, queries=8, draws=2), pretrained.fit_selection(head, queries=12),
            pretrained.selection_report(head), types, *types.scores.values(), types.scores["content"].standing,
            split, split.check(most=2), split.components[0], series, series.heads[0], logit, effects,
        )
    }  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return _results()


RESULTS = sorted(
    {c.__name__ for c in public_callables().values() if inspect.isclass(c) and c.__name__ not in INSTANCES}
    | {"JointSVM", "Equivalence", "Influence"}
)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_one_short_line(results: dict[str, Any], name: str) -> None:
    text = repr(results[name])
    assert "\n" not in text
    assert len(text) <= LONGEST_LINE
    assert text.startswith(f"{name}(")
    assert "array(" not in text


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_small_card(results: dict[str, Any], name: str) -> None:
    card = results[name]._repr_html_()
    ElementTree.fromstring(card)
    assert len(card) < LARGEST_CARD
    assert name in card


def test_one_of_a_thing_is_called_so() -> None:
    near, same = [[[3.0, 4.0], [0.0, 0.0]]], [[[3.0, 4.0], [3.0, 4.0]]]
    problem, impossible = SelectionProblem(near, [[2.0]], [0]), SelectionProblem(same, [[2.0]], [0])
    pieces = ShardedProblem.from_arrays(np.array(near), np.ones((1, 1)), np.zeros(1, int))
    trace = train(TokenData(near, [[2.0]], labels=[1.0]), [1.0, 0.0], steps=1)
    solution = solve(problem)
    texts = (
        problem, solution, replace(solution, iterations=1), solve(problem, C=1.0), solve(impossible),
        solve(impossible).verify(exact=True), pieces, solve(pieces), trace, solution.verify(exact=True),
    )  # fmt: skip
    for result in texts:
        text = repr(result) + getattr(result, "_repr_html_", str)()
        plural = re.search(r"(?<![\d.,])1 (iteration|record|step|constraint|shard|round|multiplier|bit)s", text)
        assert plural is None, text


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (["one", "two"], "Title(one, two)"),
        (["one", "x" * 300, "two"], "Title(one, ...)"),
        (["word " * 100], None),
        (["x" * 192], f"Title({'x' * 192})"),
    ],
)
def test_a_line_has_room_for_the_first_parts(parts: list[str], line: str | None) -> None:
    text = one_line("Title", parts)
    assert len(text) <= LONGEST_LINE
    assert line is None or text == line


FRAMES: dict[str, tuple[Callable[[Any], int], str]] = {
    "Landscape": (lambda landscape: len(landscape.selections), "status"),
    "Basins": (lambda basins: len(basins.starts), "destination"),
    "Diagnosis": (lambda diagnosis: len(diagnosis.hypotheses), "holds"),
    "Influence": (len, "influence"),
    "RegularizationPath": (lambda path: len(path.radius), "loss"),
    "Attribution": (lambda split: len(split.components), "queries"),
    "AttributionCheck": (lambda check: 6 * len(check.components), "flipped"),
    "MarginAudit": (lambda audit: len(audit.directions) + 2 * len(audit.null["cosine"].draws) + 1, "cosine"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_a_row_for_each(results: dict[str, Any], name: str) -> None:
    rows, column = FRAMES[name]
    frame = results[name].to_frame()
    assert len(frame) == rows(results[name])
    assert column in frame
