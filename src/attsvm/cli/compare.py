"""`attsvm compare`: two studies on one page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from attsvm.cli.console import BadInput, Exit, check_writable, refusing
from attsvm.platform.files import locked
from attsvm.study.comparison import compare as compared
from attsvm.study.comparison import read_record


def compare(first: Path, second: Path, /, *, out: Path = Path("attsvm-compare")) -> int:
    """Compare two studies: settings that differ, claims, numbers with intervals, curves.

    Writes compare.html and compare.json, replacing an earlier comparison there. Differences are second minus first.

    Parameters
    ----------
    first
        A directory written by `attsvm study`.
    second
        Another such directory.
    out
        The directory to write.
    """
    with refusing():
        if first.resolve() == second.resolve():
            raise BadInput(f"{first} and {second} are one directory; two studies were expected.")
        comparison = compared(read_record(first), read_record(second))
    check_writable(out, directory=True)
    with refusing(values=False), locked(out, wait=True):
        from attsvm.report.comparison import letters, write_comparison

        page = write_comparison(comparison, out, shlex.join(["attsvm", *sys.argv[1:]]))
    names = letters(comparison)
    for name, record in zip(names, (comparison.first, comparison.second), strict=True):
        print(f"{name}: {record.content['headline']}")
    for caution in comparison.cautions:
        print(f"  ! {caution}")
    for setting, one, two in comparison.settings:
        print(f"  {setting}: {_text(one)} against {_text(two)}")
    for rows in comparison.tables.values():
        for row in rows:
            if row.differs:
                print(f"  {row.label}: {row.first} against {row.second}; difference {row.difference}")
    changes = sum(claim.changed for claim in comparison.claims)
    print(f"  {changes} of {len(comparison.claims)} claims are answered differently.")
    print(f"Page: {page}")
    return Exit.DONE


def _text(value: object) -> str:
    return "default" if value is None else str(value)
