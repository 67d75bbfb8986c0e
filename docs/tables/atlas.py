"""Print docs/tables/atlas.inc, how theorems and predictions fared, from the rows of a run.

attsvm reproduce atlas --out DIR; python docs/tables/atlas.py DIR > docs/tables/atlas.inc
"""

import sys
from pathlib import Path

import pyarrow.parquet as pq

from attsvm_paper.beyond.atlas import Cell, outcomes, scores
from attsvm_paper.beyond.atlas_cells import MODELS, expectations

KINDS = {"settled": "theorem", "slow": "theorem, at 1/log k"}


def cell_text(cell: Cell) -> str:
    """Write the interval of a limit; "1" is one itself, 1.0000 rounded."""
    low, high = cell.interval
    return f"{low:.4f} to {'1' if high == 1 else f'{high:.4f}'}"


NAMES = {
    "reaching 1": "a share tends to 1",
    "never 1": 'the baseline "never 1"',
    "all": 'all, "below 1" included',
}

table = list(outcomes(pq.read_table(Path(sys.argv[1]) / "atlas" / "rows.parquet").to_pylist()))
print("| model | prediction | hits | misses | undecided |")
print("|---|---|---:|---:|---:|")
for title, part in (("all", table), *((title, [one for one in table if one[0] == m]) for m, title in MODELS.items())):
    for key, score in scores(part).items():
        print(f"| {title} | {NAMES[key]} | {score.hits} | {score.misses} | {score.undecided} |")
print()
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
print("| model | optimiser | norm | shares at 100, 1,000 and 10,000 steps | limit, 95 % | expected |")
print("|---|---|---|---|---|---|")
for model, name in dict.fromkeys((model, name) for model, name, *_ in table):
    own = {norm: (cell, kind) for m, o, norm, cell, kind in table if (m, o) == (model, name)}
    expectation = expectations()[model, name]
    for norm in dict.fromkeys([expectation.norm or None, max(own, key=lambda norm: own[norm][0].shares[:, -1].mean())]):
        if norm is not None:
            cell, kind = own[norm]
            course = ", ".join(f"{share:.3f}" for share in cell.shares.mean(0)[::2])
            text = f"{'1' if norm == expectation.norm else 'below 1'} ({KINDS.get(kind, kind)})"
            print(f"| {MODELS[model]} | {name} | {norm} | {course} | {cell_text(cell)} | {text} |")
