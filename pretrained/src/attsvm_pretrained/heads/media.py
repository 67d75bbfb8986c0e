"""Read images and sounds as inputs of a model, and locate its tokens in them: patches, or intervals of time."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from attsvm.platform.extras import extra_for
from attsvm_pretrained.heads.head import AttentionHead

MediaKind = Literal["images", "audio"]
INPUTS: dict[str, MediaKind] = {"pixel_values": "images", "input_features": "audio", "input_values": "audio"}
ENDINGS = {"images": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"), "audio": (".wav",)}
# Longer side of a thumbnail in pixels, number of points of a drawn sound, and samples per second of speech models.
THUMBNAIL, POINTS, SAMPLE_RATE = 192, 240, 16_000


@dataclass(frozen=True, eq=False)
class Medium:
    """An image or a sound, as drawn on a page.

    Attributes
    ----------
    name : str
        Name of its file.
    picture : bytes or None
        A small PNG of an image.
    envelope : ndarray, shape (points,), or None
        Largest amplitude of a sound per interval, over its largest amplitude.
    seconds : float or None
        Length of the time axis, including silence that the model is given.
    digest : str
        Digest of the file's bytes.
    """

    name: str
    picture: bytes | None = None
    envelope: np.ndarray | None = None
    seconds: float | None = None
    digest: str = ""


@dataclass(frozen=True, eq=False)
class Parts:
    """Locations of the tokens of a medium.

    Attributes
    ----------
    boxes : tuple
        Left, top, width and height of each token, as shares of the whole; None for a token outside the medium.
    """

    labels: tuple[str, ...]
    boxes: tuple[tuple[float, float, float, float] | None, ...]


@dataclass(frozen=True, eq=False)
class Media:
    """The images or sounds that a model reads; only their drawings are held in memory.

    Attributes
    ----------
    kind : {"images", "audio"}
    sides : tuple of int, or None
        Rows and columns of patches.
    read : callable
        Reads some of the files, by number, into keyword arguments of the model.
    """

    kind: MediaKind
    items: tuple[Medium, ...]
    sides: tuple[int, int] | None
    read: Callable[[Sequence[int]], dict[str, Any]]

    @property
    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model for all items."""
        return self.read(range(len(self.items)))

    def take(self, which: Sequence[int]) -> Media:
        """Return some of the items, in that order."""
        items = tuple(self.items[i] for i in which)
        return replace(self, items=items, read=lambda some: self.read([which[i] for i in some]))

    def parts(self, count: int) -> Parts | None:
        """Locate a number of tokens; None if they are no grid of the image."""
        if self.sides is None:
            return _stretches(count, self.items[0].seconds or 0.0)
        return _patches(count, *self.sides)

    def parts_of(self, head: AttentionHead) -> Parts | None:
        """Locate the tokens of a head; None if the head does not read the media."""
        reads = head.ids is None and len(head.tokens) == len(self.items)
        return self.parts(head.tokens.shape[1]) if reads else None

    def labelled(self, head: AttentionHead) -> AttentionHead:
        """Give a head that reads the media the labels of its tokens."""
        parts = self.parts_of(head)
        if parts is None:
            return head
        special = np.array([box is None for box in parts.boxes])
        shape = head.tokens.shape[:2]
        return replace(head, texts=(parts.labels,) * len(self.items), special=np.broadcast_to(special, shape))


@lru_cache(maxsize=8)
def _patches(count: int, rows: int, columns: int) -> Parts | None:
    before = count - rows * columns
    if before < 0:
        return None
    names = ["[CLS]", *(f"[extra {k}]" for k in range(1, before))][:before]
    places = [(r, c) for r in range(rows) for c in range(columns)]
    boxes = tuple((c / columns, r / rows, 1 / columns, 1 / rows) for r, c in places)
    return Parts((*names, *(f"row {r + 1}, column {c + 1}" for r, c in places)), ((None,) * before) + boxes)


@lru_cache(maxsize=8)
def _stretches(count: int, seconds: float) -> Parts:
    labels = tuple(f"{t * seconds / count:.2f} s" for t in range(count))
    return Parts(labels, tuple((t / count, 0.0, 1.0 / count, 1.0) for t in range(count)))


def media_kind(model: Any) -> MediaKind | None:
    """Determine the inputs of a model or its class: images, sound, or neither."""
    return INPUTS.get(getattr(model, "main_input_name", "input_ids"))


