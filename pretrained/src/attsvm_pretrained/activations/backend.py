"""Import transformers when it is first needed; the error names the extra if it is not installed."""

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
