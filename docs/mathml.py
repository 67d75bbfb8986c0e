"""Write formulas as MathML, which browsers draw themselves: the pages need no network and no script.

As a script it writes the MathML of the formulas that reports show, which are made where docutils need not be.
"""

import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

import attsvm.report
from attsvm.report.formulas import STORE, tex_of_pages

STORE_PATH = Path(attsvm.report.__file__).parent / STORE
logger = logging.getLogger(__name__)

# An argument without braces is one character, so that \tfrac12 is one half; docutils reads a number as far as it goes.
ARGUMENT = re.compile(r"([\^_]|\\sqrt|\\[dt]?frac)\s*(\d)")
SECOND_ARGUMENT = re.compile(r"(\\[dt]?frac(?:\{[^{}]*\}|\\[a-zA-Z]+|\s*[a-zA-Z]))\s*(\d)")
# A bar that may stretch is centred on the subscript it carries, and so sinks into it. TeX stretches none
# of these unasked.
STRETCH = re.compile(r'<mo(?: class="math(?:open|close)")?>([‖⟨⟩])</mo>')
# Browsers set the name of a function and a letter or number without the space that TeX leaves between them.
APPLIED = re.compile(r"(<mo>(?:&ApplyFunction;|\u2061)</mo>)(?=\s*<m[in]>)")
# Browsers take the bars of an absolute value for a relation, with its space.
BAR, TIGHT_BAR = '<mo stretchy="false">|</mo>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
# docutils sets the index of a letter with an accent under the letter.
ACCENT = re.compile(r"<munderover>\s*(<mi>[^<]*</mi>)(.*?)(<mo[^>]*>[ˆˉ˙~]</mo>)\s*</munderover>", re.DOTALL)


def mathml(tex: str, *, block: bool) -> str:
    """Convert one formula; MathError says what docutils cannot read."""
    tex = SECOND_ARGUMENT.sub(r"\1{\2}", ARGUMENT.sub(r"\1{\2}", tex))
    markup = latex2mathml.tex2mathml(tex, as_block=block).replace(BAR, TIGHT_BAR)
    markup = STRETCH.sub(r'<mo stretchy="false">\1</mo>', markup)
    markup = APPLIED.sub(r'\1<mspace width="0.1667em"></mspace>', markup)
    return ACCENT.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', markup)


def _convert(node: nodes.Element, *, block: bool) -> str:
    """Convert one formula; what docutils cannot read is a warning, which a build with -W turns into a failure."""
    tex = node.astext()
    try:
        return mathml(tex, block=block)
    except MathError as error:
        logger.warning("%s In the formula %s", error, tex, location=node)
        return f"<code>{escape(tex)}</code>"


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(_convert(node, block=False))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_convert(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, object]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", _check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _formulas_of_pages() -> str:
    formulas = {tex: mathml(tex, block=block) for tex, block in tex_of_pages().items()}
    return json.dumps(formulas, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _check_pages(app: Sphinx) -> None:
    if STORE_PATH.read_text(encoding="utf-8") != _formulas_of_pages():
        logger.warning("%s is not what the glossary needs; python docs/mathml.py writes it", STORE_PATH.name)


if __name__ == "__main__":
    STORE_PATH.write_text(_formulas_of_pages(), encoding="utf-8")
