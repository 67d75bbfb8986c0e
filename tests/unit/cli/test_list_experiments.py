"""The list of experiments: columns, claims wrapped to the terminal, and headings of what there is."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from attsvm_paper import registry
from attsvm_paper.cli.list import list_experiments
from tiny_experiment import EXPERIMENT

CLAIM = "x" * 250


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIGURES", {"tiny": replace(EXPERIMENT, claim=CLAIM)})
    monkeypatch.setattr(registry, "BEYOND", {})


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("61", 61), ("60", 60), ("40", 60), (None, 100)])
def test_claims_are_wrapped_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None, width: int
) -> None:
    """A word without a break is cut; claims are indented by four, and sixty columns are the least."""

    def no_terminal(descriptor: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", no_terminal)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert list_experiments() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "Published figures  (minutes quick / full, on two cores)",
        "  tiny                  Fig. 0                      0.1 / 0.2 min",
    ]
    claim = lines[2:]
    assert "".join(line.removeprefix("    ") for line in claim) == CLAIM
    assert {len(line) for line in claim[:-1]} == {width}


def test_both_parts_have_headings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(EXPERIMENT, name="other", source="", minutes={"quick": 12.34, "full": 3})
    monkeypatch.setattr(registry, "BEYOND", {"other": other})
    list_experiments()
    text = capsys.readouterr().out
    assert text.index("Published figures  (minutes") < text.index("  tiny ") < text.index("Beyond the paper  (minutes")
    assert text.index("Beyond the paper") < text.index(f"  other{' ' * 45}12 / 3 min\n    Coordinates of a Gaussian")
