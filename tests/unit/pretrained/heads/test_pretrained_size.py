"""Inspections in bounded memory: texts that are read once, layers in turns, heads that are written down, long texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attsvm.pretrained import (
    extract_head,
    extract_heads,
    fit_selection,
    margin_audit,
    rope_lift,
    selection_report,
)
from attsvm_pretrained.activations.layers import layer_numbers
from attsvm_pretrained.activations.repetition import in_float64
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.heads import sequences
from attsvm_pretrained.heads.extract import RefusedHead, examine_calls
from attsvm_pretrained.heads.inputs import model_inputs
from attsvm_pretrained.inspection import unfinished
from attsvm_pretrained.inspection.inspection import inspect_model
from attsvm_pretrained.inspection.survey import Survey
from attsvm_pretrained.inspection.unfinished import HEADS_FILE, SURVEY_FILE, ResumeFile
from attsvm_pretrained.report.inspection import numbers
from attsvm_pretrained.selection import probe
from attsvm_pretrained.selection.inner_products import Factored, TokenProducts
from attsvm_pretrained.selection.kernel import solve_selection
from attsvm_pretrained.selection.thinning import choices, drawn_tokens, thin
from pretrained_models import SENTENCES, batch, minilm, tiny

_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def _model(kind: str = "Bert", **settings: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(tf, f"{kind}Config")(vocab_size=minilm()[1].vocab_size, **_SIZES, **settings)
    model = tf.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.0 if parameter.ndim == 1 else 8.0
    return model


def _t5() -> Any:
    torch.manual_seed(0)
    config = tf.T5Config(d_model=16, d_kv=8, num_layers=1, num_heads=2, d_ff=16, vocab_size=minilm()[1].vocab_size)
    config.decoder_start_token_id = 0
    return tf.AutoModel.from_config(config)


def _gpt_oss() -> Any:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "num_key_value_heads": 1}
    return _model("GptOss", **experts)


@pytest.mark.parametrize(
    "family", [_model, lambda: _model("Llama"), _t5, _gpt_oss], ids=["bert", "llama", "t5", "gpt-oss"]
)
def test_texts_that_are_read_once_count_as_those_that_are_kept(family: Any) -> None:
    """Fewer queries than are noted at most: the reports are those of the whole, but for float32 noted of float64."""
    model, (_, tokenizer) = family(), minilm()
    whole = list(extract_heads(model, model_inputs(model, SENTENCES, tokenizer), tokenizer=tokenizer))
    paths = record(model, model_inputs(model, SENTENCES[:1], tokenizer)).paths

    def inputs(which: Sequence[int]) -> dict[str, Any]:
        return model_inputs(model, [SENTENCES[i] for i in which], tokenizer)

    survey = Survey(model, tokenizer, layer_numbers(paths), inputs, seed=0)
    batches = [range(5), range(5, 8), range(8, len(SENTENCES))]
    assert survey.run(batches, range(len(paths)), ResumeFile(None, ""), None, 1.0)
    for head in whole:
        first, *others = survey.numbers_of(head.layer, head.head)
        streamed, report = first.with_others(others).report(), selection_report(head)
        assert (streamed.queries, streamed.verdict) == (report.queries, report.verdict)
        assert streamed.visible == report.visible
        assert streamed.special_uniform == pytest.approx(report.special_uniform)
        np.testing.assert_array_equal(streamed.offsets, report.offsets)
        # A near tie of two tokens, or of a sum with 99 %, may fall the other way in another batch: one query or two.
        few = 2.1 / report.queries
        np.testing.assert_allclose(streamed.offset_shares, report.offset_shares, atol=few)
        assert streamed.place_share == pytest.approx(report.place_share, abs=few)
        assert streamed.top1 == pytest.approx(report.top1, rel=1e-5)
        assert streamed.set99 == pytest.approx(report.set99, abs=1)
        assert streamed.special == (None if report.special is None else pytest.approx(report.special, rel=1e-5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["Bert", "Llama"])
def test_texts_that_are_read_once_in_a_short_dtype_keep_the_places_of_queries(kind: str, dtype: torch.dtype) -> None:
    """That queries and keys are of the same tokens shows in float64 only."""
    model, (_, tokenizer) = _model(kind).to(dtype), minilm()
    whole = extract_heads(model, model_inputs(model, SENTENCES, tokenizer), tokenizer=tokenizer)
    calls = range(model.config.num_hidden_layers)
    survey = Survey(
        model, tokenizer, calls, lambda which: model_inputs(model, [SENTENCES[i] for i in which], tokenizer), seed=0
    )
    assert survey.run([range(5), range(5, len(SENTENCES))], calls, ResumeFile(None, ""), None, 1.0)
    for head in whole:
        first, *others = survey.numbers_of(head.layer, head.head)
        streamed, report = first.with_others(others).report(), selection_report(head)
        assert len(streamed.offsets) > 0
        assert streamed.queries == report.queries
        # Scores are about 1 here, so that the roundings of a query, a key, their product and a probability move a
        # probability by four parts in 1 / eps or so, and no more than a near tie in twenty to the other token.
        assert streamed.top1 == pytest.approx(report.top1, rel=4 * torch.finfo(dtype).eps)
        assert streamed.place_share == pytest.approx(report.place_share, abs=0.05)


def test_a_layer_is_repeated_within_the_pass_without_a_copy_of_the_model() -> None:
    """The hooks of the pass lead from each module to all others."""

    class NoCopy:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise AssertionError("the whole model was copied")

    model = tiny("llama").bfloat16()
    model.mark = NoCopy()
    dtypes: list[torch.dtype] = []
    record(model, batch("llama"), keep=lambda call: dtypes.extend(one.query.dtype for one in in_float64(call)))
    assert set(dtypes) == {torch.float64}


def test_layers_in_turns_are_those_of_one_pass() -> None:
    """And the pass of a layer's turn ends there."""
    model, inputs = tiny("llama"), batch("llama")
    whole = list(extract_heads(model, inputs))
    layers: list[int] = []
    for number, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda module, arguments, output, number=number: layers.append(number))
    turns = [head for index in (0, 1) for head in examine_calls(model, inputs, [0, 1], [index], None)]
    assert layers == [0]  # the second layer's turn ends inside it, the first's before its end
    for one, other in zip(whole, turns, strict=True):
        assert (one.layer, one.head) == (other.layer, other.head)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
        np.testing.assert_array_equal(one.tokens, other.tokens)


