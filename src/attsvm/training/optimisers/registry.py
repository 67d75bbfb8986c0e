"""The optimisers by name, with their default step sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

from attsvm.training.optimisers.adaptive import Adam, AdamW, PolyakGD
from attsvm.training.optimisers.descent import (
    DualMomentum,
    GradientDescent,
    NormalizedGD,
    Optimizer,
    SeparatelyNormalizedGD,
)
from attsvm.training.optimisers.flow import GradientFlow
from attsvm.training.optimisers.momentum import CompositionalMuon, Lion, Muon, Signum
from attsvm.training.optimisers.preconditioned import SOAP, Shampoo
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.optimisers.steepest import (
    AxisDescent,
    CoordinateDescent,
    MirrorDescent,
    SignDescent,
    SpectralDescent,
)


@dataclass(frozen=True)
class Entry:
    """Constructors of an optimiser per parameterisation, or the reason why there is none."""

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
    "coordinate": Entry(CoordinateDescent, CoordinateDescent),
    "rows": Entry(AxisDescent, AxisDescent),
    "columns": Entry(lambda: AxisDescent(axis="columns"), lambda: AxisDescent(axis="columns")),
    "adam": Entry(Adam, Adam),
    "adamw": Entry(AdamW, AdamW),
    "signum": Entry(Signum, Signum),
    "lion": Entry(Lion, Lion),
    "muon": Entry(Muon, Muon),
    "compositional_muon": Entry("it moves K Q^T through K and Q: take 'muon'", CompositionalMuon),
    "shampoo": Entry(Shampoo, Shampoo),
    "soap": Entry(SOAP, SOAP),
    "flow": Entry(GradientFlow, GradientFlow),
}


def make_optimizer(
    optimizer: str | Optimizer,
    parameterization: str,
    lr: float | None = None,
    schedule: Schedule | None = None,
    weight_decay: float | None = None,
) -> Optimizer:
    """Return the optimiser of that name with `lr`, `schedule` and `weight_decay` in place of its defaults.

    Raises
    ------
    ValueError
        If the name is unknown, the parameterisation is not supported, lr is not positive or the decay negative.
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
