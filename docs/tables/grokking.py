"""Write docs/tables/grokking.inc, every cell of the grokking experiment.

attsvm reproduce grokking --full --out DIR; python docs/tables/grokking.py DIR
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from attsvm.experiments.beyond.grokking import FIELDS
from attsvm.experiments.grouping import by, column
from attsvm.experiments.statistics import bootstrap_interval, wilson_interval

rows = pq.read_table(Path(sys.argv[1]) / "grokking" / "rows.parquet").to_pylist()
lines = [
    "| p | optimiser | loss | precision | steps | reach 95 % | best accuracy | least margin | zero gradients |",
    "|---:|---|---|---|---:|---:|---:|---:|---:|",
]
for cell in sorted(by(rows, *FIELDS).values(), key=lambda cell: cell[0]["p"]):
    one, best = cell[0], column(cell, "best")
    optimiser = f"{one['optimiser']}, {one['lr']:g}"
    optimiser += f", decay {one['decay']:g}" if one["decay"] else ""
    optimiser += f", epsilon {one['epsilon']:g}" if one["epsilon"] > 1e-25 else ""
    hits = sum(row["generalised"] for row in cell)
    low, high = wilson_interval(hits, len(cell))
    share = f"{hits} of {len(cell)}"
    accuracy = f"{best.mean():.3f}"
    if len(cell) > 1:
        share += f" ({low:.2f} to {high:.2f})"
        accuracy += " ({:.3f} to {:.3f})".format(*bootstrap_interval(best))
    margin, lost = float(np.median(column(cell, "last_margin"))), column(cell, "last_lost").mean()
    entries = (one["p"], optimiser, one["loss"], one["precision"], f"{one['steps']:,}", share, accuracy)
    lines.append(f"| {' | '.join(map(str, entries))} | {margin:,.3g} | {lost:.3f} |")
Path(__file__).with_suffix(".inc").write_text("\n".join(lines) + "\n", encoding="utf-8")
