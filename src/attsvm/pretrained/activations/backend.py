"""transformers, imported when it is first needed; one sentence where the extra is not installed."""

from __future__ import annotations

import importlib
from typing import Any

from attsvm.core.extras import missing_extra


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
    except ModuleNotFoundError as error:
        sentence = missing_extra("attsvm.pretrained", error)
        if sentence is None:
            raise
        raise MissingExtra(sentence) from error
