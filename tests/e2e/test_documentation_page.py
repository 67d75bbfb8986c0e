"""What the documentation's own script does to pages that Sphinx and its gallery write."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# As sphinx-gallery writes a card, with what its style sheet does to the words of the link.
CARD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Gallery</title>
<style>.sphx-glr-thumbcontainer p a span { display: none; }</style>
<script src="accessible.js"></script>
<main><h1>Gallery</h1><article>
<div class="sphx-glr-thumbcontainer" tooltip="W = K Q^\\top adds up to 0 \\ge 1."><img alt="" src="thumb.png">
<p><a class="reference internal" href="plot_one.html"><span class="doc">One idea</span></a></p>
<div class="sphx-glr-thumbnail-title">One idea</div></div>
<img alt="A curve" src="figure.png">
</article></main></html>"""


@pytest.mark.slow
def test_cards_of_the_gallery_have_names_and_figures_open_alone(tmp_path: Path, browser, violations) -> None:
    (tmp_path / "accessible.js").write_bytes((DOCS / "_static" / "accessible.js").read_bytes())
    (tmp_path / "index.html").write_text(CARD, encoding="utf-8")
    assert violations(tmp_path / "index.html", 400, "light") == []
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    links = page.evaluate("[...document.querySelectorAll('a')].map((one) => one.href)")
    assert [link.rpartition("/")[2] for link in links] == ["plot_one.html", "figure.png"]
    assert page.get_by_role("link", name="One idea").count() == 1
    assert page.locator("[tooltip]").get_attribute("tooltip") == "W = K Qᵀ adds up to 0 ≥ 1."
    page.close()
