"""What every test shares: the hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples on every run; the database of past failures would make two checkouts differ.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=25, database=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
