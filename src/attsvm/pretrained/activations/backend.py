"""transformers, imported when it is first needed; one sentence where the extra is not installed."""

from __future__ import annotations

from typing import Any

from attsvm.platform.extras import extra_for


def transformers() -> Any:
    """Return the transformers package.

    Raises
    ------
    MissingExtra
        If it is not installed.
    """
    with extra_for("attsvm.pretrained", "pretrained"):
        import transformers as library

        return library
