"""Display of results: one line in a terminal, a small card in a notebook.

Cards are plain HTML and SVG with no scripts or fonts, in the notebook's text colour: they are readable on light and on
dark pages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from html import escape
from textwrap import shorten
from typing import Any, ClassVar

import numpy as np

GOOD, BAD, UNSURE = "#2f8f5b", "#c0392b", "#b7791f"
MARKED, TEXT_COLOUR = "#3b82c4", "currentColor"
WIDTH, HEIGHT = 260, 44
HISTOGRAM_BINS = 26
LONGEST_LINE = 200


@dataclass(frozen=True)
class Summary:
    """The main facts of a result.

    Attributes
    ----------
    title : str
        The kind of result, in two or three words.
    state : str
        Its verdict in a word or a sentence; empty for none.
    colour : str
        Colour of the state: GOOD, BAD, UNSURE or MARKED (no verdict).
    facts : sequence of (str, str)
        Labels and values, most important first; a terminal line shows the first that fit.
    picture : str
        SVG, from :func:`histogram`, :func:`line` or :func:`bars`; empty for none.
    caption : str
        Description of the picture.
    notes : sequence of str
        Sentences below the table: consequences and next steps.
    """

    title: str
    state: str = ""
    colour: str = UNSURE
    facts: Sequence[tuple[str, str]] = ()
    picture: str = ""
    caption: str = ""
    notes: Sequence[str] = field(default=())

    @property
    def line(self) -> str:
        """One line of plain text."""
        parts = ([self.state] if self.state else []) + [f"{label} {value}" for label, value in self.facts]
        return one_line(self.title, parts or list(self.notes))

    @property
    def html(self) -> str:
        """A self-contained card."""
        state = f'<span style="color:{self.colour};font-weight:600">{escape(self.state)}</span>' if self.state else ""
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="text-align:left;font-weight:400;opacity:.8;'
            f'white-space:nowrap;vertical-align:top;padding:1px 12px 1px 0">{escape(label)}</th>'
            f'<td style="text-align:left;padding:1px 0">{escape(value)}</td></tr>'
            for label, value in self.facts
        )
        picture = f'<figure style="margin:6px 0">{self.picture}<figcaption style="opacity:.8;font-size:.85em">'
        picture = f"{picture}{escape(self.caption)}</figcaption></figure>" if self.picture else ""
        notes = "".join(f'<p style="margin:4px 0;max-width:60em">{escape(note)}</p>' for note in self.notes)
        style = "font:13px/1.4 system-ui,sans-serif;padding:4px 0 4px 10px;margin:4px 0;overflow-x:auto"
        head = f"<div><strong>{escape(self.title)}</strong> {state}</div>"
        table = f'<table style="border-collapse:collapse;margin:4px 0;font:inherit;color:inherit">{rows}</table>'
        return f'<div style="{style};border-left:3px solid {self.colour}">{head}{table}{picture}{notes}</div>'


class Summarised:
    """Base of results that display themselves; a subclass defines `_summary`."""

    @abstractmethod
    def _summary(self) -> Summary:
        """Return the main facts of this result."""

    def __repr__(self) -> str:
        return self._summary().line

    def _repr_html_(self) -> str:
        return self._summary().html


class Listed(Summarised):
    """Base of dataclasses whose fields are the summary: numbers, words, and shapes of arrays."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def _summary(self) -> Summary:
        values = [(entry.name, getattr(self, entry.name)) for entry in fields(self) if entry.repr]
        facts = [(name, text) for name, value in values if (text := _display_text(value))]
        return Summary(type(self).__name__, colour=MARKED, facts=facts)


class Worded(Summarised):
    """Base of results whose summary is a sentence."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The result in one or two sentences."""

    def _summary(self) -> Summary:
        return Summary(type(self).__name__, colour=MARKED, notes=[self.sentence])


def one_line(title: str, parts: Sequence[str]) -> str:
    """Write `title(part, part, ...)` in at most LONGEST_LINE characters; parts that do not fit are left out.

    The most important part comes first.
    """
    whole = f"{title}({', '.join(parts)})"
    if len(whole) <= LONGEST_LINE:
        return whole
    room = LONGEST_LINE - len(title) - len("(, ...)")
    lines = [parts[0] if len(parts[0]) <= room else shorten(parts[0], room, placeholder="")]
    for part in parts[1:]:
        if len(", ".join([*lines, part])) > room:
            break
        lines.append(part)
    return f"{title}({', '.join(lines)}, ...)"


def counted(number: int, one: str, many: str = "") -> str:
    """Write '1 step', '3 steps', or '3 queries' if `many` is 'queries'.

    ``many`` is ``one`` with an s by default.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def series(words: Sequence[str]) -> str:
    """Write 'a', 'a and b', or 'a, b and c'.

    Parameters
    ----------
    words : sequence of str
        At least one.
    """
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), words[-1]])


def _display_text(value: Any) -> str:
    """Show a number, word, array or collection in a few characters, and other objects as an empty text."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if value is None or isinstance(value, (str, int, np.integer, np.bool_)):
        return str(value)
    if isinstance(value, (tuple, list, dict)):
        return counted(len(value), "entry", "entries")
    shape = getattr(value, "shape", None)
    return str(tuple(shape)) if isinstance(shape, tuple) else ""


