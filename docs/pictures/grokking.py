"""Draw docs/pictures/grokking-light.png and grokking-dark.png from the rows of a run.

attsvm reproduce grokking --full --out DIR; python docs/pictures/grokking.py DIR
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from attsvm.plots.style import as_png
from attsvm_paper.beyond.grokking_figure import figure

rows = pq.read_table(Path(sys.argv[1]) / "grokking" / "rows.parquet").to_pylist()
light = Image.open(io.BytesIO(as_png(figure(rows)))).convert("RGB")
# The same picture on the page's dark ground (19, 20, 22): lightness is turned over and hue is kept.
shares = np.asarray(light, dtype=float) / 255
mixtures = 1 - shares.max(-1, keepdims=True) - shares.min(-1, keepdims=True) + shares
ground = np.array([19, 20, 22]) / 255
dark = Image.fromarray(np.round(255 * (ground + (1 - ground) * mixtures.clip(0, 1))).astype(np.uint8))
for image, scheme in ((light, "light"), (dark, "dark")):
    image.quantize(96).save(Path(__file__).with_name(f"grokking-{scheme}.png"), optimize=True)
