"""Add the defaults of a signature to the parameters that its docstring lists."""

import inspect
import re

from sphinx.application import Sphinx

# A line "name : type" of a numpydoc section.
PARAMETER = re.compile(r"(?P<names>\w+(?:, \w+)*) : (?P<type>.+)")
UNDERLINE = re.compile(r"-{3,}")
# Before numpydoc, which turns the sections into field lists.
BEFORE_NUMPYDOC = 400


def with_defaults(lines: list[str], signature: inspect.Signature) -> list[str]:
    """Return the lines of a docstring with ", default X" behind the type of each parameter that has a default.

    None is left out, because the text says what it stands for.
    """
    section, output = "", []
    for k, line in enumerate(lines):
        if k + 1 < len(lines) and UNDERLINE.fullmatch(lines[k + 1].strip()):
            section = line.strip()
        match = PARAMETER.fullmatch(line) if section == "Parameters" else None
        if match is not None and "default" not in match["type"]:
            parameters = [signature.parameters.get(name) for name in match["names"].split(", ")]
            defaults = {repr(one.default) for one in parameters if one is not None and one.default is not one.empty}
            if len(defaults) == 1 and defaults != {"None"}:
                line = f"{line.removesuffix(', optional')}, default {_readable(defaults.pop())}"
        output.append(line)
    return output


def _readable(default: str) -> str:
    """Write <Status.OPTIMAL: 1> as Status.OPTIMAL; other values as Python does."""
    return re.sub(r"<(\w+\.\w+): .*>", r"\1", default)


def _extend(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    if callable(documented):
        try:
            lines[:] = with_defaults(lines, inspect.signature(documented))
        except (TypeError, ValueError):  # some classes of other libraries have no signature
            return


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("autodoc-process-docstring", _extend, priority=BEFORE_NUMPYDOC)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
