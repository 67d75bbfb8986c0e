"""Every formula of the pages and docstrings is converted to the tree that TeX reads."""

from __future__ import annotations

import ast
import html
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sources import FILES

ROOT = Path(__file__).parents[3]
FENCED = re.compile(r"```(?!\{math\}).*?```", re.DOTALL)
IN_PAGES = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+(?:\n[^$\n]+)?)\$", re.DOTALL)
IN_DOCSTRINGS = re.compile(r":math:`([^`]+)`|\.\. math::(.+?)(?:\n\n|\Z)", re.DOTALL)
# Children of an element that are arguments: numerator and denominator, or what stands above and below.
ARGUMENTS = {"mfrac": (0, 1), "msup": (1,), "msub": (1,), "msubsup": (1, 2), "munder": (1,), "munderover": (1, 2)}
ACCENTS = "ˆˉ˙~¯_"


def formulas() -> Iterator[str]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if not {"_build", "auto_examples", "generated"} & set(page.parts):
            text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
            yield from ("".join(match.groups(default="")) for match in IN_PAGES.finditer(text))
    for module in FILES:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                yield from ("".join(match.groups(default="")) for match in IN_DOCSTRINGS.finditer(text))


@pytest.fixture
def mathml(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return lambda tex: re.sub(r"\n *", "", import_module("mathml").mathml(tex, block=False))


def read_argument(tex: str, start: int) -> tuple[str, int]:
    """Read one argument as TeX does: a group, a command, or a single character; returns it and where it ends."""
    while tex[start].isspace():
        start += 1
    if tex[start] == "{":
        depth, end = 1, start + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(tex[end], 0) if tex[end - 1] != "\\" else 0
            end += 1
        return tex[start + 1 : end - 1], end
    command = re.compile(r"\\([a-zA-Z]+|.)").match(tex, start)
    end = command.end() if command else start + 1
    if command and command[1] in ("mathrm", "mathcal", "mathbb", "text", "bar", "hat", "tilde"):
        end = read_argument(tex, end)[1]
    return tex[start:end], end


def arguments_of(tex: str) -> Iterator[str]:
    for command in re.finditer(r"(?<!\\)[\^_]|\\[dt]?frac(?![a-zA-Z])", tex):
        first, end = read_argument(tex, command.end())
        yield first
        if command[0].startswith("\\"):
            yield read_argument(tex, end)[0]


def leaves(element: ElementTree.Element) -> str:
    return re.sub(r"\s", "", "".join(element.itertext()))


def tree(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.sub(r"&(?!lt;|gt;|amp;)\w+;", lambda match: html.unescape(match[0]), markup))


@pytest.mark.slow
def test_every_argument_is_the_one_that_tex_reads(mathml) -> None:
    count = 0
    for formula in {" ".join(one.split()) for one in formulas()}:
        root = tree(mathml(formula))
        found = Counter()
        for element in root.iter():
            tag = element.tag.rpartition("}")[2]
            for place in ARGUMENTS.get(tag, ()):
                found[leaves(element[place])] += 1
            if tag == "mover" and leaves(element[1]) not in ACCENTS:
                found[leaves(element[1])] += 1
        expected = Counter(leaves(tree(mathml(argument))) for argument in arguments_of(formula))
        for prime in "′", "′′", "'":
            del found[prime], expected[prime]
        assert found == expected, (formula, found - expected, expected - found)
        count += 1
    assert count > 1000


def test_an_argument_without_braces_is_one_character(mathml) -> None:
    assert "<mn>1</mn><mn>2</mn>" in mathml(r"\tfrac12|x|")
    assert mathml(r"\frac12\|W\|^2") == mathml(r"\frac{1}{2}\|W\|^{2}")
    assert mathml("x^12") == mathml("x^{1}2")
    assert mathml(r"\tfrac\eta2 x") == mathml(r"\tfrac{\eta}{2} x")


def test_bars_of_a_norm_have_one_height(mathml) -> None:
    markup = mathml(r"\lVert x\rVert + \|y\|")
    assert markup.count('<mo stretchy="false">‖</mo>') == markup.count("‖") == 4


def test_the_bar_of_a_norm_stays_on_its_line(mathml) -> None:
    markup = mathml(r"\|A^\top \lambda\|_*")
    assert markup.count('<mo stretchy="false">‖</mo>') == markup.count("‖") == 2


def test_the_bars_of_an_absolute_value_stand_close(mathml) -> None:
    markup = mathml(r"|w|\,\langle w, v\rangle")
    assert markup.count('<mo stretchy="false" lspace="0" rspace="0">|</mo>') == markup.count("|") == 2
    assert '<mo stretchy="false">⟨</mo>' in markup


def test_the_index_of_a_letter_with_an_accent_stands_beside_it(mathml) -> None:
    markup = '<msub><mover accent="true"><mi>γ</mi><mo stretchy="false">ˉ</mo></mover>'
    assert markup + "<mi>i</mi></msub>" in mathml(r"\bar\gamma_i")
    assert markup + "<mrow><mi>i</mi><mi>t</mi></mrow></msub>" in mathml(r"\bar\gamma_{it}-a")


def test_a_function_stands_apart_from_its_argument(mathml) -> None:
    assert '<mspace width="0.1667em"></mspace><mi>k</mi>' in mathml(r"\log k")
    assert "mspace" not in mathml(r"\log(k)")