def _plain(inspection: Any) -> dict[str, Any]:
    record = numbers(inspection, "")
    return {name: value for name, value in record.items() if name not in ("seconds", "complete")}


def test_a_stopped_inspection_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once while texts are read and once between heads; the numbers are those of one that was not stopped."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    model, (_, tokenizer) = _model(), minilm()
    memory = 4 * 4 * 2 * 20 * 20 * 4  # for four texts or so
    options: dict[str, Any] = {"queries": 6, "memory": memory, "interval": 0.0}
    at_once = inspect_model(model, tokenizer, SENTENCES, **options)
    assert at_once.kept < len(SENTENCES) == at_once.texts
    messages: list[str] = []

    def stopping(beginning: str) -> Any:
        def progress(sentence: str, share: float) -> bool:
            messages.append(sentence)
            return sentence.startswith(beginning)

        return progress

    folder = tmp_path / "unfinished"
    options["resume"] = folder
    partly = inspect_model(model, tokenizer, SENTENCES, progress=stopping("Reading texts: 4"), **options)
    assert not partly.complete
    assert partly.heads == ()
    partly = inspect_model(model, tokenizer, SENTENCES, progress=stopping("Inspecting heads: 2"), **options)
    assert not partly.complete
    assert 2 <= len(partly.heads) < 4
    with (folder / HEADS_FILE).open("a") as lines:
        lines.write('{"of": "finding.HeadF')  # the end of a line that was being written when the power went
    messages.clear()
    rest = inspect_model(model, tokenizer, SENTENCES, progress=stopping("never"), **options)
    assert rest.complete
    assert _plain(rest) == _plain(at_once)
    assert messages[-1].startswith("Inspecting heads: 4 of 4 heads")
    assert any(" a second, " in sentence and sentence.endswith(" left") for sentence in messages)
    assert not any(sentence.startswith("Inspecting heads: 1 of") for sentence in messages)
    other = inspect_model(model, tokenizer, SENTENCES[:8], progress=stopping("Reading texts: 0"), **options)
    assert other.heads == ()  # other texts: nothing of the folder counts


