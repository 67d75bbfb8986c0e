"""Mutants of a module: one changed operator, constant or condition each, and how it is put in place.

A comparison, an operator of arithmetic or logic, a number, True and False, a condition negated, min for max, any for
all. What a `raise` says, annotations, docstrings, decorators, defaults, `strict=` and `copy=` stay as they are, and so
does what stands outside functions. Kernels stay as they are too: their machine code cannot be exchanged.
"""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "zeros": "ones", "amin": "amax"}
NAMES |= {other: name for name, other in NAMES.items()}
LAMBDA = "<lambda>"
EXEMPTIONS = (ast.Raise, ast.arguments, ast.AnnAssign)
SKIPS = ("decorator_list", "returns")


def _constants(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float) and value:
        return [value * 10, value / 10]
    return [1.0] if isinstance(value, float) else []


def _changes(node: ast.AST) -> list[ast.AST]:
    """Every node that may stand in the place of `node`."""
    nodes: list[ast.AST] = []

    def add(**fields: Any) -> None:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        nodes.append(other)

    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in COMPARISONS.get(type(op), ()):
                add(ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        add(op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        add(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        nodes.append(node.operand)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        add(test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant):
        for value in _constants(node.value):
            add(value=value)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        add(id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        add(attr=NAMES[node.attr])
    return nodes


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change.

    Attributes
    ----------
    line, column : int
        Of what is changed; the column counts from the first character of the line.
    function : str
        The function it is in.
    statement : range
        The lines of the statement it is in, without those of the statements inside that one.
    text : str
        The line.
    was, becomes : str
    make : callable
        Returns the changed module.
    """

    line: int
    column: int
    function: str
    statement: range
    text: str
    was: str
    becomes: str
    make: Callable[[], ast.Module]

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What tells a mutant from others of its module however lines move."""
        return self.text, self.column, self.was, self.becomes


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree, lines = ast.parse(source), source.split("\n")

    def add_mutant(node: ast.AST, name: str, at: int, child: ast.AST, other: ast.AST) -> ast.Module:
        _set_child(node, name, at, other)
        new = ast.fix_missing_locations(copy.deepcopy(tree))
        _set_child(node, name, at, child)
        return new

    def visit(node: ast.AST, function: str, inside: bool, statement: range) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            for at, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or isinstance(child, EXEMPTIONS) or name in SKIPS:
                    continue
                if isinstance(child, ast.keyword) and child.arg in ("strict", "copy"):
                    continue
                if isinstance(child, ast.FunctionDef) and any(map(_is_kernel, child.decorator_list)):
                    continue
                name_of_function, within = function, inside
                if isinstance(child, ast.FunctionDef | ast.Lambda):
                    name_of_function, within = getattr(child, "name", function), True
                lines_of = _lines_of(child) if isinstance(child, ast.stmt) else statement
                for other in _changes(child) if inside else ():
                    ast.copy_location(other, child)
                    line = getattr(child, "lineno", 0)
                    text = lines[line - 1]
                    column = getattr(child, "col_offset", 0) - (len(text) - len(text.lstrip()))
                    yield Mutant(
                        line, column, function, lines_of, text.strip(), _brief(child), _brief(other),
                        partial(add_mutant, node, name, at, child, other),
                    )  # fmt: skip
                yield from visit(child, name_of_function, within, lines_of)

    yield from visit(tree, "", False, range(0))


def _lines_of(statement: ast.stmt) -> range:
    """The lines of a statement, or of the head of one that has others inside."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _is_kernel(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("kernel")


def _brief(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0]


def draw(mutants_of: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw mutants systematically along the lines, in random order within a statement: every one is equally likely."""
    if not 0 < count < len(mutants_of):
        return mutants_of
    rng = random.Random(seed)
    order = sorted(mutants_of, key=lambda one: (one.statement.start, rng.random()))
    start = rng.random()
    return [order[int((k + start) * len(mutants_of) / count)] for k in range(count)]


def _set_child(node: ast.AST, name: str, at: int, child: ast.AST) -> None:
    value = getattr(node, name)
    if isinstance(value, list):
        value[at] = child
    else:
        setattr(node, name, child)


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{prefix}{constant.co_name}"
            yield name, constant
            yield from _codes(constant, f"{name}.")


def _functions(owner: Any, module: ModuleType, prefix: str = "") -> Iterator[tuple[str, FunctionType]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _functions(value, module, f"{prefix}{name}.")
            continue
        for inner in (
            value,
            getattr(value, "fget", None),
            getattr(value, "func", None),
            getattr(value, "__func__", None),
        ):
            inner = inspect.unwrap(inner) if callable(inner) else inner
            if isinstance(inner, FunctionType) and inner.__module__ == module.__name__:
                yield f"{prefix}{inner.__name__}", inner


def install(code: CodeType, module: ModuleType) -> None:
    """Exchange the code of every function of the module for the one in the code of a changed module."""
    codes_of = list(_codes(code))
    codes = dict(codes_of)
    for name, function in _functions(module, module):
        if name in codes and len(codes[name].co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = codes[name]
    lambdas = {_place(one): one for _, one in codes_of if one.co_name == LAMBDA}
    for function in gc.get_objects() if lambdas else ():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            changed = lambdas.get(_place(function.__code__)) if function.__name__ == LAMBDA else None
            if changed and len(changed.co_freevars) == len(function.__code__.co_freevars):
                function.__code__ = changed
    clear_caches(module)


def _place(code: CodeType) -> tuple[int | None, ...]:
    """Where the first operand of a lambda stands in its file; all lambdas have one name."""
    return next((place for place in code.co_positions() if place[-1]), ())


def clear_caches(module: ModuleType) -> None:
    """Forget what the functions of a module have cached."""
    for value in vars(module).values():
        if callable(getattr(value, "cache_clear", None)):
            value.cache_clear()
