"""Write an inspection: index.html with maps and a table, one page per head, and inspect.json."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_files_in
from attsvm.platform.json_values import json_text, json_values
from attsvm.report.page import environment, versions
from attsvm_pretrained.heads.extract import RefusedHead
from attsvm_pretrained.inspection.finding import HeadFinding, NextTokens
from attsvm_pretrained.inspection.inspection import Inspection
from attsvm_pretrained.report.media import draw, write_pictures
from attsvm_pretrained.report.tokens import TokenText
from attsvm_pretrained.selection.null import Standing
from attsvm_pretrained.selection.types import NAME_LEVEL


@dataclass(frozen=True)
class Measure:
    """A number of every head, drawn as a map of layers and heads.

    Attributes
    ----------
    value : callable
        Returns None if a head has no such number.
    text : callable
        Formats the number.
    low, high : float
        The ends of the colour scale.
    """

    key: str
    title: str
    note: str
    value: Callable[[HeadFinding], float | None]
    text: Callable[[float], str]
    low: float
    high: float
    logarithmic: bool = False

    def shade(self, value: float | None) -> float | None:
        """Return the value's position on the scale, 0 to 1."""
        if value is None:
            return None
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = (math.log(max(x, 1e-12)) for x in (low, high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))


# Shade above which white text has a contrast of at least 4.5 with the background; at this shade black has 4.6.
WHITE_FROM = 0.81
# Nouns for an input of a model and for its tokens, by kind of input.
NOUNS = {None: ("text", "token"), "images": ("image", "patch"), "audio": ("sound", "stretch")}
# Number of heads per layer above which a map takes the full page width.
MOST_NUMBERS = 16
# Terms that the page explains, from the documentation's glossary.
TERMS = ("Attention SVM", "Selection", "Margin", "Neighbour, support token", "Correlation", "Query")
# Three letters and a colour per named type, in the map of types.
SHORT = {
    "previous": "prv", "offset": "off", "duplicate": "dup", "induction": "ind", "first": "1st", "delimiter": "del",
    "null": "nul", "content": "con",
}  # fmt: skip
HUES = {
    "previous": "#9ecae1", "offset": "#c6dbef", "duplicate": "#c7e9c0", "induction": "#74c476", "first": "#fdd0a2",
    "delimiter": "#fdae6b", "null": "#d9d9d9", "content": "#dadaeb",
}  # fmt: skip
# Replacements of a head's attention, by which its effect on the next tokens is measured.
REPLACEMENTS = {"uniform": "uniform attention", "svm": "its own SVM", "rule": "its rule", "removed": "no output"}
# Background of heads that a rule of the user names.
OWN_HUE = "#fcc5c0"


def measures(inspection: Inspection) -> tuple[Measure, ...]:
    """List the maps; the scale of ranks ends at the width of a head."""
    width = max((head.rank.width for head in inspection.heads), default=1)
    losses = [head.effects.losses["removed"].trained for head in inspection.heads if head.effects is not None]
    removed = Measure(
        "removed",
        "Loss without the head",
        "Mean loss of log-probability of the next tokens if the head has no output, in the model.",
        lambda head: None if head.effects is None else head.effects.losses["removed"].trained,
        lambda value: change(-value, 2),
        0.0,
        max([0.1, *losses]),
    )
    return (
        *([removed] if losses else ()),
        Measure(
            "top1",
            "Hardness",
            "Median over queries of the largest attention probability.",
            lambda head: head.report.top1,
            lambda value: f"{value:.2f}",
            0.0,
            1.0,
        ),
        Measure(
            "efficiency",
            "Share of the largest margin",
            "Smallest margin of the trained W as a share of the largest margin in its norm, in %; shades on a "
            "logarithmic scale. A dash: no W makes the selection, or none was found in time. <0: the trained W "
            "does not make it.",
            lambda head: head.audit.efficiency,
            _efficiency,
            1e-4,
            1.0,
            logarithmic=True,
        ),
        Measure(
            "cosine",
            "Cosine with its SVM, above the null",
            "Cosine of the trained W, inside the span of the data, with the SVM of its selection, minus the median for "
            "heads with rotated weights: what training added.",
            lambda head: head.audit.null["cosine"].added,
            lambda value: f"{value:+.2f}",
            0.0,
            0.3,
        ),
        Measure(
            "gain",
            "Probe above rule",
            "Held-out agreement of a fitted probe minus the agreement of the best position rule. Zero: position "
            "explains the selection.",
            lambda head: None if head.probe is None else head.probe.agreement - head.probe.rule,
            lambda value: f"{100 * value:+.0f}",
            0.0,
            0.5,
        ),
        Measure(
            "rank",
            "Effective rank",
            f"Effective rank of the scores on this text; a head has {width} query-key coordinates.",
            lambda head: head.rank.scores,
            lambda value: f"{value:.0f}",
            0.0,
            float(width),
        ),
    )


