"""Write formulas as MathML, which browsers draw themselves: the pages need no network and no script."""

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def _convert(tex: str, where: object, *, block: bool) -> str:
    try:
        return latex2mathml.tex2mathml(tex, as_block=block)
    except MathError as error:
        raise ExtensionError(f"{where}: {error} in the formula {tex}") from error


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(_convert(node.astext(), node.source, block=False))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_convert(node.astext(), node.source, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, object]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
