"""Bad input to SelectionProblem and solve: one sentence that names the argument, what it was and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, solve

TOKENS = np.arange(24.0).reshape(2, 4, 3)
QUERIES = np.ones((2, 5))
SELECTED = np.array([0, 3])


def build(tokens: Any = TOKENS, queries: Any = QUERIES, selected: Any = SELECTED, **options: Any) -> SelectionProblem:
    return SelectionProblem(tokens, queries, selected, **options)


def with_entry(array: np.ndarray, value: float) -> np.ndarray:
    copy = array.copy()
    copy.flat[1] = value
    return copy


# What is wrong, the call, and what its sentence must contain: the argument and the shape or value it was given.
CASES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "tokens are a matrix": (lambda: build(tokens=np.ones((4, 3))), ("tokens", "(4, 3)", "(b, T, d)")),
    "tokens have four axes": (lambda: build(tokens=np.ones((1, 2, 4, 3))), ("tokens", "(1, 2, 4, 3)")),
    "tokens are a number": (lambda: build(tokens=3.0), ("tokens", "()")),
    "tokens are nothing": (lambda: build(tokens=None), ("tokens",)),
    "no sequence": (lambda: build(tokens=np.ones((0, 4, 3))), ("tokens", "(0, 4, 3)", "empty")),
    "no token": (lambda: build(tokens=np.ones((2, 0, 3))), ("tokens", "(2, 0, 3)", "empty")),
    "tokens of no dimension": (lambda: build(tokens=np.ones((2, 4, 0))), ("tokens", "(2, 4, 0)", "empty")),
    "an empty list of tokens": (lambda: build(tokens=[]), ("tokens", "(0,)")),
    "tokens with NaN": (lambda: build(tokens=with_entry(TOKENS, np.nan)), ("tokens", "(2, 4, 3)", "finite")),
    "tokens with infinity": (lambda: build(tokens=with_entry(TOKENS, -np.inf)), ("tokens", "(2, 4, 3)", "finite")),
    "torch tokens with NaN": (
        lambda: build(tokens=torch.full((2, 4, 3), torch.nan), queries=torch.ones(2, 5)),
        ("tokens", "(2, 4, 3)", "finite"),
    ),
    "tokens are text": (lambda: build(tokens=np.full((2, 4, 3), "a")), ("tokens", "real numbers")),
    "tokens are complex": (lambda: build(tokens=TOKENS + 1j), ("tokens", "complex128", "real")),
    "tokens are objects": (lambda: build(tokens=np.full((2, 4, 3), None)), ("tokens", "object")),
    "ragged tokens of two dimensions": (lambda: build(tokens=[np.ones((4, 3)), np.ones((4, 2))]), ("tokens", "[2, 3]")),
    "ragged tokens with NaN": (
        lambda: build(tokens=[np.ones((4, 3)), np.full((2, 3), np.nan)], selected=[0, 1]),
        ("tokens[1]", "(2, 3)", "finite"),
    ),
    "an empty sequence among ragged tokens": (
        lambda: build(tokens=[np.ones((4, 3)), np.ones((0, 3))], selected=[0, 0]),
        ("tokens[1]", "(0, 3)", "empty"),
    ),
    "a sequence of nested lists of two lengths": (lambda: build(tokens=[[[1.0], [2.0, 3.0]]]), ("tokens", "array")),
    "queries are a vector": (lambda: build(queries=np.ones(5)), ("queries", "(5,)", "matrix")),
    "queries of no dimension": (lambda: build(queries=np.ones((2, 0))), ("queries", "(2, 0)", "empty")),
    "queries with NaN": (lambda: build(queries=with_entry(QUERIES, np.nan)), ("queries", "(2, 5)", "finite")),
    "queries are text": (lambda: build(queries=np.full((2, 5), "a")), ("queries", "real numbers")),
    "a query too many": (lambda: build(queries=np.ones((3, 5)), selected=[0, 0, 0]), ("queries", "sequence", "2", "3")),
    "selected has another length": (lambda: build(selected=[0]), ("selected", "(1,)", "2")),
    "selected is a float": (lambda: build(selected=[0.0, 1.0]), ("selected", "float64", "integers")),
    "selected is past the end": (lambda: build(selected=[0, 4]), ("selected", "4 tokens", "0 to 4")),
    "selected is negative": (lambda: build(selected=[-1, 0]), ("selected", "4 tokens", "-1")),
    "selected is text": (lambda: build(selected=["a", "b"]), ("selected",)),
    "boolean selected of another shape": (
        lambda: build(selected=np.ones((2, 3), dtype=bool)),
        ("selected", "(2, 3)", "(2, 4)"),
    ),
    "nothing selected": (lambda: build(selected=np.array([[1, 0, 0, 0], [0, 0, 0, 0]], bool)), ("selected", "query 1")),
    "selected in the padding": (
        lambda: build(tokens=[np.ones((2, 3)), np.ones((4, 3))], selected=[3, 0]),
        ("selected", "query 0", "hidden"),
    ),
    "mask of another shape": (lambda: build(mask=np.ones((2, 3), dtype=bool)), ("mask", "(2, 3)", "(2, 4)")),
    "mask is not boolean": (lambda: build(mask=np.ones((2, 4))), ("mask", "boolean", "float64")),
    "mask hides the selected token": (
        lambda: build(mask=np.array([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=bool)),
        ("selected", "mask", "query 1"),
    ),
    "mask hides everything": (lambda: build(mask=np.zeros((2, 4), dtype=bool)), ("selected", "mask", "query 0")),
    "sequence of another length": (lambda: build(sequence=[0]), ("sequence", "(1,)", "2")),
    "sequence is a float": (lambda: build(sequence=[0.0, 1.0]), ("sequence", "float64", "integers")),
    "sequence is past the end": (lambda: build(sequence=[0, 2]), ("sequence", "2 token sequences", "0 to 2")),
    "sequence is negative": (lambda: build(sequence=[0, -1]), ("sequence", "-1")),
    "from_sequences: tokens are a matrix": (
        lambda: SelectionProblem.from_sequences(np.ones((4, 3)), [[0]]),
        ("tokens", "(4, 3)", "(b, T, d)"),
    ),
    "from_sequences: one selection a sequence": (
        lambda: SelectionProblem.from_sequences(TOKENS, SELECTED),
        ("selected", "(2,)", "(2, 4)"),
    ),
    "from_sequences: a later token selected": (
        lambda: SelectionProblem.from_sequences(TOKENS, np.full((2, 4), 3), causal=True),
        ("selected", "query 0", "hidden"),
    ),
    "from_sequences: queries are a matrix": (
        lambda: SelectionProblem.from_sequences(TOKENS, np.zeros((2, 4), int), queries=np.ones((8, 3))),
        ("queries", "(8, 3)"),
    ),
    "from_sequences: a length past the end": (
        lambda: SelectionProblem.from_sequences(TOKENS, np.zeros((2, 4), int), lengths=[4, 5]),
        ("lengths", "1 to 4", "[4, 5]"),
    ),
    "from_sequences: a length of zero": (
        lambda: SelectionProblem.from_sequences(TOKENS, np.zeros((2, 4), int), lengths=[4, 0]),
        ("lengths", "1 to 4", "[4, 0]"),
    ),
    "margins of a matrix of another shape": (lambda: build().margins(np.ones((5, 3))), ("W", "(3, 5)", "(5, 3)")),
    "scores of a vector": (lambda: build().scores(np.ones(15)), ("W", "(3, 5)", "(15,)")),
    "solve: an array for a problem": (lambda: solve(TOKENS), ("problem", "SelectionProblem", "ndarray")),  # type: ignore[arg-type]
    "solve: an unknown norm": (lambda: solve(build(), "euclid"), ("norm", "'euclid'", "frobenius")),
    "solve: a negative tolerance": (lambda: solve(build(), tol=-1e-9), ("tol", "-1e-09")),
    "solve: no tolerance at all": (lambda: solve(build(), tol=0.0), ("tol", "0.0")),
    "solve: tolerance is NaN": (lambda: solve(build(), tol=float("nan")), ("tol", "nan")),
    "solve: no iteration": (lambda: solve(build(), max_iter=0), ("max_iter", "0")),
    "solve: no time": (lambda: solve(build(), time_limit=0.0), ("time_limit", "0.0")),
    "solve: time is NaN": (lambda: solve(build(), time_limit=float("nan")), ("time_limit", "nan")),
    "solve: warm start of another shape": (
        lambda: solve(build(), warm_start=solve(SelectionProblem(np.eye(2)[None], [[1.0]], [0]))),
        ("warm_start", "(2, 4)", "(1, 2)"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_names_the_argument(case: str) -> None:
    call, parts = CASES[case]
    with pytest.raises(ValueError, match=r"\.$") as error:
        call()
    sentence = str(error.value)
    assert "\n" not in sentence
    assert all(part in sentence for part in parts), sentence
    # The argument comes first, so a reader knows at once where to look.
    assert sentence.startswith(parts[0]), sentence


def test_input_is_not_kept_by_reference_where_it_could_change() -> None:
    """A problem is a value: later writes to the caller's small arrays do not reach it."""
    queries, selected, mask = QUERIES.copy(), SELECTED.copy(), np.ones((2, 4), dtype=bool)
    problem = build(queries=queries, selected=selected, mask=mask)
    queries[:] = 7
    selected[:] = 1
    mask[:] = False
    assert (problem.queries == 1).all()
    assert (problem.reference == SELECTED).all()
    assert problem.mask.all()


def test_plain_lists_integers_and_booleans_are_read() -> None:
    problem = SelectionProblem([[[1, 0], [0, 1]]], [[2]], [0])
    assert problem.shape == (1, 2, 2, 1)
    assert solve(problem).objective == pytest.approx(0.5 / np.sqrt(2))
