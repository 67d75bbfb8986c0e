"""Heads over the checkpoints of a training: a model of two layers learns induction on repeats, and when."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as tf

from attsvm.cli import main
from attsvm.pretrained import (
    example_model,
    extract_head,
    extract_heads,
    head_types,
    margin_audit,
    over_checkpoints,
    selection_report,
)
from attsvm_pretrained.inspection import checkpoints
from attsvm_pretrained.inspection.checkpoints import Checkpoints, HeadSeries, saved_steps
from induction import LARGER, SMALL, Repeats, train


def _kept(sizes: Repeats, every: int) -> tuple[dict[int, Any], torch.Tensor]:
    """The models of some steps, and of the last, with texts."""
    models: dict[int, Any] = {}
    last = 0

    def keep(step: int, model: Any) -> None:
        nonlocal last
        last = step
        if step % every == 0:
            models[step] = copy.deepcopy(model).eval()

    model, ids = train(sizes, keep)
    return models | {last: model}, ids


@pytest.fixture(scope="module")
def small() -> tuple[dict[int, Any], torch.Tensor, Checkpoints]:
    models, ids = _kept(SMALL, 60)
    return models, ids, over_checkpoints(models, {"input_ids": ids}, draws=20)


@pytest.mark.slow
def test_induction_appears_between_two_checkpoints(small) -> None:
    """At step 0 nothing has a name; at the end both heads of the second layer copy, and only these."""
    _, _, series = small
    assert series.steps.tolist() == [0, 60, 120]
    heads = {(one.layer, one.head): one for one in series.heads}
    assert {one.names[0] for one in series.heads} == {None}
    assert [at for at, one in heads.items() if one.names[-1] == "induction"] == [(1, 0), (1, 1)]
    assert all(heads[1, h].since in (60, 120) for h in range(2))
    assert heads[1, 1].scores["induction"][-1] > 0.5 > heads[1, 1].scores["induction"][0]
    assert heads[1, 1].scores["induction"][-1] > heads[1, 1].null["induction"][-1]
    assert "2 are named induction (the first from step " in series.sentence


@pytest.mark.slow
def test_the_numbers_are_those_of_every_checkpoint_by_itself(small) -> None:
    models, ids, series = small
    for s, (step, model) in enumerate(models.items()):
        for own, head in zip(series.heads, extract_heads(model, {"input_ids": ids}), strict=True):
            assert (own.layer, own.head) == (head.layer, head.head)
            types = head_types(head, draws=20)
            assert own.names[s] == types.name
            for name, one in types.scores.items():
                assert own.scores[name][s] == one.score
                assert own.null[name][s] == one.standing.draws.max()
            assert own.top1[s] == selection_report(head).top1
            scores = np.sort(np.where(head.mask, head.scores(), -np.inf)[head.mask.sum(axis=1) > 1], axis=1)
            assert own.margin[s] == np.median(scores[:, -1] - scores[:, -2])
        assert step == series.steps[s]


def test_a_name_counts_from_its_last_beginning() -> None:
    """A head that bore the name, lost it and bears it again has it since the second time."""
    model, ids = train(Repeats(16, 2, 10, 16, 4, 6, 1e-3, 4, 1, loss=100.0))
    (one, *_) = over_checkpoints({0: model, 5: model, 9: model, 12: model}, {"input_ids": ids}, draws=2).heads
    since = [
        type(one)(**{**one.__dict__, "names": names}).since
        for names in (
            ("induction", None, "induction", "induction"),
            ("induction",) * 4,
            (None, None, None, "first"),
            ("first", "first", "first", None),
        )
    ]
    assert since == [9, 0, 12, None]


def test_the_sentence_counts_the_heads_of_a_type_by_its_step() -> None:
    """The type that appears first stands first, whatever its letter."""
    steps, none = np.array([0, 5, 9]), np.zeros(3)
    names = (("a", "previous", "previous"), (None, None, "induction"), (None, "previous", "previous"))
    heads = tuple(HeadSeries(0, h, steps, name, {}, {}, none, none, none) for h, name in enumerate(names))
    assert Checkpoints(steps, heads, {}, True, 0.0).sentence == (
        "Of 3 heads, at step 9, 2 are named previous (the first from step 5), "
        "1 is named induction (the first from step 9)."
    )


def test_a_checkpoint_has_a_step_and_a_configuration(tmp_path: Path) -> None:
    for name in ("checkpoint-10", "checkpoint-2", "checkpoint-best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "checkpoint-7").mkdir()
    assert list(saved_steps(tmp_path).items()) == [(k, tmp_path / f"checkpoint-{k}") for k in (2, 10)]


def test_a_head_that_is_refused_at_a_step_has_no_series() -> None:
    """Its queries are bent at the second step; of the others the margin is the median lead of the largest score."""
    model, inputs = example_model("gpt2")
    bent = copy.deepcopy(model)
    bent.transformer.h[1].attn.c_attn.register_forward_hook(
        lambda module, arguments, output: torch.cat([output[..., :8].tanh(), output[..., 8:]], dim=-1)
    )
    series = over_checkpoints({0: model, 5: bent}, inputs, draws=2)
    assert [(one.layer, one.head) for one in series.heads] == [(0, 0), (0, 1), (1, 1)]
    assert [(step, one.layer, one.head) for step, (one,) in series.refused.items()] == [(5, 1, 0)]
    for one in series.heads:
        for s, step_model in enumerate((model, bent)):
            head = extract_head(step_model, one.layer, one.head, inputs)
            efficiency = margin_audit(head, queries=32, norms=(), draws=0).efficiency
            np.testing.assert_equal(one.efficiency[s], np.nan if efficiency is None else efficiency)
            scores = head.scores()
            leads = [np.diff(np.sort(row[: t + 1])[-2:])[0] for t, row in enumerate(scores) if t > 0]
            assert one.margin[s] == pytest.approx(np.median(leads), rel=1e-9)


def _save(models: dict[int, Any], ids: torch.Tensor, folder: Path) -> Path:
    """What a Trainer leaves, with a tokenizer of one word per id."""
    words = {f"w{k}": k for k in range(SMALL.words)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", unk_token="w0")
    for step, model in models.items():
        model.save_pretrained(folder / f"checkpoint-{step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    (folder / "runs").mkdir()
    (folder / "checkpoint-best").mkdir()
    lines = [" ".join(f"w{k}" for k in row) for row in ids.tolist()]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_command_reads_the_folder_of_a_trainer(small, tmp_path: Path, capsys) -> None:
    models, ids, series = small
    folder = _save(models, ids, tmp_path)
    assert list(saved_steps(folder)) == [0, 60, 120]
    out = tmp_path / "out"
    assert main(["inspect", str(folder), "--text", str(folder / "text.txt"), "--layers", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    record = json.loads((out / "checkpoints.json").read_text())
    assert printed.splitlines()[0] == record["headline"]
    assert record["steps"] == [0, 60, 120]
    heads = {(one["layer"], one["head"]): one for one in record["heads"]}
    for one in series.heads[2:]:  # the texts give the ids of the fixture
        assert heads[one.layer, one.head]["types"][-1] == one.names[-1] == "induction"
        assert heads[one.layer, one.head]["scores"]["induction"] == pytest.approx(one.scores["induction"], abs=1e-6)
    page = (out / "index.html").read_text()
    assert record["headline"] in re.sub(r"\s+", " ", page)
    (table,) = re.findall(r'<table[^>]*id="series".*?</table>', page, re.DOTALL)
    assert table.count("<tr") == 3
    assert main(["inspect", str(folder), "--images", str(folder), "--out", str(out)]) == 2
    assert "holds checkpoints, which --images does not read; --text was expected" in capsys.readouterr().err


def test_the_command_passes_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in bytes, of which GiB are given; the page tells how the command was called."""
    model, _ = example_model("gpt2")
    folder = _save({0: model, 5: model}, torch.arange(24).reshape(4, 6), tmp_path)
    options: dict[str, Any] = {}

    def noted(*arguments: Any, **keywords: Any) -> Checkpoints:
        options.update(keywords)
        return over_checkpoints(*arguments, **keywords, draws=2)

    monkeypatch.setattr(checkpoints, "over_checkpoints", noted)
    monkeypatch.setattr("sys.argv", ["/bin/attsvm", "inspect", "two words", "--layers", "1"])
    arguments = [
        "--text",
        str(folder / "text.txt"),
        "--layers",
        "1",
        "--memory",
        "0.25",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["inspect", str(folder), *arguments]) == 0
    assert options["memory"] == 256 * 1024**2
    assert options["layers"] == [1]
    record = json.loads((tmp_path / "out" / "checkpoints.json").read_text())
    assert record["command"] == "attsvm inspect 'two words' --layers 1"


