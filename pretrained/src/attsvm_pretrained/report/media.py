"""Attention drawn on an image or along a sound, part by part."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup, escape

from attsvm_pretrained.heads.media import Media, Parts
from attsvm_pretrained.inspection.finding import Example

# Length of a drawing's longer side, in its units.
SIDE = 240.0
# Height of a sound's drawing, and number of ticks on its time axis.
SOUND_HEIGHT, TICKS = 60.0, 5


def write_pictures(media: Media, directory: Path) -> None:
    """Write small copies of the images to the folder to which the pages link."""
    (directory / "media").mkdir()
    for number, item in enumerate(media.items):
        if item.picture is not None:
            (directory / "media" / f"{number:04d}.png").write_bytes(item.picture)


def draw(media: Media, parts: Parts, example: Example) -> Markup:
    """Draw one query as an SVG: more attention gives a part a stronger blue; the query has an orange frame."""
    item = media.items[example.sequence]
    width, height = SIDE, SOUND_HEIGHT
    if media.sides is not None:
        rows, columns = media.sides
        width, height = (SIDE, SIDE * rows / columns) if columns >= rows else (SIDE * columns / rows, SIDE)
    largest = max(example.attention, default=0.0)
    below = 0.0 if item.envelope is None else 16.0
    pieces = [
        f'<svg class="medium" viewBox="-2 -2 {width + 4:.0f} {height + below + 4:.0f}" role="img" '
        f'aria-label="attention on {escape(item.name)}">'
    ]
    if item.picture is not None:
        pieces.append(
            f'<image href="../media/{example.sequence:04d}.png" width="{width:.1f}" height="{height:.1f}" '
            'preserveAspectRatio="none"/>'
        )
    if item.envelope is not None:
        pieces += _sound(item.envelope, item.seconds or 0.0, width, height)
    for label, box, share in zip(parts.labels, parts.boxes, example.attention, strict=False):
        if box is not None and share > 0:
            title = f"<title>{escape(label)}: {100 * share:.2g} %</title>"
            pieces.append(
                f'{_rectangle(box, width, height)} fill="#1f5a99" fill-opacity="{0.8 * share / largest:.2f}">'
            )
            pieces.append(f"{title}</rect>")
    query_box = None if example.query is None else parts.boxes[example.query]
    if query_box is not None:
        pieces.append(f'{_rectangle(query_box, width, height)} fill="none" stroke="#d9730d" stroke-width="2"/>')
    pieces.append("</svg>")
    outside = [
        f"{escape(label)} {100 * share:.2g} %"
        for label, box, share in zip(parts.labels, parts.boxes, example.attention, strict=False)
        if box is None
    ]
    caption = ", ".join([str(escape(item.name)), *outside, f"strongest {100 * largest:.2g} %"])
    return Markup(f'<figure class="medium">{"".join(pieces)}<figcaption>{caption}</figcaption></figure>')


def _rectangle(box: tuple[float, float, float, float], width: float, height: float) -> str:
    left, top, across, down = box
    return (
        f'<rect x="{left * width:.2f}" y="{top * height:.2f}" width="{across * width:.2f}" height="{down * height:.2f}"'
    )


def _sound(envelope: object, seconds: float, width: float, height: float) -> list[str]:
    """Draw the envelope of a sound and an axis in seconds."""
    peaks = [float(peak) for peak in envelope]  # type: ignore[attr-defined]
    step = width / len(peaks)
    above = [f"{k * step:.1f} {height / 2 * (1 - peak):.1f}" for k, peak in enumerate(peaks)]
    under = [f"{k * step:.1f} {height / 2 * (1 + peak):.1f}" for k, peak in reversed(list(enumerate(peaks)))]
    pieces = [f'<path d="M{" L".join(above + under)} Z" fill="currentColor" fill-opacity="0.35"/>']
    for k in range(TICKS):
        share = k / (TICKS - 1)
        anchor = "start" if k == 0 else "end" if k == TICKS - 1 else "middle"
        pieces.append(
            f'<text x="{share * width:.1f}" y="{height + 13:.0f}" font-size="10" fill="currentColor" '
            f'text-anchor="{anchor}">{share * seconds:.1f} s</text>'
        )
    return pieces
