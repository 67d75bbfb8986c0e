"""What every test shares: the hypothesis profiles, and no skip without an entry on the page of skipped tests."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run; the database of past failures would make two checkouts differ.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=25, database=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# No test, nor what it starts, begins to compile every kernel in the background.
os.environ.setdefault("ATTSVM_COMPILE", "later")


@cache
def _listed_reasons() -> set[str]:
    page = (Path(__file__).parents[1] / "docs" / "skipped-tests.md").read_text(encoding="utf-8")
    return {row.split("|")[1].strip() for row in page.splitlines() if row.startswith("|")}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    report = outcome.get_result()
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in _listed_reasons():
            report.outcome = "failed"
            report.longrepr = f"skipped with a reason that docs/skipped-tests.md does not list: {reason}"
