"""Numbers that the prose of an erratum gives, for the test that computes them.

A test reads results with `numbers`, and what its run takes from the prose with `settings`. `falsified` runs the test
again with each result changed, by one in its first digit unless stated otherwise: it must fail then.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from attsvm_paper.report.errata import ERRATA, Erratum

NUMBER = re.compile(r"(?<!\w)(?!and\b)[\w.·⁻]+(?:,\d{3})*")
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")

Place = tuple[str, int, int]
"""Title of an erratum, and where a number begins and ends in its prose."""

_results: set[Place] = set()
_changed: dict[Place, str] = {}


def prose(erratum: Erratum) -> str:
    """Return what the erratum says holds, changes and is shown."""
    return f"{erratum.holds} {erratum.changes} {erratum.shows}"


def settings(title: str, pattern: str) -> tuple[float, ...]:
    """Return numbers that a run takes from the prose: with another number it is another run, not a false statement.

    Parameters
    ----------
    title : str
        How the erratum's title begins.
    pattern : str
        A regular expression that occurs once. A group is a number, with commas between thousands, in words or raised,
        or an enumeration such as "10, 50 and 300".
    """
    return tuple(_value(text) for _, text in _groups(title, pattern))


def numbers(title: str, pattern: str) -> tuple[float, ...]:
    """Return numbers that the test computes; parameters as in `settings`."""
    groups = _groups(title, pattern)
    _results.update(place for place, _ in groups)
    return tuple(_value(_changed.get(place, text)) for place, text in groups)


def another(number: str) -> str:
    """Return a number of as many characters: another word, or another first digit."""
    if number in WORDS:
        return WORDS[WORDS.index(number) + (1 if number != "ten" else -1)]
    first = re.search("[1-9]", number) or re.search("0", number)
    assert first is not None, number
    digit = int(first[0])
    return f"{number[: first.start()]}{digit + 1 if digit < 9 else 8}{number[first.end() :]}"


def fivefold(number: str) -> str:
    """Return a whole number that is five times as large, for a share whose sampling error hides less."""
    return str(5 * int(number))


def falsified(
    *computed: str, change: Callable[[str], str] = another
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test that must fail when a result that it reads is another number.

    Parameters
    ----------
    *computed : str
        Functions that the test calls, such as "train" or "multi_token.trials". What they return is kept, so that
        changed prose costs no second run.
    change : callable
        Maps a number to the false one.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            with pytest.MonkeyPatch.context() as patch:
                for name in computed:
                    owner, _, function = name.rpartition(".")
                    names = vars(test.__globals__[owner]) if owner else test.__globals__
                    patch.setitem(names, function, _kept(names[function]))
                _results.clear()
                test(*args, **kwargs)
                for title, start, end in (places := sorted(_results)):
                    text = next(prose(one) for one in ERRATA if one.title == title)
                    patch.setitem(_changed, (title, start, end), change(text[start:end]))
                    try:
                        test(*args, **kwargs)
                    except Exception:
                        del _changed[title, start, end]
                    else:
                        raise AssertionError(f"{title}: passes with {change(text[start:end])} for {text[start:end]}")
                assert places, "the test reads no result"

        return run

    return decorate


def _groups(title: str, pattern: str) -> list[tuple[Place, str]]:
    (erratum,) = (one for one in ERRATA if one.title.startswith(title))
    (found,) = re.finditer(pattern, prose(erratum))
    spans = [found.span(group) for group in range(1, found.re.groups + 1)]
    parts = [part for span in spans for part in NUMBER.finditer(prose(erratum), *span)]
    return [((erratum.title, part.start(), part.end()), part[0].rstrip(".")) for part in parts]


def _value(text: str) -> float:
    if text in WORDS:
        return float(WORDS.index(text))
    factor, _, power = text.replace(",", "").rpartition("·")
    base = power.rstrip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    exponent = power[len(base) :].translate(SUPERSCRIPTS)
    return float(factor or 1) * float(base) ** int(exponent or 1)


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which computes once for arguments of the same bytes."""
    results: dict[bytes, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        key = pickle.dumps((args, kwargs))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return call