def _efficiency(share: float) -> str:
    """Write a share in %, in few characters; all negative shares get the same text."""
    if share < 0:
        return "<0"
    return f"{100 * share:.1f}" if share >= 1e-3 else f"{100 * share:.2f}".lstrip("0")


def type_looks(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return letters and backgrounds of the named types, and of the user's types among the names."""
    user_types = dict.fromkeys(name for name in names if name not in SHORT)
    return SHORT | {name: name.replace(" ", "")[:3] for name in user_types}, HUES | dict.fromkeys(user_types, OWN_HUE)


def percent(share: float) -> str:
    """Write a share with two significant digits."""
    if abs(share) < 1e-4:
        return "<.01 %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def page_name(finding: HeadFinding) -> str:
    """Return the file name of a head's page."""
    return f"L{finding.layer:02d}H{finding.head:02d}.html"


def headline(inspection: Inspection) -> str:
    """Summarise the heads in one sentence."""
    total = len(inspection.heads)
    if not total and inspection.refused:
        return f"No head of {inspection.model} could be inspected: {inspection.refused[0].reason}"
    if not total:
        return f"The inspection of {inspection.model} was stopped before its first head."
    hard = sum(head.report.verdict == "hard" for head in inspection.heads)
    kinds = (
        f"{hard} of {total} heads {'selects' if hard == 1 else 'select'} hard"
        if hard
        else f"No head of {total} selects hard"
    )
    counts = Counter(head.types.name for head in inspection.heads if head.types.name is not None)
    named = [f"{count} {name}" for name, count in counts.most_common(3)]
    of_type = sum(counts.values())
    others = of_type - sum(count for _, count in counts.most_common(3))
    types = ", ".join([*named, f"{others} of other types"] if others else named)
    above = sum(head.audit.better_than_null for head in inspection.heads)
    return (
        f"{kinds}; {of_type} {'has' if of_type == 1 else 'have'} a named type{f' ({types})' if types else ''}; {above} "
        f"{'is' if above == 1 else 'are'} nearer the SVM of their selection than untrained heads are (by chance, "
        f"about {sum(head.audit.null['cosine'].level for head in inspection.heads):.1f} of {total} would be)."
    )


def refusals(inspection: Inspection) -> list[tuple[str, list[str]]]:
    """Group refused heads by the reason: reasons that differ only in the head's number count as one."""
    groups: dict[tuple[int, str], list[RefusedHead]] = {}
    for one in inspection.refused:
        groups.setdefault((one.layer, one.reason.replace(f"head {one.head} ", "head ")), []).append(one)
    return [(heads[0].reason, [f"{head.layer}.{head.head}" for head in heads]) for heads in groups.values()]


def numbers(inspection: Inspection, command: str) -> dict[str, Any]:
    """Collect the content of inspect.json."""
    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "model": inspection.model,
        "class": inspection.kind,
        "texts": inspection.texts,
        "queries": inspection.queries,
        "seed": inspection.seed,
        "complete": inspection.complete,
        "seconds": round(inspection.seconds, 1),
        "versions": versions(),
        "headline": headline(inspection),
        "heads": [_numbers(head) for head in inspection.heads],
        "refused": [asdict(one) for one in inspection.refused],
        "layers_without_attention": [asdict(one) for one in inspection.absent],
    }


def _numbers(head: HeadFinding) -> dict[str, Any]:
    probe = head.probe
    return {
        "layer": head.layer,
        "head": head.head,
        "name": head.name,
        "error": head.error,
        "verdict": head.report.verdict,
        "top1": head.report.top1,
        "set99": head.report.set99,
        "visible": head.report.visible,
        "special": head.report.special,
        "efficiency": head.audit.efficiency,
        "cosine": head.audit.cosine,
        "cosine_hebbian": head.audit.hebbian,
        "better_than_null": head.audit.better_than_null,
        "null": {name: _standing(standing) for name, standing in head.audit.null.items()},
        "type": head.types.name,
        "type_label": head.types.label,
        "types": {
            name: {"queries": one.queries, "uniform": one.uniform, **_standing(one.standing)}
            for name, one in head.types.scores.items()
        },
        "probe": None if probe is None else probe.agreement,
        "rule": None if probe is None else probe.rule,
        "rule_name": None if probe is None else probe.rule_name,
        "probe_content": None if probe is None else probe.content,
        "probe_distance": None if probe is None else probe.distance,
        "rank_weights": head.rank.weights,
        "rank_scores": head.rank.scores,
        "width": head.rank.width,
        "effects": None if head.effects is None else _effects(head.effects),
    }


def _effects(effects: NextTokens) -> dict[str, Any]:
    return {
        "tokens": effects.tokens,
        "log_probability": effects.before,
        "direct": effects.direct,
        "rule": effects.rule if "rule" in effects.losses else None,
        "losses": {name: _standing(standing) for name, standing in effects.losses.items()},
    }


