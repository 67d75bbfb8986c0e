"""Write formulas as MathML, which browsers draw themselves: the pages need no network and no script."""

from html import escape

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# A bar that may stretch is centred on the subscript it carries, and so sinks into it.
UPRIGHT_BAR = "<mo>‖</mo>", '<mo stretchy="false">‖</mo>'


def _convert(node: nodes.Element, *, block: bool) -> str:
    """Convert one formula; what docutils cannot read is a warning, which a build with -W turns into a failure."""
    tex = node.astext()
    try:
        return latex2mathml.tex2mathml(tex, as_block=block).replace(*UPRIGHT_BAR)
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
    return {"parallel_read_safe": True, "parallel_write_safe": True}
