"""NumPy in, NumPy out; torch in, torch out.

The core computes on float64 NumPy arrays and does not import torch: a tensor is recognised by its module name.
:class:`Kind` records the array type of the caller's input and converts results back to it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOATS = (np.float64, np.float32, np.float16)
# Bytes of the narrowest floats in results: half precision overflows at 65504, or has only three digits.
NARROWEST = 4


def is_tensor(value: object) -> bool:
    """Tell whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@dataclass(frozen=True)
class Kind:
    """The array type in which results are returned.

    Half-precision input gives single-precision results. A result that overflows single precision stays double.

    Parameters
    ----------
    dtype : object
        NumPy or torch floating dtype.
    device : object, optional
        A torch device; None stands for NumPy.
    """

    dtype: Any = field(default_factory=lambda: np.dtype(np.float64))
    device: Any = None

    @classmethod
    def of(cls, *values: object) -> Kind:
        """Find the kind of the first floating array among ``values`` (for a list of arrays, its first array)."""
        for value in values:
            probe = value[0] if isinstance(value, (list, tuple)) and len(value) else value
            if is_tensor(probe):
                tensor: Any = probe
                torch = sys.modules["torch"]
                dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
                return cls(torch.float32 if dtype.itemsize < NARROWEST else dtype, tensor.device)
            if isinstance(probe, np.ndarray) and probe.dtype in FLOATS:
                return cls(np.dtype(np.float32) if np.finfo(probe.dtype).bits < 8 * NARROWEST else probe.dtype)
        return cls()

    def restore(self, array: np.ndarray) -> Any:
        """Convert a NumPy array to this kind; booleans and integers keep their dtype."""
        floating = array.dtype.kind == "f"
        if self.device is None:
            return array.astype(self.dtype if floating and not self._overflows(array) else array.dtype)
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(np.array(array))
        dtype = self.dtype if floating and not self._overflows(array) else tensor.dtype
        return tensor.to(device=self.device, dtype=dtype)

    def _overflows(self, array: np.ndarray) -> bool:
        """Whether a finite number would become infinite."""
        if self.dtype.itemsize >= array.itemsize:
            return False
        finite = np.abs(array[np.isfinite(array)])
        return bool(finite.max(initial=0.0) > np.finfo(np.float32).max)


def to_numpy(name: str, value: object) -> np.ndarray:
    """Convert array-like input, or a tensor on any device, to a NumPy array, without a copy if possible.

    Raises ValueError if ``value`` is not a regular numeric or boolean array, or has masked entries; the message names
    the argument.
    """
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked entries; an array without them was expected, and mask= for hidden tokens.")
    if is_tensor(value):
        tensor: Any = value
        tensor = tensor.detach().cpu()
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
            tensor = tensor.float()  # NumPy has no bfloat16
        return tensor.numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{name} has type {type(value).__name__}; a rectangular array of numbers was expected."
        ) from error
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}; real numbers were expected.")
    return array
