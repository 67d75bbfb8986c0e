"""Public names of a package that load their module on first use (PEP 562)."""

from __future__ import annotations

from importlib import import_module

# Type checkers know this name. Importing typing would double the start-up time, in which Ctrl-C prints a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Parameters
    ----------
    package : str
        Its name.
    homes : mapping of str to tuple of str
        Public names by the module that defines them; the package's own name stands for its submodules.
    extra : str, optional
        The extra that all names need, see :func:`attsvm.platform.extras.missing_extra`.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from attsvm.platform.extras import extra_for

        with extra_for(f"{package}.{name}", extra):
            module = import_module(f"{package}.{name}" if home == package else home)
        value = module if home == package else getattr(module, name)
        setattr(import_module(package), name, value)
        return value

    names = list(home_of)
    return load, lambda: names, names