def histogram(values: np.ndarray, highlights: np.ndarray) -> str:
    """Draw the distribution of positive values on a logarithmic axis, with some values highlighted.

    Parameters
    ----------
    values : ndarray, shape (m,)
        Values that are not positive and finite are left out.
    highlights : ndarray of bool, shape (m,)

    Returns
    -------
    str
        SVG; empty when no value can be drawn.
    """
    usable = np.isfinite(values) & (values > 0)
    if not usable.any():
        return ""
    logs, highlights = np.log10(values[usable]), highlights[usable]
    low, high = float(logs.min()), float(logs.max())
    edges = np.linspace(low, max(high, low + 1e-3), HISTOGRAM_BINS + 1)
    every, some = np.histogram(logs, edges)[0], np.histogram(logs[highlights], edges)[0]
    wide = WIDTH / HISTOGRAM_BINS
    shapes = []
    for k, (total, part) in enumerate(zip(every, some, strict=True)):
        for number, colour in ((total, TEXT_COLOUR), (part, MARKED)):
            if number:
                tall = max((HEIGHT - 2) * number / every.max(), 1.0)
                opacity = 1 if colour == MARKED else 0.35
                shapes.append(
                    f'<rect x="{k * wide:.1f}" y="{HEIGHT - tall:.1f}" width="{wide - 1:.1f}" height="{tall:.1f}" '
                    f'fill="{colour}" opacity="{opacity}"/>'
                )
    return _svg("".join(shapes), f"{10**low:.3g}", f"{10**high:.3g}")


def line(x: np.ndarray, y: np.ndarray) -> str:
    """Draw a curve over a logarithmic axis.

    Parameters
    ----------
    x : ndarray, shape (m,)
        Increasing, from 0 (drawn at one half) or from 1.
    y : ndarray, shape (m,)

    Returns
    -------
    str
        SVG; empty with fewer than two finite points.
    """
    finite = np.isfinite(y)
    if finite.sum() < 2:
        return ""
    x, y = x[finite], y[finite]
    first, last = x[0], x[-1]
    x = np.log10(np.maximum(x, 0.5))
    across = (WIDTH - 2) * (x - x[0]) / (x[-1] - x[0]) + 1
    spread = float(np.ptp(y)) or 1.0
    down = HEIGHT - 2 - (HEIGHT - 4) * (y - y.min()) / spread
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    path = f'<polyline points="{points}" fill="none" stroke="{MARKED}" stroke-width="2"/>'
    return _svg(path, f"{first:,g}", f"{last:,g}")


def bars(labels: Sequence[str], shares: Sequence[float], highlight: int) -> str:
    """Draw shares between zero and one as labelled bars, one of them highlighted.

    Parameters
    ----------
    shares : sequence of float
        NaN is drawn as an empty bar.
    highlight : int
        Index of the highlighted bar.

    Returns
    -------
    str
        SVG.
    """
    row, left = 16, 84
    shapes = []
    for k, (label, share) in enumerate(zip(labels, shares, strict=True)):
        wide = (WIDTH - left - 48) * min(max(share, 0.0), 1.0) if np.isfinite(share) else 0.0
        colour, opacity = (MARKED, 1) if k == highlight else (TEXT_COLOUR, 0.35)
        shapes.append(
            f'<text x="0" y="{k * row + 12}" font-size="11" fill="currentColor">{escape(label)}</text>'
            f'<rect x="{left}" y="{k * row + 3}" width="{wide:.1f}" height="{row - 6}" fill="{colour}" '
            f'opacity="{opacity}"/>'
            f'<text x="{left + wide + 4:.1f}" y="{k * row + 12}" font-size="11" fill="currentColor">{share:.3f}</text>'
        )
    tall = row * len(labels)
    return f'<svg role="img" width="{WIDTH}" height="{tall}" viewBox="0 0 {WIDTH} {tall}">{"".join(shapes)}</svg>'


def _svg(shapes: str, first: str, last: str) -> str:
    """Put shapes above an axis with labels at both ends."""
    tall = HEIGHT + 14
    return (
        f'<svg role="img" width="{WIDTH}" height="{tall}" viewBox="0 0 {WIDTH} {tall}">{shapes}'
        f'<line x1="0" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}" stroke="currentColor" stroke-width=".7"/>'
        f'<text x="0" y="{tall - 3}" font-size="10" fill="currentColor">{first}</text>'
        f'<text x="{WIDTH}" y="{tall - 3}" font-size="10" text-anchor="end" fill="currentColor">{last}</text></svg>'
    )
