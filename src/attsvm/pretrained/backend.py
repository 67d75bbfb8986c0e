"""transformers, imported when it is first needed; one sentence where the extra is not installed."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtra(ImportError):
    """The optional dependency of a feature is not installed; the message is one sentence."""


def transformers() -> Any:
    """Return the transformers package.

    Raises
    ------
    MissingExtra
        If it is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtra(
            "attsvm.pretrained needs transformers, which the extra brings: pip install 'attsvm[pretrained]'."
        ) from error
