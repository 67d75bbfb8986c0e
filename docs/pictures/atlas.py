"""Draw docs/pictures/atlas.png from the rows of a run.

attsvm reproduce atlas --out DIR; python docs/pictures/atlas.py DIR
"""

import io
import sys
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from attsvm.plots.style import as_png
from attsvm_paper.beyond.atlas import figure

rows = pq.read_table(Path(sys.argv[1]) / "atlas" / "rows.parquet").to_pylist()
image = Image.open(io.BytesIO(as_png(figure(rows)))).convert("RGB")
image.quantize(128).save(Path(__file__).with_suffix(".png"), optimize=True)
