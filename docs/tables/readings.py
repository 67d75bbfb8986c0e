"""Print docs/tables/readings.inc, the readings of every figure's protocol, from what --explain has written.

attsvm reproduce --explain --out DIR; python docs/tables/readings.py DIR > docs/tables/readings.inc
"""

import sys
from pathlib import Path

from attsvm_paper import registry
from attsvm_paper.report.finished import read_explanation
from attsvm_paper.report.tally import by_figure, number

print("| figure | readings searched | agree | likeliest reading | p | chance |")
print("|---|---:|---:|---|---:|---:|")
for name in registry.FIGURES:
    for figure, readings in by_figure(read_explanation(Path(sys.argv[1]) / name)).items():
        agree = sum(one["verdict"] == "agrees" for one in readings)
        choices = ", ".join(f"{factor} {choice}" for factor, choice in readings[0]["factors"].items())
        p, chance = (number(readings[0][key]).replace("−", "-") for key in ("p", "chance"))
        title = figure.removeprefix("Figs ").removeprefix("Fig. ")
        print(f"| {title} | {len(readings)} | {agree} | {choices} | {p} | {chance} |")