def read_media(folder: Path, kind: MediaKind, model: Any, source: str, most: int) -> Media:
    """Read the files of a folder into the inputs of a model.

    Parameters
    ----------
    kind : {"images", "audio"}
    model : PreTrainedModel
    source : str
        Folder of the model, whose preprocessor settings give the scale of the inputs.
    most : int
        Largest number of files to read, in order of their names.

    Raises
    ------
    ValueError
        If the folder has fewer than two such files, or one cannot be read.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; one with {' or '.join(ENDINGS[kind])} files was expected.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS[kind])[:most]
    if len(paths) < 2:
        endings = ", ".join(ENDINGS[kind])
        raise ValueError(f"{folder} has {len(paths)} files of {kind}; at least two were expected, of {endings}.")
    return _images(paths, model, source) if kind == "images" else _sounds(paths, model, source)


def _images(paths: Sequence[Path], model: Any, source: str) -> Media:
    """Resize images to the model's input size, and scale their colours as its preprocessor does."""
    image_module = _pillow()
    config = getattr(model.config, "vision_config", model.config)
    height, width = _two(config.image_size)
    down, across = _two(config.patch_size)
    channels = int(getattr(config, "num_channels", 3))
    settings = _settings(source)
    mean, spread = (np.array(settings.get(name, [0.5] * channels)) for name in ("image_mean", "image_std"))

    def open_image(path: Path) -> Any:
        try:
            return image_module.open(path).convert("RGB" if channels == 3 else "L").resize((width, height))
        except OSError as error:
            raise ValueError(f"{path} cannot be read; an image was expected.") from error

    def read_images(which: Sequence[int]) -> dict[str, Any]:
        pixels = []
        for i in which:
            colours = np.asarray(open_image(paths[i]), dtype=np.float64).reshape(height, width, channels) / 255.0
            pixels.append(((colours - mean) / spread).transpose(2, 0, 1))
        return {"pixel_values": torch.from_numpy(np.stack(pixels)).float()}

    items = []
    for path in paths:
        small, file = open_image(path), io.BytesIO()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        small.save(file, format="PNG")
        items.append(Medium(path.name, picture=file.getvalue(), digest=_digest(path)))
    return Media("images", tuple(items), (height // down, width // across), read_images)


def _sounds(paths: Sequence[Path], model: Any, source: str) -> Media:
    """Bring sounds to 16,000 samples per second and equal length; compute features if the model reads features."""
    longest = max(len(_wave(path)) for path in paths)
    has_features = getattr(model, "main_input_name", "") == "input_features"
    extractor = _extractor(source, model) if has_features else None
    seconds = float(getattr(extractor, "n_samples", longest)) / SAMPLE_RATE

    def read_sounds(which: Sequence[int]) -> dict[str, Any]:
        waves = [_wave(paths[i]) for i in which]
        return _padded(waves, longest) if extractor is None else _features(waves, extractor, model)

    whole = round(seconds * SAMPLE_RATE)
    items = tuple(
        Medium(path.name, envelope=_envelope(_wave(path), whole), seconds=seconds, digest=_digest(path))
        for path in paths
    )
    return Media("audio", items, None, read_sounds)


def _features(waves: Sequence[np.ndarray], extractor: Any, model: Any) -> dict[str, Any]:
    """Make features, and the token that starts a decoder."""
    features = extractor(waves, sampling_rate=SAMPLE_RATE, return_tensors="pt")["input_features"].float()
    if not getattr(model.config, "is_encoder_decoder", False):
        return {"input_features": features}
    start = torch.full((len(waves), 1), model.config.decoder_start_token_id, dtype=torch.long)
    return {"input_features": features, "decoder_input_ids": start}


def _padded(waves: Sequence[np.ndarray], longest: int) -> dict[str, Any]:
    """Bring waves to mean zero, variance one and equal length."""
    padded = np.zeros((len(waves), longest))
    visible = np.zeros((len(waves), longest), dtype=np.int64)
    for row, wave in enumerate(waves):
        padded[row, : len(wave)] = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
        visible[row, : len(wave)] = 1
    return {"input_values": torch.from_numpy(padded).float(), "attention_mask": torch.from_numpy(visible)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _wave(path: Path) -> np.ndarray:
    """Read a WAV file as one channel of 16,000 samples per second."""
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    try:
        rate, samples = wavfile.read(path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read; a WAV file was expected.") from error
    if np.issubdtype(samples.dtype, np.integer):
        samples = samples / float(np.iinfo(samples.dtype).max)
    mono = samples.mean(axis=1) if samples.ndim == 2 else samples
    common = gcd(rate, SAMPLE_RATE)
    return np.asarray(resample_poly(mono.astype(np.float64), SAMPLE_RATE // common, rate // common))


def _envelope(wave: np.ndarray, whole: int) -> np.ndarray:
    """Find the largest amplitude in each of POINTS equal intervals, relative to the largest of all."""
    full = np.zeros(max(whole, len(wave)))
    full[: len(wave)] = np.abs(wave)
    peaks = np.array([part.max(initial=0.0) for part in np.array_split(full, POINTS)])
    return peaks / max(peaks.max(), np.finfo(float).tiny)


def _two(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, (list, tuple)) else (int(size), int(size))


def _settings(source: str) -> dict[str, Any]:
    """Read the preprocessing settings in the model's folder; empty if there are none."""
    path = Path(source).expanduser() / "preprocessor_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _extractor(source: str, model: Any) -> Any:
    """Load the model's feature extractor from its folder, or make one from its configuration."""
    from transformers import AutoFeatureExtractor, WhisperFeatureExtractor

    try:
        return AutoFeatureExtractor.from_pretrained(source)
    except (OSError, ValueError):
        frames = 2 * int(model.config.max_source_positions)
        return WhisperFeatureExtractor(feature_size=model.config.num_mel_bins, chunk_length=max(1, frames // 100))


def _pillow() -> Any:
    with extra_for("attsvm inspect --images"):
        from PIL import Image
    return Image
