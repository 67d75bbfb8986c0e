"""The optimisers by name, with the step sizes each uses unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from attsvm.training.descent import (
    DualMomentum,
    GradientDescent,
    NormalizedGD,
    Optimizer,
    SeparatelyNormalizedGD,
)
from attsvm.training.schedule import Schedule


@dataclass(frozen=True)
class Entry:
    """How to make an optimiser for each parameterisation; None where it has no meaning."""

    W: Callable[[], Optimizer] | None
    KQ: Callable[[], Optimizer] | None


OPTIMIZERS: dict[str, Entry] = {
    "gd": Entry(lambda: GradientDescent(1.0), lambda: GradientDescent(1.0)),
    "normalized_gd": Entry(lambda: NormalizedGD(0.1), lambda: NormalizedGD(0.5, "sqrt", relative=True)),
    "separately_normalized_gd": Entry(None, lambda: SeparatelyNormalizedGD(0.1)),
    "momentum": Entry(lambda: DualMomentum(1.0), None),
}


def make_optimizer(
    optimizer: str | Optimizer, parameterization: str, lr: float | None = None, schedule: Schedule | None = None
) -> Optimizer:
    """Return the optimiser of that name with `lr` and `schedule` in place of its defaults.

    Raises
    ------
    ValueError
        If the name is unknown, the parameterisation is not served, or lr is not positive.
    """
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer is {optimizer!r}; one of {', '.join(map(repr, OPTIMIZERS))} was expected.")
        entry = OPTIMIZERS[optimizer]
        make = entry.W if parameterization == "W" else entry.KQ
        if make is None:
            raise ValueError(f"optimizer {optimizer!r} does not train parameterization={parameterization!r}.")
        optimizer = make()
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer has type {type(optimizer).__name__}; a name or an Optimizer was expected.")
    if lr is not None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr is {lr!r}; a positive number was expected.")
        optimizer = replace(optimizer, lr=float(lr))
    return optimizer if schedule is None else replace(optimizer, schedule=schedule)
