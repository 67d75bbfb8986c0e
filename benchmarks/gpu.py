"""Times of an accelerator, compared with this machine's processor and with the bandwidth of its memory.

    python benchmarks/gpu.py [--device cuda] [--small] [--out benchmarks/GPU.md]

writes one file with the bandwidth of a copy, training of many trials at once, margins of all tokens under one W (as in
a pass over shards) in bytes of tokens per second, and exact attention compared with
torch.nn.functional.scaled_dot_product_attention: forward and backward, time and memory. Times are the least of up to
five runs, each with a synchronisation at its end. Everything also runs on the processor, and the tables have both.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attsvm import TokenData, __version__, train
from attsvm.functional import exact_attention

REPEATS, ENOUGH = 5, 3.0  # largest number of calls, and seconds after which no call starts
# Bytes of a copy, trials of size (6, 8, 10) and their steps, queries of 64 tokens in 64 dimensions, sequence lengths.
FULL = {"copy": 1 << 28, "trials": (100, 1000, 10_000, 100_000), "steps": 100, "queries": 20_000, "T": (512, 2048)}
SMALL = {"copy": 1 << 20, "trials": (10,), "steps": 3, "queries": 100, "T": (32,)}
BATCH, HEADS, WIDTH = 4, 16, 64

Rows = list[list[str]]


def seconds(call: Callable[[], object], device: str) -> float:
    """Return the least time of a call in seconds; the first call does not count."""
    call()
    durations: list[float] = []
    while len(durations) < REPEATS and sum(durations) < ENOUGH:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        durations.append(time.perf_counter() - start)
    return min(durations)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def memory(device: str, size: int) -> Rows:
    source = torch.ones(size // 8, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return [[device, f"{2 * size / seconds(lambda: target.copy_(source), device) / 1e9:.1f}"]]


def training(device: str, trials: int, steps: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(trials, 6, 8, 10, generator=generator, dtype=torch.float64).to(device)
    queries, labels = tokens[..., 0, :].contiguous(), torch.ones(trials, 6, dtype=torch.float64, device=device)
    data, head = TokenData(tokens, queries, labels), torch.ones(10, dtype=torch.float64, device=device)
    rows = []
    for backend in ("torch", "compiled") if device == "cpu" else ("torch",):
        durations = seconds(lambda way=backend: train(data, head, steps=steps, lr=0.1, backend=way), device)  # type: ignore[misc]
        rows.append([f"{trials:,}", f"{device}, {backend}", f"{trials * steps / durations:,.0f}"])
    return rows


def pricing(device: str, queries: int, dtype: torch.dtype) -> Rows:
    tokens = torch.randn(queries, 64, 64, dtype=dtype, device=device)
    z, W = torch.randn(queries, 64, dtype=dtype, device=device), torch.randn(64, 64, dtype=dtype, device=device)

    def margins() -> Tensor:
        scores = torch.matmul(tokens, (z @ W.T).unsqueeze(-1)).squeeze(-1)
        return scores[:, :1] - scores

    durations = seconds(margins, device)
    amount = tokens.numel() * tokens.element_size()
    return [[_name(dtype), device, f"{1e9 * durations / (queries * 63):.2f}", f"{amount / durations / 1e9:.1f}"]]


def attention(device: str, T: int, dtype: torch.dtype) -> Rows:
    rows = []
    for name, function in (("exact_attention", exact_attention), ("torch", scaled_dot_product_attention)):
        q, k, v = (
            torch.randn(BATCH, HEADS, T, WIDTH, dtype=dtype, device=device, requires_grad=True) for _ in range(3)
        )
        forward = seconds(lambda f=function, x=(q, k, v): f(*x), device)  # type: ignore[misc]
        both = seconds(lambda f=function, x=(q, k, v): f(*x).sum().backward(), device)  # type: ignore[misc]
        rows.append([f"{T}", _name(dtype), device, name, f"{1e3 * forward:.2f}", f"{1e3 * both:.2f}", "not counted"])
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            function(q, k, v).sum().backward()
            rows[-1][-1] = f"{(torch.cuda.max_memory_allocated() - before) / 1e6:.0f}"
    return rows


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def table(title: str, columns: Sequence[str], rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return f"## {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("GPU.md"))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("device is 'cuda', and torch finds no CUDA device; --device cpu was expected.", file=sys.stderr)
        return 2
    sizes = SMALL if options.small else FULL
    devices = list(dict.fromkeys(["cpu", options.device]))
    names = [torch.cuda.get_device_name()] if options.device == "cuda" else []
    command = sys.argv[1:] if arguments is None else arguments
    parts = [
        "# On an accelerator\n",
        f"`{shlex.join(['python', 'benchmarks/gpu.py', *command])}`, attsvm {__version__}, torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, Python {platform.python_version()}, "
        f"{', '.join([*names, platform.machine()])}, {torch.get_num_threads()} threads of the processor.\n",
        table(
            "Memory: a copy in float64",
            ["device", "GB/s"],
            [row for one in devices for row in memory(one, sizes["copy"])],
        ),
        table(
            "Training: trials of (6, 8, 10), float64",
            ["trials at once", "device, backend", "steps of a trial a second"],
            [row for count in sizes["trials"] for one in devices for row in training(one, count, sizes["steps"])],
        ),
        table(
            "Pricing: margins of 63 constraints a query, d = 64",
            ["dtype", "device", "ns a constraint", "GB of tokens a second"],
            [
                row
                for dtype in (torch.float64, torch.float32)
                for one in devices
                for row in pricing(one, sizes["queries"], dtype)
            ],
        ),
        table(
            f"Attention: {BATCH} x {HEADS} heads of width {WIDTH}",
            ["T", "dtype", "device", "function", "forward, ms", "forward and backward, ms", "peak, MB"],
            [
                row
                for T in sizes["T"]
                for dtype in (torch.float32, torch.bfloat16)
                for one in devices
                for row in attention(one, T, dtype)
            ],
        ),
    ]
    temporary = options.out.with_suffix(".partial")
    temporary.write_text("\n".join(parts), encoding="utf-8")
    temporary.replace(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
