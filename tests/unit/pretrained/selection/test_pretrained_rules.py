"""Rules of one's own for the types of heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attsvm.pretrained import AttentionHead, example_head, head_types
from attsvm_pretrained.selection.rules import digest, read_rules, rule_sets
from attsvm_pretrained.selection.types import HeadTypes, named_tokens

FILE = """
import numpy as np
from pathlib import Path

before_a_stop = ("[a-z]+", r"[.]")

def two_back(head):
    return head.text_place[head.sequence] == head.query_place[:, None] - 2

def _helper(head):
    return None
"""


def back(places: int):
    return lambda head: head.text_place[head.sequence] == head.query_place[:, None] - places


@pytest.fixture(scope="module")
def head() -> AttentionHead:
    return example_head()


def scores(types: HeadTypes, name: str) -> tuple[float, ...]:
    one = types.scores[name]
    return one.score, one.uniform, *one.standing.draws, one.queries


def test_a_rule_is_scored_with_the_null_of_the_types(head: AttentionHead) -> None:
    rules = {"again": back(1), "further": back(2)}
    types, plain = head_types(head, draws=2, rules=rules), head_types(head, draws=2)
    assert scores(types, "again") == scores(types, "previous") == scores(plain, "previous")
    assert scores(types, "further") != scores(types, "previous")
    # All sets of all queries: the same as the function that is called with part of them.
    whole = head_types(head, draws=2, rules={"whole": back(2)(head)})
    assert scores(whole, "whole") == scores(types, "further")


def test_a_rule_is_evaluated_on_the_queries_asked_for(head: AttentionHead) -> None:
    rows, whole = np.array([20, 3, 4]), back(1)(head)
    sets = rule_sets({"function": back(1), "array": whole}, head, rows, ())
    for name in ("function", "array"):
        np.testing.assert_array_equal(sets[name], whole[rows])


def test_a_rule_names_a_head_that_follows_it(head: AttentionHead) -> None:
    """Scores of twelve put almost all attention on the second token before the query."""
    there = back(2)(head) & head.mask
    scores = np.where(there, 12.0, 0.0)
    built = replace(head, probabilities=_softmax(scores, head.mask))
    types = head_types(built, draws=2, rules={"two back": back(2)})
    assert types.scores["two back"].score > 0.9
    assert types.scores["two back"].score >= types.scores["offset"].score
    for name in ("two back", "offset"):  # the rule of one's own, and the offset -2 that it equals
        tokens = named_tokens(built, replace(types, name=name, offset=-2), {"two back": back(2)})
        np.testing.assert_array_equal(tokens, there)
    assert named_tokens(built, replace(types, name="content")) is None


def _softmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = np.where(mask, np.exp(scores), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def test_patterns_match_whole_texts(head: AttentionHead) -> None:
    words = tuple(tuple("." if t % 3 == 0 else f"w{t}" for t in range(len(row))) for row in head.text_place)
    worded = replace(head, texts=words)
    types = head_types(worded, draws=2, rules={"stop": ("w.*", "[.]")})
    stops = np.array([[text == "." for text in row] for row in words])
    asks = ~stops[worded.sequence, worded.position]
    sets = asks[:, None] & stops[worded.sequence] & worded.mask
    attention = np.where(worded.mask, worded.probabilities, 0.0)
    has = sets.any(axis=1) & (worded.mask.sum(axis=1) > 1)
    assert types.scores["stop"].queries == has.sum()
    assert types.scores["stop"].score == pytest.approx((attention * sets).sum(axis=1)[has].mean())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"previous": back(1)}, "which a type bears already"),
        ({"rule": lambda head: np.ones(3, dtype=bool)}, "gives bool of shape"),
        ({"rule": lambda head: back(1)(head).astype(float)}, "gives float64 of shape"),
        ({"rule": lambda head: head.nothing}, "failed with AttributeError"),
    ],
)
def test_what_does_not_fit_is_refused(head: AttentionHead, rules, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_types(head, draws=2, rules=rules)


def test_patterns_need_texts(head: AttentionHead) -> None:
    with pytest.raises(ValueError, match="has no texts"):
        head_types(replace(head, texts=None), draws=2, rules={"rule": ("a", "b")})


def test_a_file_of_rules(tmp_path: Path, head: AttentionHead) -> None:
    path = tmp_path / "rules.py"
    path.write_text(FILE, encoding="utf-8")
    rules = read_rules(path)
    assert set(rules) == {"before a stop", "two back"}
    assert digest(rules) == digest(read_rules(path))
    types = head_types(head, draws=2, rules={"two back": rules["two back"]})
    assert scores(types, "two back") == scores(head_types(head, draws=2, rules={"x": back(2)}), "x")
    path.write_text(FILE.replace("- 2", "- 3"), encoding="utf-8")
    assert digest(rules) != digest(read_rules(path))
    for line in ("x = 1", 'x = ("a", 1)'):  # a pair of patterns is two texts
        path.write_text(line, encoding="utf-8")
        with pytest.raises(ValueError, match="defines no rule"):
            read_rules(path)
    path.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        read_rules(path)
