"""Write docs/tables/grokking.inc, every cell of the grokking experiment, and print what normalised margins explain.

attsvm reproduce grokking --full --out DIR; python docs/tables/grokking.py DIR
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from attsvm_paper.beyond.grokking import FIELDS
from attsvm_paper.judging.grouping import by, column
from attsvm_paper.judging.statistics import bootstrap_interval, wilson_interval

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
    margin, loss_share = float(np.median(column(cell, "last_margin"))), column(cell, "last_lost").mean()
    entries = (one["p"], optimiser, one["loss"], one["precision"], f"{one['steps']:,}", share, accuracy)
    lines.append(f"| {' | '.join(map(str, entries))} | {margin:,.3g} | {loss_share:.3f} |")
Path(__file__).with_suffix(".inc").write_text("\n".join(lines) + "\n", encoding="utf-8")

# Whether the normalised margin at the end explains the accuracy at the end: of models of the small size by its range,
# and within the cells, by rank.
small = [row for row in rows if row["p"] == 23]
for low, high in ((1e-4, 1.6e-4), (2e-4, np.inf)):
    accuracies = [row["last_test"] for row in small if low < row["last_normalised"] < high]
    print(f"{len(accuracies)} models, {low:g} to {high:g}: {min(accuracies):.2f} to {max(accuracies):.2f}")
ranks = [
    spearmanr(column(cell, "last_normalised"), column(cell, "last_test")).statistic
    for cell in by(small, *FIELDS).values()
    if np.ptp(column(cell, "last_test")) > 0
]
print(
    f"rank correlation within {len(ranks)} cells: {min(ranks):.2f} to {max(ranks):.2f}, median {np.median(ranks):.2f}"
)
for loss in ("exact", "stablemax"):
    cell = [
        row for row in small if (row["loss"], row["precision"], row["optimiser"]) == (loss, "float32", "normalised")
    ]
    mean, margin = column(cell, "last_test").mean(), np.median(column(cell, "last_normalised"))
    print(f"{loss}, float32, normalised: {mean:.2f} at {margin:.2g}")
