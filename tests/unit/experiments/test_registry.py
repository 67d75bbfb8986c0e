"""Experiments by name: what is suggested for a wrong one, and from which modules a right one is made."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from attsvm_paper import registry
from tiny_experiment import EXPERIMENT


def test_the_published_figures_come_first() -> None:
    assert registry.names() == (*registry.FIGURES, *registry.BEYOND)
    assert set(registry.FIGURES).isdisjoint(registry.BEYOND)


@pytest.mark.parametrize(("name", "section"), [("multi-token", "figures"), ("grokking", "beyond")])
def test_an_experiment_has_the_parts_of_its_modules_and_the_words_of_its_listing(name: str, section: str) -> None:
    listing = (registry.FIGURES | registry.BEYOND)[name]
    assert isinstance(listing, registry.Listing)
    experiment = registry.get(name)
    for field in ("name", "title", "source", "claim", "minutes", "instance", "batch"):
        assert getattr(experiment, field) == getattr(listing, field)
    modules = [import_module(module) for module in listing.modules]
    assert len(modules) > 1
    assert all(module.__name__.startswith(f"attsvm_paper.{section}.") for module in modules)
    for field in ("config", "sweep", "trials", "figure", "verdicts", "joint", "readings"):
        part = field.title() if field == "config" else field
        first = [vars(module)[part] for module in modules if part in vars(module)]
        assert getattr(experiment, field) is (first[0] if first else None)


def test_an_experiment_is_made_once() -> None:
    assert registry.get("svm-rank") is registry.get("svm-rank")


def test_a_ready_experiment_is_returned_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for section in (registry.FIGURES, registry.BEYOND):
        monkeypatch.setitem(section, "tiny", EXPERIMENT)
        assert registry.get("tiny") is EXPERIMENT
        monkeypatch.undo()


def test_a_wrong_name_brings_at_most_three_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIGURES", {f"tiny-{k}": replace(EXPERIMENT, name=f"tiny-{k}") for k in range(3)})
    monkeypatch.setattr(registry, "BEYOND", {"tiny-3": replace(EXPERIMENT, name="tiny-3")})
    with pytest.raises(ValueError, match=r"^'tiny-9' is no experiment; tiny-\d or tiny-\d or tiny-\d was expected\.$"):
        registry.get("tiny-9")
    monkeypatch.setattr(registry, "BEYOND", {"another": EXPERIMENT})
    # Of ten letters two are equal in the first, and six in the second.
    far = r"^'i9999' is no experiment; a name of `attsvm list`, or a file such as \./own\.py, was expected\.$"
    with pytest.raises(ValueError, match=far):
        registry.get("i9999")
    with pytest.raises(ValueError, match=r"^'anotxx' is no experiment; another was expected\.$"):
        registry.get("anotxx")
