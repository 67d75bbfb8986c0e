"""Models loaded from a folder: where the folder is, the device, and what a model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from attsvm_pretrained.heads.loading import load
from attsvm_pretrained.heads.media import MediaKind, media_kind

_SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
_PICTURE = {**_SHAPE, "image_size": 16, "patch_size": 8}


def _config(kind: str) -> Any:
    if kind == "clip":
        text = {**_SHAPE, "vocab_size": 9, "max_position_embeddings": 8}
        return tf.CLIPConfig(text_config=text, vision_config=_PICTURE, projection_dim=8)
    return tf.ViTConfig(**_PICTURE) if kind == "vit" else tf.BertConfig(**_SHAPE, vocab_size=9)


def _save(kind: str, folder: Path) -> None:
    tf.AutoModel.from_config(_config(kind)).save_pretrained(folder)


def test_a_folder_may_begin_with_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    _save("bert", tmp_path / "model")
    model, tokenizer = load("~/model", tokenizes=False)
    assert type(model) is tf.BertModel
    assert tokenizer is None


@pytest.mark.parametrize(("device", "kind"), [(None, "cpu"), ("cpu", "cpu"), ("meta", "meta")])
def test_a_model_is_on_the_device_that_is_given(device: str | None, kind: str, tmp_path: Path) -> None:
    _save("bert", tmp_path)
    model, _ = load(str(tmp_path), tokenizes=False, device=device)
    assert {parameter.device.type for parameter in model.parameters()} == {kind}


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_images_are_read_by_the_image_encoder(kind: str, tmp_path: Path) -> None:
    _save(kind, tmp_path)
    model, tokenizer = load(str(tmp_path), "images")
    assert media_kind(model) == "images"
    assert tokenizer is None


@pytest.mark.parametrize(
    ("kind", "reads", "sentence"),
    [
        ("bert", "images", r"BertModel, which reads input_ids; a text file \(--text\) was expected"),
        ("bert", "audio", r"BertModel, which reads input_ids; a text file \(--text\) was expected"),
        ("clip", "audio", r"CLIPModel, which reads input_ids; a text file \(--text\) was expected"),
        ("vit", "audio", r"ViTModel, which reads pixel_values; a folder of images \(--images\) was expected"),
        ("vit", None, r"ViTModel, which reads pixel_values; a folder of images \(--images\) was expected"),
    ],
)
def test_a_model_that_reads_something_else_is_refused(
    kind: str, reads: MediaKind | None, sentence: str, tmp_path: Path
) -> None:
    """By its configuration alone, before its weights are read."""
    _config(kind).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        load(str(tmp_path), reads)
