"""Speed and accuracy of attsvm.train, compared with the published training loop.

    python benchmarks/training_speed.py [--long]        prints the tables and writes docs/tables/training.inc

The published loop repeats the convergence experiment of the official code of arXiv 2308.16898, one trial at a time,
with all its records; see `published_loop`. All loops run in float64 on one thread. Only in the last column the compiled
loop spreads its trials over the processors. Times are the least of five alternating runs. The script takes about three
minutes, and ten with --long, which adds rows after 1e5 steps.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.data.synthetic import random_data

# n, T, d, trials, steps of each batched run, steps of the published loop
SIZES: tuple[tuple[int, int, int, int, int, int], ...] = ((6, 8, 10, 100, 500, 300), (100, 32, 64, 10, 10, 20))
SEEDS = 20
SPREAD = f"compiled, {os.cpu_count()} threads"


class PublishedAttention(torch.nn.Module):
    """Attention of the published experiments: bias-free Linear maps, softmax, identity values, a vector v."""

    def __init__(self, v: torch.Tensor, factored: bool) -> None:
        super().__init__()
        d = len(v)
        self.key = torch.nn.Linear(d, d, bias=False, dtype=torch.float64)
        self.query = torch.nn.Linear(d, d, bias=False, dtype=torch.float64) if factored else None
        self.value = torch.nn.Identity()
        self.v = torch.nn.Parameter(v)  # autograd differentiates it too; the optimiser does not change it

    def forward(self, tokens: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        query_rows = queries.unsqueeze(1)  # (n, 1, d)
        if self.query is not None:
            query_rows = self.query(query_rows)
        self.probabilities = torch.softmax(query_rows @ self.key(tokens).transpose(-2, -1), -1)  # (n, 1, T)
        return (self.probabilities @ self.value(tokens) @ self.v).squeeze(-1)


def published_loop(tokens, queries, labels, v, steps: int, factored: bool) -> np.ndarray:
    """Train one trial as the official code does, and return the recorded correlations with two reference matrices.

    A step has a forward pass and autograd's backward pass of log(1 + exp(-Y f)); for factors, 2.2e-16 (|K|^2 + |Q|^2)
    is added. The gradient of each matrix is divided by its norm plus 2.2e-16, and torch.optim.SGD takes a step with
    rate 0.1. Records for the figures are W (for factors their product), the mean over sequences of the largest
    probability, and the tokens with the most attention. After the last step every W is normalised and multiplied with
    the two SVM solutions. Solving the SVMs is not part of this loop.
    """
    d, tiny = len(v), torch.finfo(torch.float64).eps
    model = PublishedAttention(v, factored)
    weights = [model.key.weight] if model.query is None else [model.key.weight, model.query.weight]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    path, attention = np.zeros((steps, d, d)), np.zeros(steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.log(1 + torch.exp(-labels * model(tokens, queries))).mean()
        if factored:
            loss = loss + tiny * sum(weight.norm() ** 2 for weight in weights)
        loss.backward()
        for weight in weights:
            assert weight.grad is not None
            weight.grad /= weight.grad.norm() + tiny
        optimizer.step()
        W = model.key.weight.detach().T
        if model.query is not None:
            W = W @ model.query.weight.detach()
        highest, _selected = model.probabilities.detach().max(-1)
        attention[step] = highest.mean()
        path[step] = W.numpy()
    references = [np.eye(d) / d**0.5, np.ones((d, d)) / d]  # their values do not affect the time
    correlations = np.zeros((2, steps))
    for step in range(steps):
        unit = path[step] / np.linalg.norm(path[step])
        for row, reference in enumerate(references):
            correlations[row, step] = reference.reshape(-1).dot(unit.reshape(-1))
    return correlations


def best_of(runs: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Return seconds of each run, the least of `repeats`; runs alternate, so that a busy moment affects all."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def spread(run: Callable[[], object]) -> None:
    """Run on one thread per processor."""
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        run()
    finally:
        torch.set_num_threads(1)


def rates(n: int, T: int, d: int, trials: int, steps: int, few: int, parameterization: str) -> dict[str, float]:
    """Return trial-iterations per second of the published loop, the tensor loop and the compiled loop."""
    data, v = random_data(trials, n, T, d)
    tokens, queries, labels, vector = (torch.as_tensor(a[0]) for a in (data.tokens, data.queries, data.labels, v))

    def ours(backend: str, count: int = steps) -> None:
        train(data, v, steps=count, parameterization=parameterization, backend=backend)

    for backend in ("torch", "compiled"):
        ours(backend, 2)
    seconds = best_of(
        {
            "published": lambda: published_loop(tokens, queries, labels, vector, few, parameterization == "KQ"),
            "torch": lambda: ours("torch"),
            "compiled": lambda: ours("compiled"),
            SPREAD: lambda: spread(lambda: ours("compiled")),
        }
    )
    return {name: (few if name == "published" else trials * steps) / value for name, value in seconds.items()}


def speed() -> list[tuple]:
    """Return rows of size, parameterisation and rates."""
    return [(size[:3], kind, rates(*size, kind)) for size in SIZES for kind in ("W", "KQ")]


def accuracy(long: bool) -> list[tuple]:
    """Return medians over seeds of 1 - correlation with the SVM of the realised tokens, by method and steps."""
    data, v = random_data(SEEDS, 6, 8, 10, gap=0.1)
    runs = [
        ("W, normalised GD, autograd", "frobenius", {"numerics": "autograd"}),
        ("W, normalised GD, exact", "frobenius", {}),
        ("W, momentum, exact", "frobenius", {"optimizer": "momentum"}),
        ("W, Polyak, exact", "frobenius", {"optimizer": "polyak"}),
        ("W, Adam, exact", "frobenius", {"optimizer": "adam"}),
        (
            "(K, Q), normalised separately",
            "nuclear",
            {"parameterization": "KQ", "optimizer": "separately_normalized_gd"},
        ),
        ("(K, Q), normalised jointly", "nuclear", {"parameterization": "KQ"}),
    ]
    counts = [100, 1000, 10_000] + ([100_000] if long else [])
    rows = []
    for name, norm, options in runs:
        trace = train(data, v, steps=counts[-1], record_every=counts, **options)
        errors = []
        for r in range(1, len(trace.step)):
            logits = np.einsum("bntd,bde,bne->bnt", data.tokens, trace.W[:, r], data.queries)
            problems = (SelectionProblem(data.tokens[j], data.queries[j], logits[j].argmax(-1)) for j in range(SEEDS))
            solutions = [solve(problem, norm, tol=1e-12) for problem in problems]
            solvable = [j for j, s in enumerate(solutions) if s.status.name == "OPTIMAL"]
            errors.append(np.median([1 - correlation(trace.W[j, r], solutions[j].W) for j in solvable]))
        rows.append((name, counts, errors))
    return rows


def markdown(rates: list[tuple], errors: list[tuple]) -> str:
    ours = ("torch", "compiled", SPREAD)
    lines = [
        f"Trial-iterations per second, float64, one thread by default, {platform.machine()} CPU; factor in brackets.",
        "",
        f"| n, T, d | parameters | published loop | {' | '.join(ours)} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for size, parameterization, rate in rates:
        base = rate["published"]
        cells = " | ".join(f"{rate[b]:,.0f} ({rate[b] / base:.0f}x)" for b in ours)
        lines.append(f"| {', '.join(map(str, size))} | {parameterization} | {base:,.0f} | {cells} |")
    counts = errors[0][1]
    lines += [
        "",
        f"1 - correlation with the SVM of the tokens selected at that step, median of {SEEDS} seeds, (6, 8, 10).",
        "",
        "| method | " + " | ".join(f"{c:,} steps" for c in counts) + " |",
        "|---|" + "---:|" * len(counts),
    ]
    lines += [f"| {name} | " + " | ".join(f"{e:.1e}" for e in values) + " |" for name, _, values in errors]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true")
    torch.set_num_threads(1)
    text = markdown(speed(), accuracy(parser.parse_args().long))
    print(text)
    target = Path(__file__).parents[1] / "docs" / "tables" / "training.inc"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
