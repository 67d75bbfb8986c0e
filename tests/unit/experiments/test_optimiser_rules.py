"""The rules that are compared: what each trains with, and the share of the largest margin that a matrix lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import TokenData
from attsvm.core.norms import get_norm
from attsvm.training.optimisers.adaptive import Adam
from attsvm.training.optimisers.steepest import MirrorDescent
from attsvm_paper.beyond.optimisers import RULES, rule_of, shortfall
from attsvm_paper.published.instances import Instances, draw

NAMES: dict[str, tuple[str, Any]] = {
    "gradient": ("gd", "frobenius"),
    "normalised": ("normalized_gd", "frobenius"),
    "momentum": ("momentum", "frobenius"),
    "Polyak": ("polyak", "frobenius"),
    "mirror p=3": ("mirror", 3.0),
    "mirror p=1.75": ("mirror", 1.75),
    "sign": ("sign", "max"),
    "Adam": ("adam", "max"),
    "spectral": ("spectral", "spectral"),
    "(K, Q) relative": ("normalized_gd", "nuclear"),
    "(K, Q) apart": ("separately_normalized_gd", "nuclear"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_trains_the_optimiser_it_names_and_is_compared_with_its_norm(name: str) -> None:
    rule = rule_of(name)
    assert (rule.optimizer().name, rule.norm) == NAMES[name]
    assert rule.parameterization == ("KQ" if name.startswith("(K, Q)") else "W")


@pytest.mark.parametrize("name", RULES)
def test_a_schedule_and_a_setting_in_a_name_are_those_of_the_optimiser(name: str) -> None:
    optimizer = rule_of(name).optimizer()
    word = name.rpartition(", ")[2]
    if word in ("exponential", "sqrt", "linear"):
        assert optimizer.schedule == word
    if "p=" in name:
        assert isinstance(optimizer, MirrorDescent)
        assert optimizer.p == float(name.rpartition("=")[2])
    if "beta2=" in name:
        assert isinstance(optimizer, Adam)
        assert optimizer.betas[1] == float(name.rpartition("=")[2])
    if name.startswith("(K, Q)") and "gradient" not in name:
        assert optimizer.relative == ("relative" in name)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rule is 'Muon'; one of gradient, gradient, exponential, .* was expected"):
        rule_of("Muon")


def two() -> Instances:
    """Return an instance with an SVM, and one whose equal sequences select different tokens."""
    first = draw([3], 2, 3, 4)
    tokens = np.stack([first.data.tokens[0], np.broadcast_to(first.data.tokens[0, 0], (2, 3, 4))])
    queries = np.stack([first.data.queries[0], np.broadcast_to(first.data.queries[0, 0], (2, 4))])
    return Instances(TokenData(tokens, queries, np.ones((2, 2))), np.repeat(first.v, 2, axis=0))


@pytest.mark.parametrize("norm", ["frobenius", "max", "nuclear"])
def test_the_solution_lacks_nothing_and_another_matrix_what_its_least_margin_lacks(norm: Any) -> None:
    instances, selected = two(), np.array([[0, 2], [0, 2]])
    solutions = instances.solve(selected, norm)
    W = np.asarray(solutions.W[0])
    other = np.random.default_rng(1).standard_normal((4, 4))
    other[1, 2] = 0.0
    records = np.stack([W, -3 * W, 0 * W, np.full((4, 4), np.inf), other, other * 1e-200, other * 1e200])
    lacking = shortfall(instances, selected, np.stack([records, records]), solutions)
    assert lacking.shape == (2, len(records))
    tokens, queries = instances.data.tokens[0], instances.data.queries[0]
    logits = np.einsum("ntd,de,ne->nt", tokens, other, queries)
    margins = np.concatenate([np.delete(row[at] - row, at) for row, at in zip(logits, selected[0], strict=True)])
    expected = 1 - margins.min() * solutions.objective[0] / get_norm(norm).value(other)
    assert lacking[0, 0] == pytest.approx(0, abs=1e-8)
    # The largest margin of the solution's negative is that of the token farthest away.
    assert lacking[0, 1] == pytest.approx(1 + np.asarray(solutions.margins[0]).max(), abs=1e-8)
    assert np.isnan(lacking[0, 2:4]).all()
    np.testing.assert_allclose(lacking[0, 4:], expected, rtol=1e-12)
    assert np.isnan(lacking[1]).all()
