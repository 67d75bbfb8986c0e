"""What an inspection finds about one head: which queries it shows, and what it needs of the texts."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from attsvm.pretrained import AttentionHead, extract_head, fit_selection
from attsvm_pretrained.inspection import finding
from attsvm_pretrained.inspection.finding import HeadFinding, Reports, _examples
from attsvm_pretrained.inspection.inspection import inspect_model
from attsvm_pretrained.selection.rank import Roots
from pretrained_models import SENTENCES, minilm, tiny

WORDS = ("one", "[of]", "four", "[end]")


def _head() -> AttentionHead:
    """A causal head on eight texts of four tokens, of which the second and the last count as special."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 60, size=(8, 4)))
    head = extract_head(tiny("gpt2"), 0, 1, {"input_ids": ids})
    special = np.zeros((8, 4), dtype=bool)
    special[:, [1, 3]] = True
    return replace(head, texts=(WORDS,) * 8, special=special)


def _found(head: AttentionHead) -> HeadFinding:
    found = Reports(4, 0, Roots()).of(head, ())
    assert isinstance(found, HeadFinding)
    return found


def test_examples_are_queries_with_a_choice_and_end_where_they_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token sees only itself, and only the third of the others is not special."""
    monkeypatch.setattr(finding, "EXAMPLES", 8)
    head = _head()
    found = _found(head)
    assert sorted(example.sequence for example in found.examples) == list(range(8))
    assert {example.query for example in found.examples} == {2}
    for example in found.examples:
        assert example.tokens == WORDS[:3]
        (own,) = head.probabilities[(head.sequence == example.sequence) & (head.position == 2)]
        np.testing.assert_allclose(example.attention, own[:3], atol=5e-5)  # four digits are kept
    special = _found(replace(head, special=np.ones((8, 4), dtype=bool)))
    assert {example.query for example in special.examples} <= {1, 2, 3}
    assert len(special.examples) == 8


def test_a_probe_needs_more_than_one_text() -> None:
    head = _head()
    found = _found(head).probe
    assert found is not None
    twice = fit_selection(head, queries=8, seed=0)  # twice the queries of the inspection
    np.testing.assert_equal(vars(replace(found, support=())), vars(replace(twice, support=())))
    assert _found(head.take(head.sequence == 3)).probe is None


def test_an_example_reaches_as_far_as_its_query_or_its_attention() -> None:
    """All attention is on the first token; a query of other tokens has no place in the text."""
    head = _head()
    first = replace(head, probabilities=np.eye(1, 4) * np.ones((len(head.mask), 1)))
    rows = np.flatnonzero(head.position == 2)
    assert {one.tokens for one in _examples(first, rows)} == {WORDS[:3]}
    assert {one.tokens for one in _examples(replace(first, self_attention=False), rows)} == {WORDS[:1]}


def test_a_head_with_another_name_shows_no_queries() -> None:
    found = replace(_found(_head()), shows=_found(_head()).examples)
    assert found.named(replace(found.types)).shows == found.shows != ()
    assert found.named(replace(found.types, name="another")).shows == ()


def test_an_inspection_takes_the_time_that_it_says() -> None:
    model, tokenizer = minilm()
    start = time.perf_counter()
    inspection = inspect_model(model, tokenizer, SENTENCES[:2], layers=[0], queries=2, progress=lambda *_: True)
    assert 0.0 < inspection.seconds <= time.perf_counter() - start
