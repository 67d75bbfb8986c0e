"""The functions on which others rest, and those with most arguments, take few decisions each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import attsvm
from attsvm.proofs.certified import certify

DECISIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert)


def complexity(function: Callable[..., Any]) -> int:
    """Count one more than the decisions of a function, conditional expressions and each `and` and `or` included."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    count = 1 + sum(isinstance(node, DECISIONS) for node in nodes)
    count += sum(1 + len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    return count + sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))


def decisions(numbers: list[int]) -> int:
    """Four: a loop, a choice of two conditions, a conditional expression."""
    total = 0
    for number in numbers:
        if number > 0 and number % 2:
            total += number
    return total if total else 1


def test_decisions_are_counted() -> None:
    assert complexity(decisions) == 5


@pytest.mark.parametrize(
    "function",
    [certify, attsvm.solve, attsvm.train, attsvm.regularization_path],
    ids=lambda function: function.__name__,
)
def test_few_decisions(function: Callable[..., Any]) -> None:
    assert complexity(inspect.unwrap(function)) <= 15
