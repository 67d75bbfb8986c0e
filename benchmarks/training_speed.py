"""Speed and accuracy of attsvm.train beside the published training loop.

    python benchmarks/training_speed.py [--long]        prints the tables and writes docs/tables/training.inc

The published loop is written out from its description (arXiv 2308.16898, Section 3 and its experiments): one
trial at a time, torch modules for the query and key maps in float64, autograd through softmax, the gradient of each
matrix divided by its norm, learning rate 0.1. Times are the best of three. About two minutes; with --long ten, for the
rows after 1e5 steps.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.data.synthetic import random_data

# n, T, d, trials, steps of each batched run, steps of the published loop
SIZES = ((6, 8, 10, 100, 500, 300), (100, 32, 64, 10, 10, 20))
SEEDS = 20


def published_loop(tokens, queries, labels, v, steps: int, factored: bool) -> None:
    """Normalised gradient descent as the official code does it, keeping loss, weights and attention of every step."""
    d = tokens.shape[-1]
    key = torch.nn.Linear(d, d, bias=False, dtype=torch.float64)
    query = torch.nn.Linear(d, d, bias=False, dtype=torch.float64) if factored else torch.nn.Identity()
    parameters = [*key.parameters(), *query.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses, weights, attention = [], [], []
    for _ in range(steps):
        optimizer.zero_grad()
        asked = query(queries).unsqueeze(-1)  # (n, m, 1)
        probabilities = torch.softmax((key(tokens) @ asked).squeeze(-1), -1)  # (n, T)
        output = (probabilities.unsqueeze(1) @ tokens).squeeze(1)
        loss = torch.log(1 + torch.exp(-labels * (output @ v))).mean()
        loss.backward()
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= parameter.grad.norm()
        losses.append(loss.item())
        attention.append(probabilities.detach().numpy().copy())
        weights.append([parameter.detach().numpy().copy() for parameter in parameters])
        optimizer.step()


def best_of(function, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def rates(n: int, T: int, d: int, trials: int, steps: int, few: int, parameterization: str) -> dict[str, float]:
    """Trial-iterations a second of the published loop, the tensor loop and the compiled loop."""
    data, v = random_data(trials, n, T, d)
    one = [torch.as_tensor(a[0]) for a in (data.tokens, data.queries, data.labels, v)]
    found = {"published": few / best_of(lambda: published_loop(*one, few, parameterization == "KQ"))}
    for backend in ("torch", "compiled"):
        train(data, v, steps=2, parameterization=parameterization, backend=backend)
        seconds = best_of(lambda b=backend: train(data, v, steps=steps, parameterization=parameterization, backend=b))
        found[backend] = trials * steps / seconds
    return found


def speed() -> list[tuple]:
    """Rows of size, parameterisation and rates."""
    return [(size[:3], kind, rates(*size, kind)) for size in SIZES for kind in ("W", "KQ")]


def accuracy(long: bool) -> list[tuple]:
    """Median over seeds of 1 - correlation with the SVM of the realised tokens, by method and steps."""
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
            solved = [j for j, s in enumerate(solutions) if s.status.name == "OPTIMAL"]
            errors.append(np.median([1 - correlation(trace.W[j, r], solutions[j].W) for j in solved]))
        rows.append((name, counts, errors))
    return rows


def markdown(rates: list[tuple], errors: list[tuple]) -> str:
    threads = torch.get_num_threads()
    lines = [
        f"Trial-iterations a second, float64, {threads} thread(s), {platform.machine()} CPU; in brackets the factor.",
        "",
        "| n, T, d | parameters | published loop | torch | compiled |",
        "|---|---|---:|---:|---:|",
    ]
    for size, parameterization, rate in rates:
        base = rate["published"]
        cells = " | ".join(f"{rate[b]:,.0f} ({rate[b] / base:.0f}x)" for b in ("torch", "compiled"))
        lines.append(f"| {', '.join(map(str, size))} | {parameterization} | {base:,.0f} | {cells} |")
    counts = errors[0][1]
    lines += [
        "",
        f"1 - correlation with the SVM of the tokens attended to at that step, median of {SEEDS} seeds, (6, 8, 10).",
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
