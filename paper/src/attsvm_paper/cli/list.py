"""`attsvm list`: list the experiments."""

from __future__ import annotations

from shutil import get_terminal_size
from textwrap import indent, wrap

from attsvm.cli.console import Exit
from attsvm_paper import registry


def list_experiments() -> int:
    """List the experiments: name, figure, minutes (quick / full) on two cores, and the claim."""
    width = max(get_terminal_size((100, 24)).columns, 60)
    for title, listings in (("Published figures", registry.FIGURES), ("Beyond the paper", registry.BEYOND)):
        if listings:
            print(f"{title}  (minutes quick / full, on two cores)")
        for name, one in listings.items():
            minutes = f"{one.minutes['quick']:.2g} / {one.minutes['full']:.2g} min"
            print(f"  {name:22}{one.source:28}{minutes}")
            print(indent("\n".join(wrap(one.claim, width - 4)), "    "))
    return Exit.DONE
