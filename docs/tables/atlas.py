"""Print docs/tables/atlas.inc, how theorems and predictions fared, from the rows of a run.

attsvm reproduce atlas --out DIR; python docs/tables/atlas.py DIR > docs/tables/atlas.inc
"""

import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from attsvm.experiments.beyond.atlas import judged
from attsvm.experiments.beyond.atlas_cells import MODELS, expectations

KINDS = {"settled": "theorem", "slow": "theorem, at 1/log k"}

table = list(judged(pq.read_table(Path(sys.argv[1]) / "atlas" / "rows.parquet").to_pylist()))
print("| model | optimiser | norm | shares at the three horizons | limit, 95 % | expected |\n|---|---|---|---|---|---|")
for model, name in dict.fromkeys((model, name) for model, name, *_ in table):
    own = {norm: (cell, kind) for m, o, norm, cell, kind in table if (m, o) == (model, name)}
    known = expectations()[model, name]
    for norm in dict.fromkeys([known.norm or None, max(own, key=lambda norm: own[norm][0].shares[:, -1].mean())]):
        if norm is not None:
            cell, kind = own[norm]
            course = ", ".join(f"{share:.3f}" for share in cell.shares.mean(0))
            said = f"{'1' if norm == known.norm else 'below 1'} ({KINDS.get(kind, kind)})"
            print(f"| {MODELS[model]} | {name} | {norm} | {course} | {cell.low:.3f} to {cell.high:.3f} | {said} |")
print()
for model in MODELS:
    count = Counter(kind for where, *_, kind in table if where == model)
    print(f"* {MODELS[model]}: {count['hit']} hits, {count['miss']} misses, {count['undecided']} undecided of "
          f"{count['hit'] + count['miss'] + count['undecided']} open cells.")  # fmt: skip