def test_a_folder_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its lines name a class with the module that it lived in."""
    file = ResumeFile(tmp_path, "one")
    fields = {"layer": 1, "head": 2, "name": "attn", "reason": "none"}
    with (tmp_path / HEADS_FILE).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"of": "extract.RefusedHead", "fields": fields}) + "\n")
    file.add(RefusedHead(**fields))
    assert file.heads() == [RefusedHead(**fields)] * 2


def test_a_folder_of_the_users_is_no_inspection(tmp_path: Path) -> None:
    folder = tmp_path / "unfinished"
    folder.mkdir()
    (folder / "novel.txt").write_text("mine")
    ResumeFile(folder, "one")
    ResumeFile(folder, "another").write_survey({"a": np.ones(1)})
    unfinished.remove(folder)
    assert [path.name for path in folder.iterdir()] == ["novel.txt"]
    for name, content in ((HEADS_FILE, '{"mine": 1}\n'), (SURVEY_FILE, "mine")):
        (folder / name).write_text(content)
        with pytest.raises(ValueError, match=f"holds {name} of no inspection"):
            ResumeFile(folder, "one")
        assert (folder / name).read_text() == content
        (folder / name).unlink()
    (folder / "novel.txt").unlink()
    ResumeFile(folder, "one")
    unfinished.remove(folder)
    assert not folder.exists()


_PEAK = """
import resource, sys
import torch, transformers as tf
from attsvm_pretrained.inspection import inspection
from attsvm_pretrained.inspection.finding import Reports
from attsvm_pretrained.heads.extract import RefusedHead

class Tokenizer:
    model_max_length, pad_token, all_special_ids = 160, "0", [0]
    def convert_ids_to_tokens(self, ids):
        return [str(i) for i in ids]
    def __call__(self, texts, return_tensors=None, **options):
        ids = [[1 + (len(text) * 7 + t * t) % 90 for t in range(160)] for text in texts]
        return {"input_ids": ids if return_tensors is None else torch.tensor(ids)}

Reports.of = lambda self, head, elsewhere: RefusedHead(head.layer, head.head, "", str(head.tokens.shape))
def peak(layers, texts):
    sizes = {"hidden_size": 32, "num_attention_heads": 8, "intermediate_size": 32, "vocab_size": 100}
    model = tf.LlamaModel(tf.LlamaConfig(num_hidden_layers=layers, **sizes))
    inspection.inspect_model(model, Tokenizer(), ["a" * (i % 50 + 1) for i in range(texts)], memory=16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
peak(2, 30)
small = peak(2, 30)
print(peak(2, 150) - small, peak(7, 30) - small)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_texts_or_layers() -> None:
    """All patterns of 150 texts in two layers take 235 MiB, those of 30 texts in seven 165; what is noted, one or two.

    The peak may grow by the allocator's fragments, a few MiB; by one layer's patterns of all texts it may not.
    """
    run = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True)
    more_texts, more_layers = map(float, run.stdout.split())
    assert more_texts < 40
    assert more_layers < 40


