"""The optimisers by name; importing their modules registers them."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Literal, TypeAlias

from attsvm.training.optimisers import adaptive as adaptive
from attsvm.training.optimisers import flow as flow
from attsvm.training.optimisers import momentum as momentum
from attsvm.training.optimisers import preconditioned as preconditioned
from attsvm.training.optimisers import steepest as steepest
from attsvm.training.optimisers.descent import OPTIMIZERS as OPTIMIZERS
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.schedule import Schedule

# The names in OPTIMIZERS for type checkers; tests/unit/package/test_types.py compares both.
OptimizerName: TypeAlias = Literal[
    "gd", "normalized_gd", "separately_normalized_gd", "momentum", "polyak", "mirror", "sign", "spectral",
    "coordinate", "rows", "columns", "adam", "adamw", "signum", "lion", "muon", "compositional_muon", "shampoo",
    "soap", "flow",
]  # fmt: skip


def make_optimizer(
    optimizer: str | Optimizer,
    parameterization: str,
    lr: float | None = None,
    schedule: Schedule | None = None,
    weight_decay: float | None = None,
) -> Optimizer:
    """Return the named optimiser with `lr`, `schedule` and `weight_decay` instead of its defaults.

    Raises ValueError if the name is unknown, the parameterisation is not supported, lr is not positive or the decay
    negative.
    """
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "name", None)
    entry = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if isinstance(optimizer, str):
        if entry is None:
            raise ValueError(f"optimizer is {optimizer!r}; one of {', '.join(map(repr, OPTIMIZERS))} was expected.")
    elif not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer has type {type(optimizer).__name__}; a name or an Optimizer was expected.")
    make = None if entry is None else entry.W if parameterization == "W" else entry.KQ
    if isinstance(make, str):
        raise ValueError(
            f"optimizer {name!r} does not train parameterization={parameterization!r}: {make}; another was expected."
        )
    if isinstance(optimizer, str):
        assert make is not None
        optimizer = make()
    if lr is not None:
        if isinstance(lr, bool) or not isinstance(lr, Real) or not 0 < lr < float("inf"):
            raise ValueError(f"lr is {lr!r}; a positive number was expected.")
        optimizer = replace(optimizer, lr=float(lr))
    if schedule is not None and not isinstance(schedule, str) and not callable(schedule):
        raise ValueError(f"schedule has type {type(schedule).__name__}; a name or a callable of k was expected.")
    if weight_decay is not None:
        if isinstance(weight_decay, bool) or not isinstance(weight_decay, Real) or not 0 <= weight_decay < float("inf"):
            raise ValueError(f"weight_decay is {weight_decay!r}; a number >= 0 was expected.")
        optimizer = replace(optimizer, weight_decay=float(weight_decay))
    return optimizer if schedule is None else replace(optimizer, schedule=schedule)
