"""Numbers that the prose of an erratum gives, for the test that computes them."""

from __future__ import annotations

import re

from attsvm_paper.report.errata import ERRATA


def numbers(title: str, pattern: str) -> tuple[float, ...]:
    """Return the groups of `pattern` in what the erratum says holds, or is shown.

    Parameters
    ----------
    title : str
        How the erratum's title begins.
    pattern : str
        A regular expression that occurs once; each group is a number, with commas between thousands.
    """
    (erratum,) = (one for one in ERRATA if one.title.startswith(title))
    (found,) = re.finditer(pattern, f"{erratum.holds} {erratum.shows}")
    return tuple(float(group.replace(",", "")) for group in found.groups())


def listed(title: str, pattern: str) -> list[float]:
    """Return the numbers of the one group of `pattern`, an enumeration such as "10, 50 and 300"."""
    (erratum,) = (one for one in ERRATA if one.title.startswith(title))
    (found,) = re.finditer(pattern, f"{erratum.holds} {erratum.shows}")
    return [float(part) for part in re.split(r", | and ", found.group(1))]