@pytest.mark.parametrize("family", ["llama", "phi", "bert", "t5"])
def test_formed_and_factored_products_solve_the_same_problem(family: str) -> None:
    head = extract_head(tiny(family), 0, 1, batch(family))
    head = head.take(head.mask.sum(axis=1) > 1)
    signed = np.where(head.mask, np.random.default_rng(0).standard_normal(head.mask.shape), 0.0)
    factored, dense = Factored(head), TokenProducts(head)
    lifted = rope_lift(head)
    W = np.einsum("it,itd,iz->dz", signed, lifted.tokens, head.asking_vectors())
    direct = np.where(head.mask, np.einsum("itd,dz,iz->it", lifted.tokens, W, head.asking_vectors()), 0.0)
    size = np.abs(direct).max()  # sums of some hundred products, each a few roundings off
    np.testing.assert_allclose(factored.scores(signed), direct, atol=1e-11 * size)
    np.testing.assert_allclose(dense.scores(signed), direct, atol=1e-11 * size)
    one, other = (solve_selection(head, head.selected, kernel, None, 1e-8, None) for kernel in (factored, dense))
    assert one.objective == pytest.approx(other.objective, rel=1e-7)


def test_a_probe_is_the_same_whether_its_products_are_formed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    head = extract_head(tiny("llama"), 0, 1, batch("llama"))
    dense_probe = fit_selection(head)
    monkeypatch.setattr(probe, "GRAM_TOKENS", 0)
    factored = fit_selection(head)
    assert vars(replace(dense_probe, support=())) == vars(replace(factored, support=()))
    for one, other in zip(dense_probe.support, factored.support, strict=True):
        assert one.multiplier == pytest.approx(other.multiplier, rel=1e-9)  # sums in another order, well conditioned


