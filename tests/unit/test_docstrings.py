"""Every public callable shows its use, and what it shows is what happens."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import attsvm

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(attsvm.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


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
    # Events that transformers' Trainer calls, and a norm's bound in an arithmetic that only proofs have.
    called_by_others = re.compile(r".*\.on_\w+|.*\.Norm\.exact_bound")
    without = [name for name, value in methods.items() if not _shows(value) and not called_by_others.fullmatch(name)]
    assert without == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    module = import_module(name.removesuffix(".__init__"))
    assert isinstance(module, ModuleType)
    results = doctest.testmod(module, verbose=False)
    assert results.failed == 0
