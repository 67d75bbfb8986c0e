"""Errors and cost of attsvm.functional, compared with torch's softmax, attention and cross-entropy.

    python benchmarks/functional_accuracy.py            prints the tables and writes docs/tables/functional.inc

The gradient of attention in the query, and of cross-entropy in the logits, is compared with 700-digit arithmetic on the
same rounded inputs. Errors are medians over draws of the relative error in the Euclidean norm. The margin is the score
of the top key minus the second. About one minute.
"""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path

import mpmath as mp
import numpy as np
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from attsvm.functional import exact_attention, exact_cross_entropy

KEYS, WIDTH = 16, 8
MARGINS = (0, 5, 10, 15, 20, 34, 50, 80, 200, 400, 600)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}


def explicit(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


ATTENTION = {
    "softmax": explicit,
    "SDPA": lambda q, k, v: scaled_dot_product_attention(q, k, v, scale=1.0),
    "exact_attention": lambda q, k, v: exact_attention(q, k, v, scale=1.0),
}
CROSS_ENTROPY = {"cross_entropy": cross_entropy, "exact_cross_entropy": exact_cross_entropy}


def instance(margin: float, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    """Draw a query, keys, values and a direction; the first two scores q.k differ by `margin`."""
    rng = np.random.default_rng(seed)
    keys, values = rng.standard_normal((KEYS, WIDTH)), rng.standard_normal((KEYS, WIDTH))
    query = rng.standard_normal(WIDTH)
    order = np.sort(keys @ query)
    query *= margin / (order[-1] - order[-2]) if margin else 0
    direction = rng.standard_normal(WIDTH)
    return tuple(torch.as_tensor(a).to(dtype) for a in (query[None], keys, values, direction[None]))


def _exact(tensor: torch.Tensor) -> list:
    flat = tensor.double().numpy()
    return np.vectorize(mp.mpf, otypes=[object])(flat)


def attention_reference(query, keys, values, direction) -> np.ndarray:
    """Return the gradient of direction . output with respect to the query."""
    q, K, V, g = (_exact(a) for a in (query[0], keys, values, direction[0]))
    scores = K @ q
    weights = np.array([mp.exp(s - max(scores)) for s in scores])
    P = weights / weights.sum()
    D = V @ g
    return (P * (D - P @ D)) @ K


def cross_entropy_reference(logits, target: int) -> np.ndarray:
    a = _exact(logits[0])
    weights = np.array([mp.exp(s - max(a)) for s in a])
    P = weights / weights.sum()
    P[target] = -sum(P[j] for j in range(len(P)) if j != target)
    return P


def relative_error(value: torch.Tensor, reference: np.ndarray) -> float:
    difference = _exact(value) - reference
    return float(mp.norm(list(difference)) / mp.norm(list(reference)))


def errors(margins=MARGINS, dtypes=DTYPES, draws: int = 15) -> dict[tuple[str, torch.dtype, float], float]:
    """Return median relative gradient errors by method, dtype and margin."""
    table: dict[tuple[str, torch.dtype, float], list[float]] = {}
    with mp.workdps(700):
        for dtype in dtypes:
            for margin in margins:
                for seed in range(draws):
                    query, keys, values, direction = instance(margin, dtype, seed)
                    query.requires_grad_()
                    reference = attention_reference(query.detach(), keys, values, direction)
                    for name, method in ATTENTION.items():
                        output = method(query[None, None], keys[None, None], values[None, None])
                        (grad,) = torch.autograd.grad((output * direction).sum(), query)
                        table.setdefault((name, dtype, margin), []).append(relative_error(grad[0], reference))
                    logits = (query.detach() @ keys.mT).requires_grad_()
                    target = int(logits.argmax())
                    reference = cross_entropy_reference(logits.detach(), target)
                    for name, method in CROSS_ENTROPY.items():
                        (grad,) = torch.autograd.grad(method(logits, torch.tensor([target])), logits)
                        table.setdefault((name, dtype, margin), []).append(relative_error(grad[0], reference))
    return {key: float(np.median(values)) for key, values in table.items()}


def cost(shapes=((8, 8, 128, 64), (1, 8, 1024, 64), (1, 2, 4096, 64)), repeats: int = 5) -> list[tuple]:
    """Return seconds of forward and backward in float32, the least of `repeats`, by (batch, heads, length, width)."""
    rows = []
    for shape in shapes:
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        seconds = {}
        for name, method in ATTENTION.items():
            best = math.inf
            for _ in range(repeats):
                start = time.perf_counter()
                torch.autograd.grad(method(q * 0.125, k, v).sum(), (q, k, v))
                best = min(best, time.perf_counter() - start)
            seconds[name] = best
        rows.append((shape, seconds))
    return rows


def markdown(table: dict, rows: list[tuple]) -> str:
    names = [*ATTENTION, *CROSS_ENTROPY]
    lines = ["Median relative gradient error against 700-digit arithmetic.", ""]
    for dtype in DTYPES:
        lines += [
            f"**{str(dtype).removeprefix('torch.')}**",
            "",
            "| margin | " + " | ".join(names) + " |",
            "|---:|" + "---:|" * len(names),
        ]
        for margin in MARGINS:
            cells = [f"{table[name, dtype, margin]:.0e}" for name in names]
            lines.append(f"| {margin} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += [
        f"Seconds for forward and backward, float32, {torch.get_num_threads()} thread(s), {platform.machine()} CPU.",
        "",
        "| batch, heads, length, width | " + " | ".join(ATTENTION) + " |",
        "|---|" + "---:|" * len(ATTENTION),
    ]
    for shape, seconds in rows:
        lines.append(f"| {', '.join(map(str, shape))} | " + " | ".join(f"{seconds[n]:.4f}" for n in ATTENTION) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = markdown(errors(), cost())
    print(text)
    target = Path(__file__).parents[1] / "docs" / "tables" / "functional.inc"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
