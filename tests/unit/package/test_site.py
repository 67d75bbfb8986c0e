"""The site's folder: what the check of its links finds, and what it lists for search engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_site import write_sitemap
from check_links import problems

PAGE = (
    '<!doctype html><html lang="en"><title>A page</title><link rel="canonical" href="https://example.org/a/">{}</html>'
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "deep").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE.format('<h1 id="top">A</h1><a href="deep/b.html#below">b</a>'))
    (folder / "deep" / "b.html").write_text(
        PAGE.format(
            '<p id="below"><a href="../index.html#top">a</a><a href="#below">here</a><a href="https://arxiv.org">c</a>'
            '<a href="../index.html#state=1">a state</a><img alt="" src="data:,">'
            '<source srcset="data:image/svg+xml;base64,PHN2Zz4=">'
        )
    )
    (folder / "style.css").write_text('@font-face { src: url("deep/b.html"); }')
    return folder


def test_a_whole_folder_has_no_problems(site: Path) -> None:
    assert problems(site) == []


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ('<a href="c.html">c</a>', "has 'c.html', which is no file"),
        ('<a href="deep">c</a>', "has 'deep', which is no file"),  # from disk a folder is a listing
        ('<a href="deep/b.html#above">c</a>', "has 'deep/b.html#above', an anchor that is not there"),
        ('<a href="#above">c</a>', "has '#above', an anchor that is not there"),
        ('<a href="/index.html">c</a>', "has '/index.html', which is not relative"),
        ('<a href="//example.org/">c</a>', "has '//example.org/', which is not relative"),
        ('<a href="file:///tmp/site/index.html">c</a>', "has 'file:///tmp/site/index.html', which is not relative"),
        ('<a href="../outside.html">c</a>', "has '../outside.html', which leaves the folder"),
        ('<img alt="" src="picture.png">', "has 'picture.png', which is no file"),
        ('<img alt="" srcset="style.css 1x, large.png 2x">', "has 'large.png', which is no file"),
        ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js from the web"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "loads https://example.org/a.css from the web"),
    ],
)
def test_each_kind_of_broken_link(site: Path, element: str, reason: str) -> None:
    (site.parent / "outside.html").write_text(PAGE.format(""))
    (site / "index.html").write_text(PAGE.format('<h1 id="top">A</h1>' + element))
    assert problems(site) == [f"index.html {reason}"]


def test_a_style_sheet_is_read_too(site: Path) -> None:
    (site / "style.css").write_text("p { background: url(picture.png); }")
    assert problems(site) == ["style.css has 'picture.png', which is no file"]


def test_the_sitemap_lists_every_page(site: Path) -> None:
    write_sitemap(site, "https://example.org/attsvm")
    content = (site / "sitemap.xml").read_text(encoding="utf-8")
    assert content.count("<loc>") == 2
    assert "<loc>https://example.org/attsvm/deep/b.html</loc>" in content
