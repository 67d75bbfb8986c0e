"""Processor time, wall time and peak memory of `attsvm inspect` on a model of a given size.

    OMP_NUM_THREADS=1 python inspection.py stories     # 8 layers, 8 heads, 40 texts of 256 tokens
    python inspection.py billion                       # 1.04 billion weights, 100 texts of 1024 tokens: 1.5 hours
    python inspection.py quick                         # seconds

The model is a Llama with rotary positions and random weights; texts are random words with Zipf's frequencies. A line of
costs comes first, then the output of `inspect`. --set layers=4 inspected=0-1 changes a size; --keep keeps the model;
--device cuda runs it on a GPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers


@dataclass(frozen=True)
class Size:
    """A model, its texts, and the options of `inspect`."""

    layers: int
    heads: int
    key_heads: int
    width: int
    inner: int
    words: int
    texts: int
    tokens: int
    dtype: str = "float32"
    inspected: str = ""
    memory: float = 2.0


SIZES = {
    "quick": Size(2, 2, 2, 16, 16, 50, texts=4, tokens=12),
    "stories": Size(8, 8, 8, 512, 1376, 30_000, texts=40, tokens=256),
    "billion": Size(16, 32, 8, 2048, 8192, 32_000, texts=100, tokens=1024, dtype="bfloat16"),
}


def write_model(size: Size, folder: Path) -> int:
    """Save a model with random weights and its tokenizer; returns how many weights it has."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size.words,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=size.tokens,
    )
    model = transformers.AutoModel.from_config(config, dtype=getattr(torch, size.dtype))
    model.save_pretrained(folder)
    words = models.WordLevel({"[UNK]": 0, **{f"w{k}": k for k in range(1, size.words)}}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[UNK]", model_max_length=size.tokens
    ).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_texts(size: Size, file: Path) -> None:
    """Write texts of random words, the k-th most frequent with frequency 1 / k."""
    rng = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, size.words)
    words = 1 + rng.choice(size.words - 1, (size.texts, size.tokens), p=shares / shares.sum())
    file.write_text("\n".join(" ".join(f"w{k}" for k in text) for text in words) + "\n", encoding="utf-8")


def measure(size: Size, folder: Path, device: str) -> str:
    """Make the model, inspect it in a separate process, and print the costs."""
    weights = write_model(size, folder / "model")
    write_texts(size, folder / "texts.txt")
    command = [sys.executable, "-c", "import sys; from attsvm.cli import main; sys.exit(main())", "inspect"]
    command += [folder / "model", "--text", folder / "texts.txt", "--out", folder / "report"]
    command += ["--memory", size.memory, "--dtype", size.dtype, "--device", device]
    command += ["--layers", size.inspected] if size.inspected else []
    start = time.perf_counter()
    run = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    wall, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        f"{weights / 1e6:.3g} million weights, {size.texts} texts of {size.tokens} tokens: "
        f"{usage.ru_utime + usage.ru_stime:.0f} s of processor time, {wall:.0f} s on {os.cpu_count()} cores, "
        f"at most {usage.ru_maxrss / 2**20:.2f} GiB\n{run.stdout}"
    )


def main() -> None:
    """Measure the named size."""
    parser = argparse.ArgumentParser(description="Measure what `attsvm inspect` takes.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    size = SIZES[options.size]
    for assignment in options.set:
        name, _, value = assignment.partition("=")
        size = replace(size, **{name: type(getattr(size, name))(value)})
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        print(measure(size, options.keep, options.device), end="")
        return
    with tempfile.TemporaryDirectory() as folder:
        print(measure(size, Path(folder), options.device), end="")


if __name__ == "__main__":
    main()
