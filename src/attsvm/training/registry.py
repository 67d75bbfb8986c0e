"""The optimisers by name, with the step sizes each uses unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

from attsvm.training.adaptive import Adam, PolyakGD
from attsvm.training.descent import (
    DualMomentum,
    GradientDescent,
    NormalizedGD,
    Optimizer,
    SeparatelyNormalizedGD,
)
from attsvm.training.schedule import Schedule
from attsvm.training.steepest import MirrorDescent, SignDescent, SpectralDescent


@dataclass(frozen=True)
class Entry:
    """How to make an optimiser for each parameterisation, or why there is none."""

    W: Callable[[], Optimizer] | str
    KQ: Callable[[], Optimizer] | str


MOMENTUM_IN_W = "it accelerates the dual of a problem that is linear in its variable, and K Q^T is not linear in K, Q"
MIRROR_IN_W = "its potential is that of W, and no potential of K and Q apart makes the l_p norm of K Q^T small"

OPTIMIZERS: dict[str, Entry] = {
    "gd": Entry(lambda: GradientDescent(1.0), lambda: GradientDescent(1.0)),
    "normalized_gd": Entry(lambda: NormalizedGD(0.1), lambda: NormalizedGD(0.5, "sqrt", relative=True)),
    "separately_normalized_gd": Entry(
        "there is one matrix to normalise: take 'normalized_gd'", lambda: SeparatelyNormalizedGD(0.1)
    ),
    "momentum": Entry(lambda: DualMomentum(2.0), MOMENTUM_IN_W),
    "polyak": Entry(PolyakGD, PolyakGD),
    "mirror": Entry(MirrorDescent, MIRROR_IN_W),
    "sign": Entry(SignDescent, SignDescent),
    "spectral": Entry(SpectralDescent, SpectralDescent),
    "adam": Entry(Adam, Adam),
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
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "name", None)
    entry = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if isinstance(optimizer, str):
        if entry is None:
            raise ValueError(f"optimizer is {optimizer!r}; one of {', '.join(map(repr, OPTIMIZERS))} was expected.")
    elif not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer has type {type(optimizer).__name__}; a name or an Optimizer was expected.")
    make = None if entry is None else entry.W if parameterization == "W" else entry.KQ
    if isinstance(make, str):
        raise ValueError(f"optimizer {name!r} does not train parameterization={parameterization!r}: {make}.")
    if isinstance(optimizer, str):
        assert make is not None
        optimizer = make()
    if lr is not None:
        if isinstance(lr, bool) or not isinstance(lr, Real) or not 0 < lr < float("inf"):
            raise ValueError(f"lr is {lr!r}; a positive number was expected.")
        optimizer = replace(optimizer, lr=float(lr))
    if schedule is not None and not isinstance(schedule, str) and not callable(schedule):
        raise ValueError(f"schedule has type {type(schedule).__name__}; a name or a callable of k was expected.")
    return optimizer if schedule is None else replace(optimizer, schedule=schedule)
