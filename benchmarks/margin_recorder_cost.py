"""Cost of MarginRecorder: processor time of its calls as a share of the smallest useful training loop.

    OMP_NUM_THREADS=1 python benchmarks/margin_recorder_cost.py

The loop is softmax regression on 178 inputs of 13 features; larger models make the share smaller.
"""

from __future__ import annotations

import time

import torch

from attsvm import MarginRecorder

STEPS = 3162


def main() -> None:
    """Print the time of the loop, the time of the recorder, and the share."""
    torch.manual_seed(0)
    X, y = torch.randn(178, 13), torch.arange(178) % 3
    model = torch.nn.Linear(13, 3)
    optimizer, start = torch.optim.SGD(model.parameters(), lr=0.1), time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    middle, recorder = time.process_time(), MarginRecorder(model, X, y)
    for _ in range(STEPS):
        recorder.step()
    loop, recording = middle - start, time.process_time() - middle
    print(f"loop {1e6 * loop / STEPS:.0f} us per step, recorder {1e6 * recording / STEPS:.2f} us", end=": ")
    print(f"{100 * recording / loop:.2f} %")


if __name__ == "__main__":
    main()
