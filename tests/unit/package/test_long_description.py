"""The links of the description on an index page."""

from __future__ import annotations

import re

import pytest

from index_page import README, ROOT, description

LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)]+)\)")


def test_relative_links_lead_to_files_of_a_checkout() -> None:
    relative = {target for _, _, target in LINK.findall(README) if not target.startswith("https:")}
    assert "docs/pictures/bags.png" in relative
    assert not [target for target in relative if not (ROOT / target.partition("#")[0]).exists()]


def test_without_an_address_nothing_leads_nowhere() -> None:
    text = description()
    assert "address.invalid" not in text
    assert all(target.startswith("https:") for _, _, target in LINK.findall(text))
    for picture, words, target in LINK.findall(README):
        # What a picture shows is told, and where it is.
        assert not picture or f"*Picture `{target}` of the source distribution: {words}.*" in text


def test_with_an_address_every_link_is_absolute() -> None:
    text = description(address="https://example.org/attsvm")
    links = LINK.findall(README)
    expected = [target if target[:6] == "https:" else f"https://example.org/attsvm/{target}" for *_, target in links]
    assert [target for *_, target in LINK.findall(text)] == expected


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
    assert description(markdown) == expected
