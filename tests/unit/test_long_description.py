"""The description on an index page: README after the substitutions of pyproject.toml, which a build plugin makes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)]+)\)")


def _description(readme: str, address: str | None = None) -> str:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    for position, rule in enumerate(hook["fancy-pypi-readme"]["substitutions"]):
        replacement = rule["replacement"]
        if address and position < 2:
            assert "https://address.invalid" in replacement
            replacement = replacement.replace("https://address.invalid", address)
        readme = re.sub(rule["pattern"], replacement, readme)
    return readme


def test_relative_links_lead_to_files_of_a_checkout() -> None:
    relative = {target for _, _, target in LINK.findall(README) if not target.startswith("https:")}
    assert "docs/pictures/digits.png" in relative
    assert not [target for target in relative if not (ROOT / target).exists()]


def test_without_an_address_nothing_leads_nowhere() -> None:
    description = _description(README)
    assert "address.invalid" not in description
    assert all(target.startswith("https:") for _, _, target in LINK.findall(description))
    for picture, words, target in LINK.findall(README):
        # What a picture shows is told, and where it is.
        assert not picture or f"*Picture `{target}` of the source distribution: {words}.*" in description


def test_with_an_address_every_link_is_absolute() -> None:
    description = _description(README, "https://example.org/attsvm")
    links = LINK.findall(README)
    expected = [target if target[:6] == "https:" else f"https://example.org/attsvm/{target}" for *_, target in links]
    assert [target for *_, target in LINK.findall(description)] == expected


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("[docs/a.md](docs/a.md)", "docs/a.md"),
        ("[a page](docs/a.md)", "a page (docs/a.md)"),
        ("[the paper](https://arxiv.org/abs/2308.16898)", "[the paper](https://arxiv.org/abs/2308.16898)"),
        ("[below](#install)", "[below](#install)"),
        ("[a part](docs/a.md#part-1)", "a part (docs/a.md#part-1)"),
        ("`trace.W[-1]`, `solve(x)[0](y)`", "`trace.W[-1]`, `solve(x)[0](y)`"),
    ],
)
def test_each_kind_of_link(markdown: str, expected: str) -> None:
    assert _description(markdown) == expected
