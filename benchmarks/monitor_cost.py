"""Cost of AttentionMonitor: processor time of training steps with and without a measurement.

    OMP_NUM_THREADS=1 python monitor_cost.py

The model is a GPT-2 of four layers and width 128, trained on eight sequences of 128 tokens per step. Every second step
is measured here; the last number is the share of the time that one measurement in fifty steps takes.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from attsvm.pretrained import AttentionMonitor

STEPS, EVERY = 40, 50


def main() -> None:
    """Print the medians of both kinds of steps, and the share."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=128, n_layer=4, n_head=4, vocab_size=500, n_positions=128, bos_token_id=None, eos_token_id=None
    )
    model = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds: tuple[list[float], list[float]] = ([], [])
    monitor = AttentionMonitor(model, every=2)
    for step in range(STEPS):
        ids = torch.randint(0, 500, (8, 128))
        start = time.process_time()
        with monitor.step(step):
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds[step % 2].append(time.process_time() - start)
    measured, plain = (float(np.median(part[2:])) for part in seconds)
    share = (measured - plain) / (EVERY * plain)
    print(f"measured {1e3 * measured:.0f} ms, plain {1e3 * plain:.0f} ms: {100 * share:.2f} %")


if __name__ == "__main__":
    main()
