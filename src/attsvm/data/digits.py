r"""Scikit-learn's digits as token sequences: 2x2-pixel patches with their positions, 16 tokens per image.

Patch t of image i, with pixels :math:`p_{it} \in [0,1]^4` and position t, becomes a token in one of two ways:

* ``place``: the patch at its position on an otherwise blank 8x8 canvas, and a one-hot position, :math:`x_{it} = [\,e_t
  \otimes p_{it},\; e_t\,] \in R^{80}`. The mean token is then the whole image (divided by 16) and a constant. A linear
  head on the mean token is therefore a linear classifier of the image, and its score of a token is the contribution of
  that patch. The query tells attention what the image looks like.
* ``append``: pixels and one-hot position concatenated, :math:`x_{it} = [\,p_{it},\; e_t\,] \in R^{20}`. A linear head
  cannot tell where a stroke is, only that there is one, and the mean token has only four average grey values. This is a
  deliberately poor setting.

Blank patches differ only in their position. The position in the token makes them distinct points, so no selected token
has a duplicate, which would make its selection infeasible. Blank patches tie in score, since a linear head on mean
tokens gives all positions the same weight.

Mean tokens of digits are all close to the average digit. They are therefore centred before use: the mean of the
training images is subtracted and a constant coordinate added, which loses nothing. Centring reduces the norm of the
attention SVM of the best patches, and training converges sooner.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.data.images import Patches
from attsvm.data.token_data import TokenData

Positions = Literal["place", "append"]
Query = Literal["mean", "patch", "prompt"]

IMAGE_SIDE, PATCH = 8, 2
GRID = IMAGE_SIDE // PATCH
TOKENS = GRID * GRID


def patch_pixels(images: np.ndarray) -> np.ndarray:
    """Split (n, 8, 8) images into patches, row by row: shape (n, 16, 4)."""
    cut = images.reshape(-1, GRID, PATCH, GRID, PATCH).transpose(0, 1, 3, 2, 4)
    return cut.reshape(len(images), TOKENS, PATCH * PATCH)


def patch_tokens(images: np.ndarray, positions: Positions = "place") -> np.ndarray:
    """Convert (n, 8, 8) images with grey values in [0, 1] to tokens (n, 16, 80) or (n, 16, 20)."""
    pixels = patch_pixels(images)
    where = np.broadcast_to(np.eye(TOKENS), (len(images), TOKENS, TOKENS))
    if positions == "place":
        pixels = np.einsum("ntp,ts->ntsp", pixels, np.eye(TOKENS)).reshape(len(images), TOKENS, -1)
    return np.concatenate([pixels, where], axis=2)


def _read_classes(classes: str) -> tuple[list[int], list[int]]:
    """Return the digits labelled +1 and the digits labelled -1."""
    if classes == "odd-even":
        return [1, 3, 5, 7, 9], [0, 2, 4, 6, 8]
    first, dash, second = classes.partition("-")
    digits = [str(k) for k in range(10)]
    if not dash or first not in digits or second not in digits or first == second:
        raise ValueError(f"classes is {classes!r}; two different digits such as '3-8', or 'odd-even', were expected.")
    return [int(first)], [int(second)]


def _queries(tokens: np.ndarray, query: Query, patch: int) -> tuple[np.ndarray, str]:
    if query == "mean":
        return tokens.mean(axis=1), "The query of an image is its mean token."
    if query == "patch":
        if not 0 <= patch < TOKENS:
            raise ValueError(f"patch is {patch}; a number from 0 to {TOKENS - 1} was expected.")
        row, column = divmod(patch, GRID)
        return tokens[:, patch], f"The query of an image is its own patch in row {row + 1}, column {column + 1}."
    return np.ones((len(tokens), 1)), "Every image has the same query, the number 1: W is a prompt vector."


def digits(classes: str = "3-8", *, query: Query = "mean", patch: int = 5, positions: Positions = "place") -> Dataset:
    """Build the data set.

    Parameters
    ----------
    classes : str
        Two digits joined by a dash, the first labelled +1, or "odd-even".
    query : {"mean", "patch", "prompt"}
        The image's mean token, one of its patches (self-attention), or the same constant for all images.
    patch : int
        Index of the query patch if `query` is "patch"; 0 to 15, row by row. The default is in the second row and
        column.
    positions : {"place", "append"}
        How tokens hold their position; see the module's description.

    Returns
    -------
    Dataset
        About 360 images for two digits, 1797 for "odd-even", in the order of scikit-learn's file.

    Raises
    ------
    ValueError
        If an option has another value.
    """
    for name, value, choices in (("query", query, get_args(Query)), ("positions", positions, get_args(Positions))):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, choices))} was expected.")
    positive, negative = _read_classes(classes)
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    keep = np.isin(digit, positive + negative)
    images = pixels[keep].reshape(-1, IMAGE_SIDE, IMAGE_SIDE) / 16.0
    labels = np.where(np.isin(digit[keep], positive), 1.0, -1.0)
    tokens = patch_tokens(images, positions)
    queries, query_text = _queries(tokens, query, patch)
    description = (
        "Tokens are 2x2-pixel patches (grey values 0 to 1), each in its place on a blank 8x8 canvas, "
        "with a one-hot position."
        if positions == "place"
        else "Tokens are the four grey values (0 to 1) of a 2x2-pixel patch, with a one-hot position appended."
    )
    corners = [(PATCH * (t // GRID), PATCH * (t % GRID), PATCH, PATCH) for t in range(TOKENS)]
    names = ("odd", "even") if classes == "odd-even" else (str(positive[0]), str(negative[0]))
    return Dataset(
        name=f"digits {names[0]} against {names[1]}" if classes != "odd-even" else "digits, odd against even",
        tokens=TokenData(tokens, queries, labels),
        classes=names,
        notes=(description, query_text),
        patches=Patches(images, np.array(corners), ink=True),
        centre=query == "mean",
        default_train=100,  # the number in the documentation
    )


def bags_of_digits(count: int = 400, size: int = 9, *, classes: str = "3-8", seed: int = 0) -> Dataset:
    """Draw sequences in which one digit decides the label: it belongs to a class, and the others to neither class.

    Parameters
    ----------
    count, size : int
        Number of sequences, half of them in each class, and number of digits per sequence.
    classes : str
        Two digits joined by a dash, the first labelled +1.

    Returns
    -------
    Dataset
        The 64 grey values of a digit are a token. All sequences have the same query, the number 1.

    Raises
    ------
    ValueError
        If `classes` are not two digits.
    """
    positive, negative = _read_classes(classes)
    if len(positive) > 1:
        raise ValueError(f"classes is {classes!r}; two different digits such as '3-8' were expected.")
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    labels = np.where(np.arange(count) < count // 2, 1.0, -1.0)
    others = np.flatnonzero(~np.isin(digit, positive + negative))
    images = random.choice(others, size=(count, size))
    deciding = random.integers(size, size=count)
    for row, label in enumerate(labels):
        images[row, deciding[row]] = random.choice(np.flatnonzero(digit == (positive if label > 0 else negative)[0]))
    order = random.permutation(count)
    tokens, labels = pixels[images[order]] / 16.0, labels[order]
    strips = tokens.reshape(count, size, IMAGE_SIDE, IMAGE_SIDE).transpose(0, 2, 1, 3).reshape(count, IMAGE_SIDE, -1)
    boxes = np.array([(0, t * IMAGE_SIDE, IMAGE_SIDE, IMAGE_SIDE) for t in range(size)])
    names = str(positive[0]), str(negative[0])
    one_of = " or ".join(f"{'an' if name == '8' else 'a'} {name}" for name in names)
    return Dataset(
        name=f"sequences of {size} digits with {one_of}",
        tokens=TokenData(tokens, np.ones((count, 1)), labels),
        classes=names,
        notes=(
            f"Each sequence has {size} of scikit-learn's digits, one of which decides its label. Tokens are digits, "
            "64 grey values (0 to 1) each.",
            "Every sequence has the same query, the number 1: W is a prompt vector.",
        ),
        patches=Patches(strips, boxes, ink=True),
        bags=tuple(map(str, range(count))),
    )
