"""What every test shares: hypothesis profiles, listed reasons of skips, and processor seconds held against the mark."""

from __future__ import annotations

import gc
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
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.split("## Skipped tests")[1].splitlines()
    return {row.split("|")[1].strip() for row in rows if row.startswith("|")}


SLOW_SECONDS = 2.0  # processor seconds of a test and its processes above which it is marked slow
_SECONDS, _START = pytest.StashKey[list[tuple[float, str]]](), pytest.StashKey[float]()


def _processor_seconds() -> float:
    """Return the processor seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SECONDS] = []


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Look for no garbage in what is imported and collected: it stays, and each search in all of it takes a second."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_START] = _processor_seconds()


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> None:
    if report.when == "call":
        seconds = dict(report.user_properties)["processor seconds"]
        if seconds > SLOW_SECONDS and "slow" not in report.keywords:
            config.stash[_SECONDS].append((seconds, report.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_SECONDS]:
        terminalreporter.section(f"processor seconds above {SLOW_SECONDS:g} without the mark slow")
        for seconds, name in sorted(config.stash[_SECONDS], reverse=True):
            terminalreporter.line(f"{seconds:6.1f} {name}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    if call.when == "call":
        item.user_properties.append(("processor seconds", _processor_seconds() - item.stash[_START]))
    outcome = yield
    report = outcome.get_result()
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in _listed_reasons():
            report.outcome = "failed"
            report.longrepr = f"skipped with a reason that CONTRIBUTING.md does not list: {reason}"
