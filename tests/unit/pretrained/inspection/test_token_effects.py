"""What heads do to the next tokens on the pages of an inspection, against hooks written by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as tf

from attsvm.cli import main
from attsvm_pretrained.inspection.finding import HeadFinding
from attsvm_pretrained.inspection.token_effects import FORESIGHT, TokenEffects, _refuse_foresight

TEXTS = ["w1 w2 w3 w1 w2 w5 w6", "w4 w4 w2 w9", "w7 w1 w8 w3 w2", "w2 w6 w2 w6 w1 w3"]


def _tokenizer() -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{k}": k for k in range(12)}, unk_token="w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", unk_token="w0")


def _model() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    config = tf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.5)
    return tf.GPT2LMHeadModel(config).double().eval()


def _finding(layer: int, head: int) -> HeadFinding:
    none: Any = None
    return HeadFinding(layer, head, f"transformer.h.{layer}.attn", 0.0, none, none, none, none, none, (), ())


def test_effects_are_those_of_hooks_written_by_hand() -> None:
    model, tokenizer = _model(), _tokenizer()
    measured = TokenEffects(model, TEXTS, tokenizer, None, queries=6, seed=0)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    written: dict[str, torch.Tensor] = {}

    def loss() -> float:
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1].flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten()))

    before = loss()
    for head in range(2):
        effects = measured.of(_finding(1, head)).effects
        assert effects is not None
        assert effects.tokens == sum(len(text.split()) - 1 for text in TEXTS)
        assert effects.before == pytest.approx(-before, abs=1e-9)
        own = slice(8 * head, 8 * head + 8)

        def remove(module: Any, inputs: tuple[torch.Tensor], own: slice = own) -> tuple[torch.Tensor]:
            (state,) = inputs
            written["head"] = state[..., own] @ module.weight[own]
            state = state.clone()
            state[..., own] = 0.0
            return (state,)

        with torch.no_grad():
            final = model.transformer.ln_f
            keep = final.register_forward_pre_hook(lambda module, inputs: written.update(final=inputs[0]))
            logits = model(**batch).logits
            keep.remove()
        hook = model.transformer.h[1].attn.c_proj.register_forward_pre_hook(remove)
        removed = loss()
        hook.remove()
        assert effects.losses["removed"].trained == pytest.approx(removed - before, abs=1e-9)
        direct = []
        for j, text in enumerate(TEXTS):
            last = len(text.split()) - 1  # the token that the state before it predicts
            row = logits[j, last - 1].clone()
            answer = int(batch["input_ids"][j, last])
            row[answer] = -torch.inf
            direction = model.lm_head.weight[answer] - model.lm_head.weight[int(row.argmax())]
            state, part = written["final"][j, last - 1], written["head"][j, last - 1]
            scaled = (part - part.mean()) / torch.sqrt(state.var(correction=0) + final.eps) * final.weight
            direct.append(float((scaled @ direction).detach()))
        assert effects.direct == pytest.approx(np.mean(direct), abs=1e-9)
        assert len(effects.losses["uniform"].draws) == 6


def test_a_model_that_predicts_no_next_token_is_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = tf.BertConfig(**sizes, vocab_size=12)
    for model, reason in (
        (tf.BertForMaskedLM(config), "sees the tokens that it predicts"),
        (tf.BertModel(config), "returns no logits by place"),
    ):
        with pytest.raises(ValueError, match=reason):
            TokenEffects(model.eval(), TEXTS, _tokenizer(), None, queries=6, seed=0)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_earlier_logits_may_change_by_roundings(share: float) -> None:
    """The last logits change at two words; some earlier ones by a share of what is allowed."""

    def model(input_ids: torch.Tensor) -> Any:
        logits = torch.zeros(1, 3, 5)
        logits[0, 0, 0] = share * FORESIGHT * input_ids[0, -1]
        logits[0, -1, input_ids[0, -1]] = 1.0
        return SimpleNamespace(logits=logits)

    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}
    if share < 1.0:
        _refuse_foresight(model, inputs, model(**inputs).logits)
    else:
        with pytest.raises(ValueError, match="function sees the tokens that it predicts"):
            _refuse_foresight(model, inputs, model(**inputs).logits)


def test_a_head_of_a_layer_without_logits_has_no_direct_effect() -> None:
    measured = TokenEffects(_model(), TEXTS, _tokenizer(), None, queries=6, seed=0)
    measured._direct = measured._direct[:1]
    effects = measured.of(_finding(1, 0)).effects
    assert effects is not None
    assert effects.direct is None


def test_a_text_may_be_longer_than_the_vocabulary() -> None:
    """And end with the last word of it: whether a model sees ahead is tried with another word."""
    text = " ".join(f"w{k}" for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 11))
    effects = TokenEffects(_model(), [text], _tokenizer(), None, queries=6, seed=0).of(_finding(0, 1)).effects
    assert effects is not None
    assert effects.tokens == 13


@pytest.mark.slow
def test_the_page_shows_the_effects(tmp_path: Path) -> None:
    _model().save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    arguments = ["--text", str(tmp_path / "text.txt"), "--layers", "1", "--queries", "6", "--effects"]
    assert main(["inspect", str(tmp_path / "model"), *arguments, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "heads" / "L01H00.html").read_text(encoding="utf-8")
    assert "What it does to the next token" in page
    assert "Mean log-probability of 18 next tokens" in page
    assert "Loss without the head" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_effects_are_measured_on_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "model", "--images", ".", "--effects"]) == 2
    assert "--effects measures next tokens" in " ".join(capsys.readouterr().err.split())
