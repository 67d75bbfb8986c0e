"""How many query-key coordinates heads use: the moments that weigh them, and the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attsvm.pretrained import extract_head, rank_profile
from attsvm_pretrained.selection.rank import Roots, effective_rank, head_ranks, query_root, token_root
from pretrained_models import batch, tiny


def test_token_root_is_the_covariance_of_what_queries_see() -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    total = np.zeros((32, 32))
    for i, j in enumerate(head.sequence):
        x = head.tokens[j][head.mask[i]]
        total += (x - x.mean(axis=0)).T @ (x - x.mean(axis=0))
    root = token_root(head)
    np.testing.assert_allclose(root.T @ root, total / head.mask.sum(), atol=1e-10 * np.abs(total).max())


def test_query_root_is_the_second_moment() -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    root, moment = query_root(head), head.queries.T @ head.queries / len(head.queries)
    np.testing.assert_allclose(root.T @ root, moment, atol=1e-10 * np.abs(moment).max())


def test_the_ranks_of_a_given_spectrum() -> None:
    """Of 9 + 1 + 0.01, the first part is 90 % and the first two are 99.9 %; a W of zeros has no direction."""
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((len(factor), 3)))[0] for factor in (head.K, head.Q))
    sigma = np.array([1.0, 3.0, 0.1])
    given, zero = head_ranks([replace(head, K=U * sigma, Q=V), replace(head, K=0 * U, Q=V)])
    assert given.weights99 == 2
    shares = sigma / sigma.sum()
    assert given.weights == pytest.approx(np.prod(shares**-shares))
    assert (zero.weights, zero.weights99, zero.scores, zero.scores99) == (0.0, 0, 0.0, 0)


def test_equal_singular_values_are_all_counted() -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    K, Q = (np.eye(len(factor), 3) for factor in (head.K, head.Q))
    assert Roots().rank(replace(head, K=K, Q=Q)).weights99 == 3


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_the_spectrum_of_a_rotary_head_is_that_of_its_pairs(family: str) -> None:
    """A pair counts twice, by the mean lengths of its columns in both factors; other coordinates count once."""
    head = extract_head(tiny(family), 0, 1, batch(family))
    assert head.turns is not None
    energies = (np.square(head.K).sum(axis=0), np.square(head.Q).sum(axis=0))
    parts = [*map(list, head.turns.pairs), *([c] for c in np.setdiff1d(np.arange(head.K.shape[1]), head.turns.pairs))]
    values = [np.sqrt(energies[0][part].mean() * energies[1][part].mean()) for part in parts for _ in part]
    assert Roots().rank(head).weights == pytest.approx(effective_rank(np.array(values)))


@pytest.mark.parametrize("changed", ["tokens", "queries"])
def test_moments_are_shared_only_by_heads_with_both_the_same(changed: str) -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    few = getattr(head, changed) * np.where(np.arange(getattr(head, changed).shape[-1]) < 3, 1.0, 0.1)
    other = replace(head, **{changed: few})
    both = list(head_ranks([head, other]))
    assert both[1].scores == Roots().rank(other).scores != both[0].scores


def test_rank_profile() -> None:
    assert effective_rank(np.array([1.0, 1.0, 0.0])) == pytest.approx(2.0)
    for family in ("bert", "llama"):
        rows = rank_profile(tiny(family), batch(family))
        assert [(row.layer, row.head) for row in rows] == [(layer, head) for layer in range(2) for head in range(4)]
        assert all(1 <= row.scores <= 8 and 1 <= row.weights99 <= 8 for row in rows)
