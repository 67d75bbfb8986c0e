"""Images of a data set, and the patch of each token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

# Numbers of channels that are shown as colours; a fourth channel is opacity. Other images are shown as their mean.
COLOUR_CHANNELS = (3, 4)
CHANNELS = (1, *COLOUR_CHANNELS)


@dataclass(frozen=True, eq=False)
class Patches:
    """Images whose patches are the tokens.

    Parameters
    ----------
    images : ndarray, shape (n, height, width) or (n, height, width, 3 or 4)
        Grey values, or colours.
    boxes : ndarray of int, shape (T, 4)
        Row, column, height and width of each token's patch, in pixels. Height zero: the token has no patch.
    low, high : float
        The values of black and white.
    ink : bool
        Whether large grey values are drawn dark, as ink on paper.
    """

    images: np.ndarray
    boxes: np.ndarray
    low: float = 0.0
    high: float = 1.0
    ink: bool = False

    @property
    def aspect(self) -> float:
        """Height of an image divided by its width."""
        return self.images.shape[1] / self.images.shape[2]

    def take(self, rows: np.ndarray) -> Patches:
        """Return the images of the given rows, in that order."""
        return replace(self, images=self.images[rows])

    def shown(self, image: np.ndarray) -> np.ndarray:
        """Scale the values of an image, or of a mean of images, to [0, 1]."""
        return np.clip((image - self.low) / (self.high - self.low), 0.0, 1.0)


def read_patches(images: np.ndarray, boxes: np.ndarray | None, n: int, T: int) -> Patches:
    """Check images and boxes from a file.

    Parameters
    ----------
    images : ndarray, shape (n, height, width), or with channels last, or first when there are 1, 3 or 4
        Black is 0 and white is 255 in eight-bit images, 1 in others. If values lie outside, the smallest is black and
        the largest white.
    boxes : ndarray of int, shape (T, 4), optional
        By default T squares of equal size, row by row.
    n, T : int
        Numbers of rows and tokens.

    Raises
    ------
    ValueError
        If a shape is wrong, a box leaves the image, or T squares cannot fill the image.
    """
    if images.ndim not in (3, 4) or len(images) != n or 0 in images.shape:
        raise ValueError(
            f"images has shape {images.shape}; ({n}, height, width) or ({n}, height, width, channels) was expected."
        )
    flat = _channels_last(images)
    height, width = flat.shape[1:3]
    low, high = (0.0, 255.0) if flat.dtype == np.uint8 else (0.0, 1.0)
    if flat.min() < low or flat.max() > high:
        low, high = float(flat.min()), float(flat.max())
    return Patches(flat, _grid(height, width, T) if boxes is None else _check_boxes(boxes, height, width, T), low, high)


def _channels_last(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        return images
    if images.shape[1] in CHANNELS and images.shape[3] not in CHANNELS:
        images = np.moveaxis(images, 1, 3)
    if images.shape[3] in COLOUR_CHANNELS:
        return images
    return images[..., 0] if images.shape[3] == 1 else images.mean(axis=3)


def _grid(height: int, width: int, T: int) -> np.ndarray:
    """Split the image into T squares of equal size."""
    side = math.isqrt(height * width // T)
    if side == 0 or height % side or width % side or (height // side) * (width // side) != T:
        raise ValueError(
            f"images of {height} x {width} pixels cannot be cut into T = {T} squares of one size; boxes of shape "
            f"({T}, 4), the row, column, height and width of every token's patch, were expected with them."
        )
    columns = width // side
    corners = [(side * (t // columns), side * (t % columns), side, side) for t in range(T)]
    return np.array(corners)


def _check_boxes(boxes: np.ndarray, height: int, width: int, T: int) -> np.ndarray:
    if boxes.shape != (T, 4) or boxes.dtype.kind not in "iu":
        raise ValueError(
            f"boxes has shape {boxes.shape} and dtype {boxes.dtype}; integers of shape ({T}, 4), the row, column, "
            "height and width of every token's patch, were expected."
        )
    boxes = boxes.astype(np.int64)
    outside = (boxes < 0).any(axis=1) | (boxes[:, 0] + boxes[:, 2] > height) | (boxes[:, 1] + boxes[:, 3] > width)
    if outside.any():
        first = int(outside.argmax())
        raise ValueError(
            f"boxes[{first}] is {boxes[first].tolist()}; a patch inside the {height} x {width} pixels was expected."
        )
    return boxes
