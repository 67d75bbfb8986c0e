"""What is quoted and read from version 1 of the paper, held against its PDF: ATTSVM_V1_PDF names the file."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attsvm_paper.published.ledger import curve
from attsvm_paper.report.errata import ERRATA

PDF = os.environ.get("ATTSVM_V1_PDF", "")
# Index of page 15, with Fig. 8. Its lower row is drawn by one stream: markers as relative moves with ten decimals,
# vertical grid lines with six. A panel has four lines, at these powers of ten.
PAGE = 14
MOVE = r"1 0 0 1 (-?[\d.]+) -?[\d.]+ cm\s*/{marker} Do"
GRID = r"\n([\d.]+) 78\.104 m\n\1 421\.2 l"
MARKERS = {4: "P0", 6: "P1", 8: "P2", 10: "P3"}
EXPONENTS = -15.0, -12.0, -9.0, -6.0
# A grid line's last decimal, in decades: 0.024 decades per unit, and a line through four of them.
CALIBRATION = 2 * 0.024 * 0.5e-6


@pytest.fixture(scope="module")
def paper() -> Iterator[Any]:
    if not PDF:
        pytest.skip("ATTSVM_V1_PDF does not name the paper's PDF")
    with pytest.importorskip("pymupdf", reason="pymupdf is not installed").open(PDF) as document:
        yield document


def letters(text: str) -> str:
    """Leave out what a PDF does not keep: spaces, hyphens, fraction bars, accents; it has ≠ as a comma."""
    return re.sub(r"[\s\-/\u0304\u00af]", "", unicodedata.normalize("NFKD", text.replace("≠", ",")))


def test_every_quotation_stands_in_the_paper(paper) -> None:
    whole = letters("".join(page.get_text() for page in paper))
    for erratum in ERRATA:
        # A caption may stand between two words of a sentence.
        first, _, last = letters(erratum.quote).rpartition("trials")
        pattern = re.escape(first) + r".{0,1500}?" + re.escape("trials" + last) if first else re.escape(last)
        assert re.search(pattern, whole), erratum.quote


def test_the_scatter_of_figure_8_is_read_as_the_ledger_has_it(paper) -> None:
    streams = [paper.xref_stream(form[0]).decode("latin1") for form in paper[PAGE].get_xobjects()]
    (stream,) = (one for one in streams if "/P2 Do" in one)
    lines = sorted({float(line[1]) for line in re.finditer(GRID, stream)})
    # Each panel also has its left edge, which is no power of ten.
    panels = np.reshape(lines, (4, 5))[:, 1:]
    for (d, marker), grid in zip(MARKERS.items(), panels, strict=True):
        moves = [float(x) for x in re.findall(MOVE.format(marker=marker), stream)]
        ours = np.sort(np.polyval(np.polyfit(grid, EXPONENTS, 1), np.cumsum(moves)))
        printed = curve(f"Fig. 8 lower: d={d}")
        assert printed.scatter is not None
        # The ledger has five decimals.
        np.testing.assert_allclose(ours, np.sort(printed.scatter["x"]), rtol=0, atol=0.5e-5 + CALIBRATION)
        for threshold, share in printed.points.items():
            assert np.abs(ours - threshold).min() > CALIBRATION
            assert (ours < threshold).sum() == round(500 * share.value)
