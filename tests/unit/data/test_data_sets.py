"""Digits as tokens, and .npz files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attsvm.data.digits import digits, patch_tokens
from attsvm.data.npz import npy_header, read_arrays, read_dataset, write_arrays


def test_placed_patches_add_up_to_the_image() -> None:
    pixels, digit = load_digits(return_X_y=True)
    data = digits("3-8")
    keep = np.isin(digit, (3, 8))
    assert data.tokens.tokens.shape == (keep.sum(), 16, 80)
    np.testing.assert_array_equal(data.tokens.labels, np.where(digit[keep] == 3, 1, -1))
    # Placed patches are ordered patch by patch; undo the cut to get rows of pixels back.
    canvas = data.tokens.tokens[:, :, :64].sum(axis=1).reshape(-1, 4, 4, 2, 2).transpose(0, 1, 3, 2, 4)
    np.testing.assert_allclose(canvas.reshape(-1, 64), pixels[keep] / 16)
    assert data.patches is not None
    np.testing.assert_allclose(data.patches.images.reshape(-1, 64), pixels[keep] / 16)


def test_the_box_of_a_patch_is_where_its_pixels_are() -> None:
    data = digits("0-1", positions="append")
    assert data.tokens.tokens.shape[1:] == (16, 20)
    assert data.patches is not None
    for t, (row, column, height, width) in enumerate(data.patches.boxes):
        cut = data.patches.images[:, row : row + height, column : column + width].reshape(-1, 4)
        np.testing.assert_array_equal(data.tokens.tokens[:, t, :4], cut)
        np.testing.assert_array_equal(data.tokens.tokens[:, t, 4:].argmax(axis=1), t)


def test_blank_patches_stay_distinct() -> None:
    tokens = patch_tokens(np.zeros((1, 8, 8)))[0]
    assert len(np.unique(tokens, axis=0)) == 16


@pytest.mark.parametrize("positions", ["place", "append"])
def test_queries(positions: str) -> None:
    mean = digits("3-8", positions=positions)  # type: ignore[arg-type]
    np.testing.assert_allclose(mean.tokens.queries, mean.tokens.tokens.mean(axis=1))
    own = digits("3-8", query="patch", patch=6, positions=positions)  # type: ignore[arg-type]
    np.testing.assert_array_equal(own.tokens.queries, own.tokens.tokens[:, 6])
    assert own.notes[1] == "The query of an image is its own patch in row 2, column 3."
    prompt = digits("3-8", query="prompt", positions=positions)  # type: ignore[arg-type]
    assert prompt.tokens.queries.shape == (mean.tokens.n, 1)
    assert mean.centre
    assert not own.centre
    assert not prompt.centre
    assert ("each in its place on a blank 8x8 canvas" in own.notes[0]) == (positions == "place")


def test_odd_against_even_takes_every_digit() -> None:
    data = digits("odd-even")
    assert data.tokens.n == 1797
    assert data.classes == ("odd", "even")
    assert (data.tokens.labels == np.where(load_digits(return_X_y=True)[1] % 2, 1, -1)).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"classes": "3"}, "classes"),
        ({"classes": "3-3"}, "classes"),
        ({"classes": "3-x"}, "classes"),
        ({"query": "none"}, "query"),
        ({"query": "patch", "patch": 16}, "patch"),
        ({"positions": "sine"}, "positions"),
    ],
)
def test_unknown_options_are_named(options: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=f"^{word} is .* expected\\.$"):
        digits(**options)  # type: ignore[arg-type]


def test_split_keeps_rows_together_and_holds_out_the_rest() -> None:
    data = digits("3-8")
    train, test = data.split(100, np.random.default_rng(0))
    assert test is not None
    assert (train.tokens.n, test.tokens.n) == (100, data.tokens.n - 100)
    assert train.patches is not None
    np.testing.assert_array_equal(patch_tokens(train.patches.images), train.tokens.tokens)
    every = np.concatenate([train.tokens.tokens, test.tokens.tokens])
    assert sorted(map(bytes, every)) == sorted(map(bytes, data.tokens.tokens))
    assert data.split(data.tokens.n, np.random.default_rng(0))[1] is None
    assert data.split(1, np.random.default_rng(0))[0].tokens.n == 1
    for number in (0, data.tokens.n + 1):
        with pytest.raises(ValueError, match=f"train is {number};"):
            data.split(number, np.random.default_rng(0))


def test_centred_queries_end_in_a_one_and_allow_the_same_logits() -> None:
    data = digits("3-8")
    random, queries = np.random.default_rng(0), data.tokens.queries
    mean, spread, U = queries.mean(axis=0), 0.3, random.standard_normal((3, queries.shape[1]))
    centred = data.centred(mean, spread).tokens.queries
    np.testing.assert_allclose(centred @ np.column_stack([spread * U, U @ mean]).T, queries @ U.T)
    np.testing.assert_array_equal(centred[:, -1], 1.0)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "tokens": rng.standard_normal((4, 3, 2)),
        "queries": rng.standard_normal((4, 5)),
        "labels": np.array([1, -1, 1, -1]),
    }


def test_a_data_set_survives_the_file(tmp_path: Path) -> None:
    inputs = arrays() | {"mask": np.array([[1, 1, 0]] * 4), "head": np.array([1, 2])}
    write_arrays(tmp_path / "a.npz", inputs)
    data = read_dataset(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.tokens.tokens, inputs["tokens"])
    np.testing.assert_array_equal(data.mask, inputs["mask"] == 1)
    assert data.head is not None
    np.testing.assert_array_equal(data.head, inputs["head"])
    assert data.name == "a.npz"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": None}, "lacks tokens"),
        ({"tokens": np.zeros((4, 3))}, "tokens has shape"),
        ({"tokens": np.full((4, 3, 2), np.nan)}, r"tokens in .* holds nan at \[0, 0, 0\], the first of 24; finite"),
        ({"queries": np.array([[0.0], [1.0], [-np.inf], [2.0]])}, r"queries in .* holds -inf at \[2, 0\]; finite"),
        ({"tokens": np.zeros((0, 3, 2))}, "tokens has shape"),
        ({"tokens": np.array([["a"]])}, "tokens in .* has dtype"),
        ({"tokens": np.array([None, {}], dtype=object)}, "tokens in .* cannot be read"),
        ({"queries": np.zeros((3, 5))}, "queries has shape"),
        ({"labels": np.array([1, 0, 1, 0])}, "labels in .* are 0 and 1"),
        ({"labels": np.ones(3)}, "labels has shape"),
        ({"mask": np.zeros((4, 3), bool)}, "mask of shape"),
        ({"mask": np.full((4, 3), 7)}, "mask has dtype"),
        ({"head": np.zeros(2)}, "head has shape"),
        ({"head": np.ones(3)}, "head has shape"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, change: dict[str, np.ndarray | None], sentence: str) -> None:
    inputs = {name: value for name, value in (arrays() | change).items() if value is not None}
    np.savez(tmp_path / "a.npz", **inputs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence) as error:
        read_dataset(tmp_path / "a.npz")
    assert "\n" not in str(error.value)


def test_an_array_of_more_than_a_quarter_of_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "a.npz", arrays())
    # Tokens have 192 bytes: a quarter of 24 pages of 32 bytes is 192, of 27 pages of 28 bytes 189.
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 24, "SC_PAGE_SIZE": 32}.__getitem__, raising=False)
    assert read_dataset(tmp_path / "a.npz").tokens.n == 4
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 27, "SC_PAGE_SIZE": 28}.__getitem__)
    with pytest.raises(ValueError, match=r"^tokens in .* has shape \(4, 3, 2\), .* a quarter of this machine's memory"):
        read_dataset(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(3, -2), (-2, 3)])
def test_a_header_with_a_negative_size_is_refused(shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    stream.seek(0)
    with pytest.raises(
        ValueError, match=r"^tokens in a\.npz has shape \(.*-2.*\); sizes of at least 0 were expected\.$"
    ):
        npy_header(stream, "tokens", "a.npz")


def damage(path: Path, kind: str) -> None:
    np.savez(path, **arrays())  # type: ignore[arg-type]
    whole = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("tokens, queries\n")
    elif kind == "npy":
        np.save(path.with_suffix(".npy"), np.ones(3))
        path.with_suffix(".npy").rename(path)
    elif kind == "flipped":
        where = whole.index(b"tokens.npy") + 200
        path.write_bytes(whole[:where] + bytes([whole[where] ^ 255]) + whole[where + 1 :])
    elif kind == "half a member":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tokens.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran")
            archive.writestr("queries.npy", b"")
            archive.writestr("labels.npy", b"")


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "npy", "flipped", "half a member"])
def test_damaged_files_get_one_sentence(tmp_path: Path, kind: str) -> None:
    damage(tmp_path / "a.npz", kind)
    with pytest.raises(ValueError, match=r"a\.npz") as error:
        read_dataset(tmp_path / "a.npz")
    assert "\n" not in str(error.value)


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such place\.npz does not exist"):
        read_arrays(tmp_path / "no such place.npz", ("tokens",))
    with pytest.raises(ValueError, match="is not a file"):
        read_arrays(tmp_path, ("tokens",))
