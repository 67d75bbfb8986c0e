"""TokenData: what it accepts, what it says when it does not."""

import numpy as np
import pytest
import torch

from attsvm import TokenData, train

RNG = np.random.default_rng(0)
TOKENS, QUERIES, LABELS = RNG.standard_normal((3, 4, 5)), RNG.standard_normal((3, 2)), np.array([1, -1, 1])


def test_shapes_and_defaults():
    data = TokenData(TOKENS, QUERIES, LABELS)
    assert (data.batch_shape, data.n, data.T, data.d, data.dz) == ((), 3, 4, 5, 2)
    assert data.values is data.tokens
    assert data.mask is None
    assert data.labels.dtype == np.float64
    assert "n=3, T=4, d=5, dz=2, numpy" in repr(data)


def test_trials_can_be_selected():
    mask = np.ones((2, 3, 4), dtype=bool)
    values = RNG.standard_normal((2, 3, 4, 1))
    batch = TokenData(np.stack([TOKENS, -TOKENS]), np.stack([QUERIES] * 2), np.stack([LABELS] * 2), mask, values)
    one = batch[1]
    assert one.batch_shape == ()
    assert np.array_equal(one.tokens, -TOKENS)
    assert np.array_equal(one.values, values[1])
    with pytest.raises(ValueError, match="one trial"):
        one[0]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_sequences_of_different_lengths_are_padded_and_trained_as_they_are(kind):
    rows = [RNG.standard_normal((length, 5)) for length in (4, 2, 3)]
    inputs = rows if kind == "numpy" else [torch.as_tensor(row) for row in rows]
    data = TokenData.padded(inputs, QUERIES, LABELS)
    assert (data.n, data.T) == (3, 4)
    np.testing.assert_array_equal(np.asarray(data.mask), [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    v, W = RNG.standard_normal(5), RNG.standard_normal((5, 2))
    loss = 0.0
    for row, z, y in zip(rows, QUERIES, LABELS, strict=True):
        s = np.exp(row @ W @ z)
        loss += np.log1p(np.exp(-y * (s / s.sum()) @ row @ v)) / 3
    assert float(train(data, v, init=W, steps=0).loss[0]) == pytest.approx(loss, rel=1e-13)


@pytest.mark.parametrize("rows", [[], [np.ones((2, 3)), np.ones((2, 4))], [np.ones((0, 3))], [np.ones(3)]])
def test_padding_names_sequences_that_do_not_fit(rows):
    with pytest.raises(ValueError, match=r"^sequences have shapes .*\.$"):
        TokenData.padded(rows, np.ones((len(rows), 2)), np.ones(len(rows)))


def test_a_problem_has_the_tokens_queries_and_mask():
    mask = np.ones((3, 4), dtype=bool)
    mask[1, 3] = False
    problem = TokenData(TOKENS, QUERIES, LABELS, mask).problem([0, 2, 1])
    W = RNG.standard_normal((5, 2))
    scores = np.einsum("ntd,de,ne->nt", TOKENS, W, QUERIES)
    expected = np.where(mask, scores[np.arange(3), [0, 2, 1]][:, None] - scores, np.inf)
    # Five products and two sums of numbers of some units.
    np.testing.assert_allclose(problem.margins(W), expected, atol=1e-13)
    both = np.array([[True, True, False, False]] * 3)
    assert TokenData(TOKENS, QUERIES, LABELS).problem(both).tied.sum() == 3
    tensors = TokenData(torch.as_tensor(TOKENS), QUERIES, LABELS).problem(torch.tensor([0, 2, 1]))
    assert isinstance(tensors.margins(W), torch.Tensor)


def test_a_problem_of_one_trial_only():
    batch = TokenData(np.stack([TOKENS] * 2), np.stack([QUERIES] * 2), np.stack([LABELS] * 2))
    with pytest.raises(ValueError, match=r"^the data hold trials \(2,\)"):
        batch.problem([0, 2, 1])
    assert batch[1].problem([0, 2, 1]).shape == (3, 4, 5, 2)
    with pytest.raises(ValueError, match=r"^selected"):
        batch[1].problem([0, 2, 4])


def test_torch_stays_torch():
    data = TokenData(torch.tensor(TOKENS, dtype=torch.float32), QUERIES, LABELS, np.ones((3, 4), dtype=bool))
    for field in (data.tokens, data.queries, data.labels):
        assert field.dtype == torch.float32
    assert data.mask is not None
    assert data.mask.dtype == torch.bool


@pytest.mark.parametrize("row", [0, 2, -1])
def test_self_attention_queries_are_rows(row):
    data = TokenData.self_attention(TOKENS, LABELS, row)
    assert np.array_equal(data.queries, TOKENS[:, row])


def with_nan(array):
    array = np.array(array, dtype=float)
    array.flat[0] = np.nan
    return array


HIDDEN = np.ones((3, 4), dtype=bool)
HIDDEN[1] = False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((TOKENS[0], QUERIES, LABELS), r"tokens has shape \(4, 5\)"),
        ((TOKENS[:0], QUERIES[:0], LABELS[:0]), "with no empty axis was expected"),
        ((TOKENS, None, LABELS), "queries is None"),
        ((TOKENS, QUERIES[:2], LABELS), r"queries has shape \(2, 2\)"),
        ((TOKENS, QUERIES, LABELS[:2]), r"labels has shape \(2,\)"),
        ((TOKENS, QUERIES, [1, 0, 1]), "labels .* values other than -1 and"),
        ((with_nan(TOKENS), QUERIES, LABELS), "tokens .* contains NaN"),
        ((TOKENS, with_nan(QUERIES), LABELS), "queries .* contains NaN"),
        ((TOKENS, QUERIES, LABELS, HIDDEN), "mask .* hides every token"),
        ((TOKENS, QUERIES, LABELS, np.ones((3, 4))), "mask has dtype"),
        ((TOKENS, QUERIES, LABELS, np.ones((3, 5), dtype=bool)), r"mask has shape \(3, 5\)"),
        ((TOKENS, QUERIES, LABELS, None, TOKENS[:, :2]), "values has shape"),
        ((TOKENS.astype(str), QUERIES, LABELS), "tokens has"),
        ((TOKENS * 1j, QUERIES, LABELS), "tokens has"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        TokenData(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sequences", "targets"), [([[0, -1]], [0]), ([[0, 1]], [-1]), ([[0, 3]], [0]), ([[0, 1]], [3])]
)
def test_next_tokens_out_of_range_are_refused(sequences: list[list[int]], targets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^sequences or targets name a token out of range; identities from 0 to 2"):
        TokenData.next_token(np.eye(3), sequences, targets)


@pytest.mark.parametrize(
    ("embeddings", "sequences", "targets"),
    [
        (np.eye(3)[None], [[0, 1]], [0]),
        (np.eye(3), [0, 1], [0, 1]),
        (np.eye(3), [[0.0, 1.0]], [0]),
        (np.eye(3), [[0, 1]], [0, 1]),
    ],
)
def test_next_tokens_of_other_shapes_are_refused(embeddings: np.ndarray, sequences: list, targets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^embeddings .* do not fit; \(vocabulary, d\), integers \(n, T\) and"):
        TokenData.next_token(embeddings, sequences, targets)


def test_next_tokens_need_a_visible_token_in_every_row() -> None:
    mask = np.array([[True, True], [False, False]])
    with pytest.raises(ValueError, match=r"^mask has shape \(2, 2\); .* with a visible token per row were expected\.$"):
        TokenData.next_token(np.eye(3), [[0, 1], [0, 1]], [0, 1], mask)


def test_arrays_have_the_precision_of_the_tokens() -> None:
    data = TokenData(TOKENS.astype(np.float32), QUERIES, LABELS.astype(float))
    assert {field.dtype for field in (data.tokens, data.queries, data.labels)} == {np.dtype(np.float32)}


def test_the_card_says_how_much_is_hidden() -> None:
    mask = np.ones((3, 4), dtype=bool)
    mask[:, 3] = False
    assert "25.0% hidden" in TokenData(TOKENS, QUERIES, LABELS, mask)._repr_html_()
    assert "hidden" not in TokenData(TOKENS, QUERIES, LABELS)._repr_html_()


def test_self_attention_row_out_of_range():
    with pytest.raises(ValueError, match="row is 4"):
        TokenData.self_attention(TOKENS, LABELS, 4)
