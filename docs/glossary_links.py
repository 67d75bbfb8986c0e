"""Link a term of the glossary where it first stands on a page."""

import re

from docutils import nodes
from sphinx.application import Sphinx

PAGE = "glossary"
# Nodes in which a link would stand in another link, or in which a word is no prose.
NO_PROSE = (nodes.reference, nodes.title, nodes.literal, nodes.math, nodes.term, nodes.caption, nodes.image)


def _pattern(terms: list[str]) -> re.Pattern[str]:
    """One group per term; "Neighbour, support token" is either. Long terms go first: "soft margin" is no "margin"."""
    groups = ("|".join(_with_plural(word) for word in term.split(", ")) for term in terms)
    return re.compile(r"\b(?:" + "|".join(f"({group})" for group in groups) + r")\b", re.IGNORECASE)


def _with_plural(word: str) -> str:
    return re.escape(word) + ("" if word.endswith("s") else "s?")


def _name_terms(app: Sphinx, doctree: nodes.document) -> None:
    if app.env.docname == PAGE:
        for term in doctree.findall(nodes.term):
            term["ids"] = [nodes.make_id(f"term {term.astext()}")]


def _link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link each term once; pages that Sphinx generates list names and have no prose."""
    if docname == PAGE or docname.startswith(("generated/", "auto_examples/")):
        return
    glossary = app.env.get_doctree(PAGE)
    address = app.builder.get_relative_uri(docname, PAGE)
    ids = {term.astext(): term["ids"][0] for term in glossary.findall(nodes.term)}
    terms = sorted(ids, key=len, reverse=True)
    pattern, linked = _pattern(terms), set()
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in filter(_is_prose, list(paragraph.findall(nodes.Text))):
            pieces, end = [], 0
            for match in pattern.finditer(text):
                term = terms[match.lastindex - 1]
                if term not in linked:
                    link = f"{address}#{ids[term]}"
                    pieces.append(nodes.Text(text[end : match.start()]))
                    pieces.append(nodes.reference("", match.group(), internal=True, refuri=link, classes=["term"]))
                    end = match.end()
                    linked.add(term)
            if pieces:
                text.parent.replace(text, [*pieces, nodes.Text(text[end:])])


def _is_prose(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, NO_PROSE):
            return False
    return True


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("doctree-read", _name_terms)
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
