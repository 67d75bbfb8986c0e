"""Numbers and nouns in sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.data.dataset import Dataset

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Nouns:
    """The nouns for a token and a row of the data set."""

    token: str
    tokens: str
    row: str
    rows: str


def nouns(data: Dataset) -> Nouns:
    """Return the nouns: instances of bags, patches of images, tokens of texts, or tokens of sequences."""
    if data.bags is not None:
        return Nouns("instance", "instances", "bag", "bags")
    if data.patches is not None:
        return Nouns("patch", "patches", "image", "images")
    if data.passages is not None and data.passages.prose:
        return Nouns("token", "tokens", "text", "texts")
    return Nouns("token", "tokens", "sequence", "sequences")


def correlation_text(value: float) -> str:
    """Write a correlation with enough digits to show its distance from one: 0.587, 0.99994, 1 − 2×10⁻¹²."""
    missing = 1.0 - value
    if missing < 1e-9:
        return f"1 − {small_text(missing)}" if missing > np.finfo(float).eps else "1"
    digits = 3 if missing > 1e-3 else int(np.ceil(-np.log10(missing)))
    return f"{np.floor(value * 10**digits) / 10**digits:.{digits}f}"


def share_text(value: float | None) -> str:
    """Write a share as a percentage, or a dash."""
    return "–" if value is None else f"{100 * value:.1f} %"


def small_text(value: float) -> str:
    """Write a positive number as 2×10⁻¹⁵; a value below the rounding error of float64 gets words."""
    if np.isinf(value):
        return "∞"
    if value < np.finfo(float).eps:
        return "rounding level"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"