def test_a_stopped_run_keeps_the_checkpoints_that_are_done(small) -> None:
    models, ids, series = small
    stopped = over_checkpoints(
        models, {"input_ids": ids}, draws=2, layers=[1], progress=lambda sentence, share: share > 0.3
    )
    assert stopped.steps.tolist() == [0]
    assert not stopped.complete
    assert series.complete


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folder checkpoint-STEP with config"):
        over_checkpoints(tmp_path, ["one text", "another"])


@pytest.mark.slow
def test_every_induction_head_is_named_with_its_step() -> None:
    """All four heads of the second layer copy in the end, each from a step in the fall of the loss; none before."""
    models, ids = _kept(LARGER, 25)
    series = over_checkpoints(models, {"input_ids": ids}, draws=20)
    print(series.sentence)
    steps = {(one.layer, one.head): one.since for one in series.heads if one.names[-1] == "induction"}
    print(steps)  # docs/pretrained.md quotes these
    assert sorted(steps) == [(1, head) for head in range(4)]
    assert all(100 <= step <= series.steps[-1] for step in steps.values())
    for one in series.heads:
        assert "induction" not in one.names[:4]
        if one.layer == 1:
            at = list(series.steps).index(one.since)
            assert one.scores["induction"][at] >= 0.3 > one.scores["induction"][0]
