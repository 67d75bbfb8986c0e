"""Sounds as inputs of a model, and the places of tokens in images and sounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from scipy.io import wavfile

from attsvm_pretrained.heads.media import POINTS, SAMPLE_RATE, Media, Medium, _envelope, read_media


def _media(sides: tuple[int, int] | None, seconds: float | None = None) -> Media:
    medium = Medium("one", seconds=seconds)
    return Media("audio" if sides is None else "images", (medium,) * 2, sides, lambda which: {})


@pytest.mark.parametrize("names", [[], ["[CLS]"], ["[CLS]", "[extra 1]", "[extra 2]"]])
def test_patches_follow_the_tokens_outside_the_image(names: list[str]) -> None:
    parts = _media((2, 4)).parts(len(names) + 8)
    assert parts is not None
    before = len(names)
    assert list(parts.labels[:before]) == names
    assert parts.boxes[:before] == (None,) * before
    assert parts.labels[before:][::3] == ("row 1, column 1", "row 1, column 4", "row 2, column 3")
    boxes = [(column / 4, row / 2, 0.25, 0.5) for row in (0, 1) for column in range(4)]
    assert list(parts.boxes[before:]) == boxes


def test_fewer_tokens_than_patches_are_no_grid() -> None:
    assert _media((2, 4)).parts(7) is None


def test_a_sound_is_cut_into_equal_intervals() -> None:
    parts = _media(None, seconds=3.0).parts(4)
    assert parts is not None
    assert parts.labels == ("0.00 s", "0.75 s", "1.50 s", "2.25 s")
    assert parts.boxes == tuple((t / 4, 0.0, 0.25, 1.0) for t in range(4))


def _write_sounds(folder: Path) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    waves = [rng.uniform(-1.0, 1.0, count) for count in (800, 1600)]
    for number, wave in enumerate(waves):
        wavfile.write(folder / f"{number}.wav", SAMPLE_RATE, wave)
    return waves


def test_a_shorter_sound_is_padded_with_hidden_zeros(tmp_path: Path) -> None:
    short, long = _write_sounds(tmp_path)
    media = read_media(tmp_path, "audio", torch.nn.Identity(), "", 9)
    assert [item.seconds for item in media.items] == [0.1, 0.1]
    inputs = media.inputs
    standard = [(wave - wave.mean()) / wave.std() for wave in (short, long)]
    expected = np.stack([np.concatenate([standard[0], np.zeros(800)]), standard[1]])
    np.testing.assert_allclose(inputs["input_values"].numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(inputs["attention_mask"].numpy(), np.arange(1600) < np.array([[800], [1600]]))


def test_an_envelope_is_relative_to_the_loudest_interval() -> None:
    """Four samples per point, and silence to the end."""
    loud = np.arange(1, POINTS // 2 + 1) / POINTS
    wave = np.repeat(loud, 4) * np.tile([0.5, -1.0, 0.0, 0.25], len(loud))
    expected = np.concatenate([loud / loud.max(), np.zeros(POINTS // 2)])
    np.testing.assert_allclose(_envelope(wave, 4 * POINTS), expected, rtol=1e-12)
    np.testing.assert_array_equal(_envelope(np.zeros(8), 4 * POINTS), np.zeros(POINTS))


def test_without_settings_features_are_as_long_as_the_encoder_reads(tmp_path: Path) -> None:
    """A convolution of stride two halves the frames; there are a hundred a second."""
    _write_sounds(tmp_path)
    torch.manual_seed(0)
    config = tf.WhisperConfig(
        d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1,
        encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, max_source_positions=100, num_mel_bins=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = tf.WhisperModel(config).eval()
    media = read_media(tmp_path, "audio", model, str(tmp_path), 9)
    assert [item.seconds for item in media.items] == [2.0, 2.0]
    inputs = media.inputs
    assert inputs["input_features"].shape == (2, 16, 200)
    with torch.no_grad():
        assert model(**inputs).encoder_last_hidden_state.shape == (2, 100, 8)
