"""Hidden states of texts, and the characters that they come from, by a tiny model and a tokenizer of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as tf

from attsvm_pretrained.heads import hidden
from attsvm_pretrained.heads.hidden import hidden_spans, hidden_states
from attsvm_pretrained.heads.inputs import longest

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "rain", "stopped", "when", "she", "sang"]
TEXTS = ["the rain stopped when she sang", "she sang", "when the rain stopped"]


def _tokenizer(**options: Any) -> Any:
    """One token a word, between [CLS] and [SEP]."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(_WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return tf.PreTrainedTokenizerFast(tokenizer_object=inner, **names, **options)


def _model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return tf.BertModel(tf.BertConfig(vocab_size=len(_WORDS), **sizes), add_pooling_layer=False).train()


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_hidden_states_are_those_of_each_text_alone(
    dtype: torch.dtype, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two texts at a time, one of them padded."""
    monkeypatch.setattr(hidden, "BATCH", 2)
    model = _model().to(dtype)
    states = hidden_states(model, _tokenizer(), TEXTS, most)
    assert model.training
    model.eval()
    assert len(states) == len(TEXTS)
    for text, rows in zip(TEXTS, states, strict=True):
        ids = [2, *(_WORDS.index(word) for word in text.split()), 3]
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([ids])).last_hidden_state[0, 1:-1][:most]
        assert rows.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        # A few roundings of states of size one, summed in another order.
        np.testing.assert_allclose(rows, alone.double().numpy(), atol=16 * torch.finfo(dtype).eps)


class _NotingTokenizer:
    """A tokenizer that notes the lengths at which it is told to cut texts off."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.cuts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.cuts.append(options["max_length"])
        return self._tokenizer(*arguments, **options)


@pytest.mark.parametrize("limit", [4, None])
def test_spans_are_cut_off_where_hidden_states_are(limit: int | None) -> None:
    """Two words and two special tokens; without a limit, at the number that all texts of the package share."""
    tokenizer = _NotingTokenizer(_tokenizer(**({} if limit is None else {"model_max_length": limit})))
    spans = hidden_spans(tokenizer, TEXTS)
    assert spans is not None
    assert set(tokenizer.cuts) == {longest(tokenizer)}
    for text, of_text, states in zip(TEXTS, spans, hidden_states(_model(), tokenizer, TEXTS), strict=True):
        words = text.split()[: None if limit is None else limit - 2]
        assert [text[first:end] for first, end, _ in of_text] == words
        assert [row for _, _, row in of_text] == list(range(len(states)))
    assert set(tokenizer.cuts) == {longest(tokenizer)}


def test_spans_leave_out_the_spaces_of_a_token() -> None:
    tokenizer = _tokenizer()
    tokenizer.add_tokens([tf.AddedToken("rain", lstrip=True, rstrip=True)])
    text = "the  rain stopped"
    assert tokenizer(text, return_offsets_mapping=True)["offset_mapping"][2] == (3, 10)
    assert hidden_spans(tokenizer, [text]) == [[(0, 3, 0), (5, 9, 1), (10, 17, 2)]]


def test_a_tokenizer_written_in_python_has_no_spans() -> None:
    class Slow:
        is_fast = False

    assert hidden_spans(Slow(), TEXTS) is None
