"""Identification of the code that made the rows: a digest of the code that computes an experiment's trials.

Rows of two versions of an experiment must not be mixed, but redrawing a figure must not invalidate rows. Only those
definitions of the experiment's module therefore count that its `trials` and `config` reach, through any names they
mention. Checks of a config (``__post_init__``) do not count: accepted values are part of a run's parameters. Other
modules of attsvm change with its version.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from sys import modules

from attsvm_paper.engine.experiment import Experiment


def code_hash(experiment: Experiment) -> str:
    """Digest the code that computes the rows of an experiment.

    Parameters
    ----------
    experiment : Experiment

    Returns
    -------
    str
        Digest of the whole module if `trials` or `config` are not defined in it; empty if it has no file.
    """
    path = getattr(modules.get(experiment.trials.__module__), "__file__", None)
    if path is None:
        return ""
    return digest(Path(path).read_text(encoding="utf-8"), experiment.trials.__name__, experiment.config.__name__)


def digest(source: str, *names: str) -> str:
    """Digest the definitions of a module that given names reach.

    Parameters
    ----------
    source : str
        Source text of the module.
    names : str
        Functions and classes defined there.

    Returns
    -------
    str
        Hexadecimal; digest of the whole source if a name is not defined in it.
    """
    texts: dict[str, list[str]] = {}
    uses: dict[str, set[str]] = {}
    lines = source.encode().split(b"\n")
    for statement in ast.parse(source).body:
        for name, text in _definitions(statement, lines):
            texts.setdefault(name, []).append(text)
            uses.setdefault(name, set()).update(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    if not texts.keys() >= set(names):
        return hashlib.sha256(source.encode()).hexdigest()
    closure, queue = set[str](), list(names)
    while queue:
        name = queue.pop()
        if name in texts and name not in closure:
            closure.add(name)
            queue += uses[name]
    whole = "\n".join(f"{name}\n" + "\n".join(texts[name]) for name in sorted(closure))
    return hashlib.sha256(whole.encode()).hexdigest()


def _definitions(statement: ast.stmt, lines: list[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement binds at the top of a module, with the text that defines each."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        origin = getattr(statement, "module", None) or ""
        for alias in statement.names:
            yield alias.asname or alias.name.split(".")[0], f"{origin}:{alias.name}"
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        if isinstance(statement, ast.ClassDef):
            statement.body = [part for part in statement.body if getattr(part, "name", None) != "__post_init__"]
        decorators = [_segment(lines, one) for one in statement.decorator_list]
        parts = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        yield statement.name, "\n".join([*decorators, *(_segment(lines, part) for part in parts)])
    else:
        text = _segment(lines, statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, text


def _segment(lines: list[bytes], node: ast.expr | ast.stmt) -> str:
    """Return the text of a node; ast.get_source_segment would split the module into lines for every node."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    segment = lines[first : last + 1]
    segment[-1] = segment[-1][: node.end_col_offset]
    segment[0] = segment[0][node.col_offset :]
    return b"\n".join(segment).decode()