def test_copies_of_tokens_are_refused_from_their_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six queries of a text of four tokens: 6 * 4 * (3 + 1) numbers of eight bytes."""
    rng = np.random.default_rng(0)
    given = rng.normal(size=(2, 4, 3)), np.repeat([0, 1], 3), np.ones((6, 4), dtype=bool), rng.normal(size=(6, 4))
    monkeypatch.setattr(sequences, "COPIED_BYTES", 8 * 6 * 4 * 4)
    assert sequences.tokens_with_bias(*given)[0].shape == (6, 4, 4)
    monkeypatch.setattr(sequences, "COPIED_BYTES", 8 * 6 * 4 * 4 - 1)
    with pytest.raises(ValueError, match="additive term for each query of 6 queries"):
        sequences.tokens_with_bias(*given)


def test_an_additive_term_of_tokens_is_not_copied_where_only_roundings_differ() -> None:
    """The roundings are small beside the largest number of the term, of which the smallest is zero."""
    rng = np.random.default_rng(0)
    term = np.tile(np.arange(4.0), (3, 1))
    term[1:] += 0.1 * sequences.SAME_TERM * rng.uniform(size=(2, 4))
    visible, read = np.ones((3, 4), dtype=bool), np.zeros(3, dtype=int)
    tokens, sequence = sequences.tokens_with_bias(rng.normal(size=(1, 4, 2)), read, visible, term)
    assert tokens.shape == (1, 4, 3)
    np.testing.assert_allclose(tokens[sequence, :, -1], term, atol=sequences.SAME_TERM)


def test_a_line_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    """The next head begins a line of its own."""
    file, head = ResumeFile(tmp_path, "one"), RefusedHead(1, 2, "attn", "none")
    file.add(head)
    with (tmp_path / HEADS_FILE).open("a", encoding="utf-8") as lines:
        lines.write('{"of": "Refu')
    assert file.heads() == [head]
    file.add(head)
    assert file.heads() == [head, head]


def test_thinned_heads_keep_scores_and_places() -> None:
    head = extract_head(tiny("qwen2"), 1, 2, batch("qwen2"))
    head = head.take(head.mask.sum(axis=1) > 4)
    columns = drawn_tokens(head.mask, 4, np.random.default_rng(0), certain=(head.selected,))
    few = thin(head, columns)
    assert (columns == head.selected[:, None]).any(axis=1).all()
    assert (np.diff(columns, axis=1) > 0).all()
    np.testing.assert_allclose(few.scores()[:, :4], np.take_along_axis(head.scores(), columns, axis=1), rtol=1e-12)
    np.testing.assert_array_equal(few.query_place, head.query_place)
    np.testing.assert_array_equal(few.selected_place, head.selected_place)
    np.testing.assert_allclose(few.probabilities.sum(axis=1), 1.0, rtol=1e-12)


def test_a_thinned_head_attends_to_its_drawn_tokens_alone() -> None:
    """A query that sees fewer than are drawn gets hidden ones, and its own token is hidden behind them."""
    head = extract_head(tiny("gpt2"), 1, 2, batch("gpt2"))
    columns = drawn_tokens(head.mask, 4, np.random.default_rng(0))
    few = thin(head, columns)
    visible = np.minimum(head.mask.sum(axis=1), 4)
    np.testing.assert_array_equal(few.mask, np.arange(5) < visible[:, None])
    own = np.where(few.mask[:, :4], np.take_along_axis(head.probabilities, columns, axis=1), 0.0)
    np.testing.assert_allclose(few.probabilities[:, :4], own / own.sum(axis=1, keepdims=True), rtol=1e-6)
    assert not few.probabilities[:, 4].any()


def test_a_thinned_head_keeps_its_relative_positions() -> None:
    head = extract_head(tiny("deberta-v2"), 0, 1, batch("deberta-v2"))
    columns = drawn_tokens(head.mask, 4, np.random.default_rng(0))
    few = thin(head, columns)
    assert len(few.relative) == 2
    for kept, form in zip(few.relative, head.relative, strict=True):
        whole = form.scores(head.tokens @ head.K, head.queries @ head.Q, head.sequence)
        scores = kept.scores(few.tokens @ few.K, few.queries @ few.Q, few.sequence)
        np.testing.assert_allclose(scores[:, :4], np.take_along_axis(whole, columns, axis=1), rtol=1e-9, atol=1e-12)


def test_tokens_are_drawn_where_there_are_more_constraints_than_the_most() -> None:
    """Four queries that see six tokens each have twenty constraints."""
    mask = np.ones((4, 6), dtype=bool)
    assert choices(mask, most=20, sample=9) is None
    assert choices(mask, most=19, sample=9) == 9 // 4 + 1
    assert choices(mask, most=19, sample=3) == 2


@pytest.mark.slow
def test_long_texts_cost_no_more_than_their_share_of_choices() -> None:
    """At 200 tokens a text every SVM is of tokens drawn; that distance tells the selection is found all the same."""
    torch.manual_seed(0)
    sizes = {**_SIZES, "num_hidden_layers": 1, "vocab_size": 60}
    model = tf.LlamaModel(tf.LlamaConfig(**sizes))
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 60, size=(6, 200)))
    head = extract_head(model, 0, 0, {"input_ids": ids})
    before = np.where(head.position > 0, head.position - 1, 0)
    sharp = np.where(head.mask, 1e-4, 0.0)
    sharp[np.arange(len(sharp)), before] = 1.0
    looks_back = replace(head, probabilities=sharp / sharp.sum(axis=1, keepdims=True))
    probe = fit_selection(looks_back, queries=100)
    assert probe.among is not None
    assert probe.among == 4096 // 100 + 1
    assert probe.distance is not None
    assert probe.distance > 0.8
    audit = margin_audit(head, queries=32, norms=(), draws=2)
    assert audit.among == 1024 // 32 + 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_model_on_a_gpu_is_inspected_there() -> None:
    model, (_, tokenizer) = _model("Llama"), minilm()
    options: dict[str, Any] = {"queries": 6, "memory": 4 * 4 * 2 * 20 * 20 * 4}
    here = inspect_model(model, tokenizer, SENTENCES, **options)
    there = inspect_model(model.cuda(), tokenizer, SENTENCES, **options)
    for one, other in zip(here.heads, there.heads, strict=True):
        assert other.error < 1e-5
        assert other.report.top1 == pytest.approx(one.report.top1, abs=1e-4)
