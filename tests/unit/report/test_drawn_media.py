"""Images and sounds on the pages of an inspection, read back from their drawings."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

from attsvm_pretrained.heads.media import Media, Medium
from attsvm_pretrained.inspection.finding import Example
from attsvm_pretrained.report.media import SIDE, SOUND_HEIGHT, TICKS, draw

PEAKS, SECONDS = (1.0, 0.5, 0.0, 0.25), 3.0


def _drawn(item: Medium, sides: tuple[int, int] | None, attention: tuple[float, ...], query: int | None) -> Element:
    """The figure of one query; its tokens are as many as its attention has."""
    media = Media("audio" if sides is None else "images", (Medium("another"), item), sides, lambda which: {})
    parts = media.parts(len(attention))
    assert parts is not None
    return fromstring(str(draw(media, parts, Example(parts.labels, attention, query, sequence=1))))


def _sound() -> Element:
    item = Medium("bell.wav", envelope=np.array(PEAKS), seconds=SECONDS)
    return _drawn(item, None, (0.2, 0.0, 0.8), query=0)


def _sizes(one: Element, *names: str) -> list[float]:
    return [float(one.attrib[name]) for name in names]


def _view(figure: Element) -> list[float]:
    svg = figure.find("svg")
    assert svg is not None
    return [float(number) for number in svg.attrib["viewBox"].split()]


@pytest.mark.parametrize(("sides", "size"), [((2, 3), (SIDE, SIDE * 2 / 3)), ((3, 2), (SIDE * 2 / 3, SIDE))])
def test_a_patch_is_bluer_the_more_attention_it_has(sides: tuple[int, int], size: tuple[float, float]) -> None:
    """The strongest of all tokens, here a patch, has the full shade of 0.8; the query alone has a frame."""
    shares = (0.1, 0.3, 0.0, 0.06, 0.4, 0.04, 0.1)
    figure = _drawn(Medium("cat & dog.png", picture=b""), sides, shares, query=3)
    *patches, frame = figure.iter("rect")
    rows, columns = sides
    across, down = size[0] / columns, size[1] / rows
    expected = [
        [(k % columns) * across, (k // columns) * down, across, down, 0.8 * share / 0.4]
        for k, share in enumerate(shares[1:])
        if share > 0
    ]
    found = [_sizes(one, "x", "y", "width", "height", "fill-opacity") for one in patches]
    np.testing.assert_allclose(found, expected, atol=0.006)
    assert _sizes(frame, "x", "y") == pytest.approx([(2 % columns) * across, (2 // columns) * down], abs=0.006)
    assert frame.attrib["fill"] == "none"
    assert _view(figure) == [-2.0, -2.0, size[0] + 4.0, size[1] + 4.0]
    (image,) = figure.iter("image")
    assert image.attrib["href"] == "../media/0001.png"
    assert _sizes(image, "width", "height") == list(size)
    assert figure.findtext("figcaption") == "cat & dog.png, [CLS] 10 %, strongest 40 %"


def test_attention_that_rounds_to_nothing_is_called_nothing() -> None:
    figure = _drawn(Medium("one.png"), (1, 2), (0.0, 0.0), query=None)
    assert figure.findtext("figcaption") == "one.png, strongest 0 %"
    assert not list(figure.iter("rect"))


def test_a_sound_is_as_high_as_its_peaks_on_both_sides_of_the_middle() -> None:
    figure = _sound()
    (path,) = figure.iter("path")
    points = [[float(number) for number in point.split()] for point in path.attrib["d"][1:-2].split(" L")]
    middle = SOUND_HEIGHT / 2
    above = [[k * SIDE / len(PEAKS), middle - middle * peak] for k, peak in enumerate(PEAKS)]
    under = [[k * SIDE / len(PEAKS), middle + middle * peak] for k, peak in enumerate(PEAKS)]
    assert points == above + under[::-1]
    first, last, frame = (_sizes(one, "x", "width", "height") for one in figure.iter("rect"))
    assert first == frame == [0.0, SIDE / 3, SOUND_HEIGHT]
    assert last == [SIDE * 2 / 3, SIDE / 3, SOUND_HEIGHT]
    assert figure.findtext("figcaption") == "bell.wav, strongest 80 %"


def test_the_times_of_a_sound_stay_inside_its_drawing() -> None:
    """The first begins at the left edge, the last ends at the right edge, and all are above the lower edge."""
    figure = _sound()
    ticks = list(figure.iter("text"))
    assert [tick.text for tick in ticks] == [f"{k * SECONDS / (TICKS - 1):.1f} s" for k in range(TICKS)]
    assert [tick.attrib["x"] for tick in ticks] == [f"{k * SIDE / (TICKS - 1):.1f}" for k in range(TICKS)]
    assert [tick.attrib["text-anchor"] for tick in ticks] == ["start", *["middle"] * (TICKS - 2), "end"]
    _, top, _, height = _view(figure)
    assert all(SOUND_HEIGHT < float(tick.attrib["y"]) < top + height for tick in ticks)