def _standing(standing: Standing) -> dict[str, Any]:
    """Return the numbers of a standing, None if undefined; the null has rotated weights, unless named permuted."""
    measures_of = {
        "trained": standing.trained,
        "null_median": standing.median,
        "level": standing.level,
        "permuted_median": standing.permuted_median,
        "null_highest": float(standing.draws.max()) if len(standing.draws) else float("nan"),
        "share_below": standing.share_below,
        "added": standing.added,
    }
    return json_values(measures_of) | {"draws": len(standing.draws), "outstanding": standing.outstanding}


def write_inspection(inspection: Inspection, directory: str | os.PathLike[str], command: str) -> Path:
    """Write the pages to a temporary folder, then move them into the directory.

    Returns
    -------
    Path
        index.html; the same folder gets heads/*.html and inspect.json.

    Raises
    ------
    OSError
        If the directory cannot be created or written.
    """
    record = numbers(inspection, command)
    table = measures(inspection)
    grid = _grid(inspection)
    noun = NOUNS[None if inspection.media is None else inspection.media.kind]
    short, hues = type_looks(name for head in inspection.heads for name in head.types.scores)
    with replacing_files_in(directory) as temporary:
        (temporary / "heads").mkdir()
        if inspection.media is not None:
            write_pictures(inspection.media, temporary)
        pages = environment("attsvm_pretrained.report")
        index = pages.get_template("inspection.html.j2").render(
            found=inspection, record=record, measures=table, page_name=page_name, percent=percent,
            version=record["attsvm"], grid=grid, refusals=refusals(inspection), short=short, hues=hues,
            noun=noun, terms=TERMS, cell=cell, distinction=distinction, level=NAME_LEVEL,
            many=any(len(heads) > MOST_NUMBERS for heads in grid.values()),
        )  # fmt: skip
        (temporary / "index.html").write_text(index, encoding="utf-8")
        template = pages.get_template("head.html.j2")
        for place, head in enumerate(inspection.heads):
            before = page_name(inspection.heads[place - 1]) if place else None
            after = page_name(inspection.heads[place + 1]) if place + 1 < len(inspection.heads) else None
            shown = [one.tokens for one in (*head.shows, *head.examples)]
            page = template.render(
                found=inspection, head=head, before=before, after=after, percent=percent, version=record["attsvm"],
                offsets=_offsets(head), words=TokenText(shown), drawn=draw, noun=noun, chip=chip,
                change=change, replacements=REPLACEMENTS,
            )  # fmt: skip
            (temporary / "heads" / page_name(head)).write_text(page, encoding="utf-8")
        (temporary / "inspect.json").write_text(json_text(record), encoding="utf-8")
    return Path(directory) / "index.html"


def _grid(inspection: Inspection) -> dict[int, list[HeadFinding]]:
    """Group heads by layer."""
    rows: dict[int, list[HeadFinding]] = {}
    for head in inspection.heads:
        rows.setdefault(head.layer, []).append(head)
    return rows


def _offsets(head: HeadFinding, limit: int = 10) -> list[tuple[str, float]]:
    """Return shares of queries by offset of the token with the highest attention; far offsets are combined."""
    if not len(head.report.offsets):
        return []
    near = dict.fromkeys(range(-limit, limit + 1), 0.0)
    below = above = 0.0
    for offset, share in zip(head.report.offsets.tolist(), head.report.offset_shares.tolist(), strict=True):
        if offset < -limit:
            below += share
        elif offset > limit:
            above += share
        else:
            near[offset] = share
    ends = [(f"< −{limit}", below)], [(f"> {limit}", above)]
    rows = ends[0] + [(f"{k}".replace("-", "−"), share) for k, share in near.items()] + ends[1]
    nonzero = [number for number, (_, share) in enumerate(rows) if share]
    return rows[nonzero[0] : nonzero[-1] + 1]


def distinction(head: HeadFinding) -> str:
    """Say what tells a head from untrained ones: the rule with the most attention beyond its null."""
    name = head.types.foremost
    one = head.types.scores[name]
    label = f"offset {head.types.offset:+d}" if name == "offset" else name
    return f"{label} {percent(one.score)} (null {percent(one.standing.median)})"


def cell(shade: float) -> str:
    """Return the colours of a cell and of its text as CSS: white text only where its contrast is at least 4.5."""
    red, green, blue = (int(255 - span * shade) for span in (224, 165, 102))
    ink = "#fff" if shade > WHITE_FROM else "#000"
    return f"background: rgb({red},{green},{blue}); color: {ink}"


def change(value: float, digits: int = 3) -> str:
    """Write a change with its sign; zero has no sign."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def chip(p: float) -> tuple[float, bool]:
    """Return the opacity of the blue behind a token, and whether white text is needed on a light page."""
    opacity = round(0.9 * p**0.7, 2)
    return opacity, opacity > WHITE_FROM
