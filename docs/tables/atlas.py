"""Print docs/tables/atlas.inc, how theorems and predictions fared, from the rows of a run.

attsvm reproduce atlas --out DIR; python docs/tables/atlas.py DIR > docs/tables/atlas.inc
"""

import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from attsvm.experiments.beyond.atlas import Cell, outcomes
from attsvm.experiments.beyond.atlas_cells import MODELS, expectations

KINDS = {"settled": "theorem", "slow": "theorem, at 1/log k"}


def cell_text(cell: Cell) -> str:
    """Write the interval of a limit; "1" is one itself, 1.0000 rounded."""
    low, high = cell.interval
    return f"{low:.4f} to {'1' if high == 1 else f'{high:.4f}'}"


table = list(outcomes(pq.read_table(Path(sys.argv[1]) / "atlas" / "rows.parquet").to_pylist()))
print(
    "| model | optimiser | norm of the theorem | limit, 95 % | other norms that exclude 1; the nearest | that do not |"
)
print("|---|---|---|---|---|---|")
for model, name, norm, cell, kind in table:
    if kind in KINDS:
        others = {other: one for m, o, other, one, _ in table if (m, o) == (model, name) and other != norm}
        excluded = [other for other, one in others.items() if one.interval[1] < 1]
        text = f"{len(excluded)} of {len(others)}"
        if excluded:
            nearest = max(excluded, key=lambda other: others[other].interval[1])
            text += f"; {nearest}, {cell_text(others[nearest])}"
        rest = ", ".join(other for other in others if other not in excluded) or "none"
        print(f"| {MODELS[model]} | {name} | {norm} | {cell_text(cell)} | {text} | {rest} |")
print()
print("| model | optimiser | norm | shares at the three horizons | limit, 95 % | by the three alone | expected |")
print("|---|---|---|---|---|---|---|")
for model, name in dict.fromkeys((model, name) for model, name, *_ in table):
    own = {norm: (cell, kind) for m, o, norm, cell, kind in table if (m, o) == (model, name)}
    expectation = expectations()[model, name]
    for norm in dict.fromkeys([expectation.norm or None, max(own, key=lambda norm: own[norm][0].shares[:, -1].mean())]):
        if norm is not None:
            cell, kind = own[norm]
            course = ", ".join(f"{share:.3f}" for share in cell.shares.mean(0))
            text = f"{'1' if norm == expectation.norm else 'below 1'} ({KINDS.get(kind, kind)})"
            decides = f"{cell.low:.3f} to {cell.high:.3f}"
            print(f"| {MODELS[model]} | {name} | {norm} | {course} | {cell_text(cell)} | {decides} | {text} |")
print()
for model in MODELS:
    count = Counter(kind for where, *_, kind in table if where == model)
    print(f"* {MODELS[model]}: {count['hit']} hits, {count['miss']} misses, {count['undecided']} undecided of "
          f"{count['hit'] + count['miss'] + count['undecided']} open cells.")  # fmt: skip
