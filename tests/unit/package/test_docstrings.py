"""Every public callable shows its use, and what it shows is what happens."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import attsvm
from attsvm import pretrained
from sources import FILES, place

DOCS = Path(__file__).parents[3] / "docs"


def _module(path: Path) -> str:
    return place(path).removesuffix(".py").replace("/", ".")


MODULES = [_module(path) for path in FILES if ">>> " in path.read_text(encoding="utf-8")]


def public_callables() -> dict[str, object]:
    """What the API page lists, by its name there."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    entries = [e for block in re.findall(r"autosummary::\n(.*?)```", page, re.DOTALL) for e in block.split()[2:]]
    callables = {}
    for entry in entries:
        value: object = attsvm
        for part in entry.split("."):
            value = getattr(value, part) if hasattr(value, part) else import_module(f"{value.__name__}.{part}")  # type: ignore[attr-defined]
        callables[entry] = value
    return callables


def _shows(value: object) -> bool:
    """Whether the docstring, of a class its own and not its base's, has an Examples section with something to run."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(re.search(r"^Examples\n-{8}\n>>> ", inspect.cleandoc(own or ""), re.MULTILINE))


def test_every_public_callable_has_an_example() -> None:
    callables = public_callables()
    assert len(callables) > 100
    assert [name for name, value in callables.items() if not _shows(value)] == []


def test_every_public_method_has_an_example() -> None:
    methods = {
        f"{name}.{attribute}": value
        for name, owner in public_callables().items()
        if inspect.isclass(owner) and not getattr(owner, "_is_protocol", False)
        for attribute, member in vars(owner).items()
        if not attribute.startswith("_")
        and inspect.isfunction(value := getattr(member, "__func__", member))
        and value.__module__.startswith("attsvm")
        and not any(hasattr(base, attribute) for base in owner.__mro__[1:])
    }
    assert len(methods) > 60
    # Events that transformers' Trainer calls.
    called_by_others = re.compile(r".*\.on_\w+")
    without = [name for name, value in methods.items() if not _shows(value) and not called_by_others.fullmatch(name)]
    assert without == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    module = import_module(name.removesuffix(".__init__"))
    assert isinstance(module, ModuleType)
    results = doctest.testmod(module, verbose=False)
    assert results.failed == 0


def _listed(docstring: str, section: str) -> list[str]:
    """Names that a numpydoc section describes."""
    lines, names, inside = docstring.splitlines(), list[str](), False
    for line, following in pairwise([*lines, ""]):
        if re.fullmatch(r"-{3,}", following):
            inside = line == section
        elif inside and re.match(r"\w|\*", line) and not re.fullmatch(r"-{3,}", line):
            names += [name.strip(" *") for name in line.split(" : ")[0].split(",")]
    return names


def _members(owner: type) -> set[str]:
    """Fields, attributes that are set, methods, and parameters of the constructor, inherited ones too."""
    bases = [base for base in owner.__mro__ if base.__module__.startswith("attsvm")]
    return set(dir(owner)).union(*(_own(inspect.getfile(base))[base.__name__] for base in bases))


@cache
def _own(file: str) -> dict[str, set[str]]:
    """Names that the source of each class of a module adds."""
    classes = {}
    for owner in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        names = classes[owner.name] = set[str]()
        for node in ast.walk(owner):
            if isinstance(node, ast.AnnAssign):
                names.add(ast.unparse(node.target).removeprefix("self."))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names |= _parameters(node)
    return classes


def _parameters(function: ast.FunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


@pytest.mark.parametrize("path", FILES, ids=place)
def test_docstrings_describe_what_there_is(path: Path) -> None:
    missing = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for function in (part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)):
            names = set(_listed(ast.get_docstring(function) or "", "Parameters")) - _parameters(function)
            missing += [f"{function.name}: {name}" for name in names]
        docstring = (ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None) or ""
        described = {*_listed(docstring, "Parameters"), *_listed(docstring, "Attributes")}
        if isinstance(node, ast.ClassDef) and described:
            module = import_module(_module(path))
            members = _members(getattr(module, node.name))
            # scikit-learn sets it.
            missing += [f"{node.name}: {name}" for name in described - members - {"n_features_in_"}]
    assert missing == []


def test_examples_take_their_transformer_from_one_place() -> None:
    # One docstring shows how a model of transformers becomes a head; the others start from the head.
    builders = {
        place(path)
        for path in FILES
        if re.search(r"^ *>>> from transformers import", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert builders == {"attsvm_pretrained/heads/extract.py"}


def test_the_example_is_the_same_in_every_call_and_leaves_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    head, again = pretrained.example_head(), pretrained.example_head()
    assert np.array_equal(head.W, again.W)
    assert torch.equal(torch.rand(1), expected)
    with pytest.raises(ValueError, match=r"architecture is 'gru'; 'bert', 'gpt2' or 'llama' was expected\."):
        pretrained.example_model("gru")  # type: ignore[arg-type]
