"""Optimisers, norms and models of the atlas, the theorems that settle cells, and predictions for the others."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from attsvm.core.types import Parameterization
from attsvm.training.optimisers.adaptive import Adam, AdamW
from attsvm.training.optimisers.descent import (
    DualMomentum,
    GradientDescent,
    NormalizedGD,
    Optimizer,
    SeparatelyNormalizedGD,
)
from attsvm.training.optimisers.momentum import CompositionalMuon, Lion, Muon, Signum
from attsvm.training.optimisers.preconditioned import SOAP, Shampoo
from attsvm.training.optimisers.steepest import (
    AxisDescent,
    CoordinateDescent,
    MirrorDescent,
    SignDescent,
    SpectralDescent,
)

NORMS: dict[str, str | float] = {
    "nuclear": "nuclear", "frobenius": "frobenius", "spectral": "spectral", "l_1": 1.0, "l_3": 3.0, "max": "max",
    "rows": "rows:2:inf", "columns": "columns:2:inf",
}  # fmt: skip
"""Keyed by the name in figures; "rows" is the length of the longest row."""

MODELS: dict[str, str] = {
    "attention": "attention, W",
    "factors": "attention, K and Q",
    "multiclass": "multiclass classification",
    "next-token": "next-token prediction",
}
"""Keyed by the name of the cell, with its title."""

W, KQ = "W", "KQ"


def _rules(parameterization: str) -> dict[str, Optimizer]:
    """Make every optimiser for this parameterisation, with its steps in the atlas."""
    one = parameterization == W
    only = (
        {"momentum": DualMomentum(2.0), "mirror, p=3": MirrorDescent(0.1, p=3.0)}
        if one
        else {"apart": SeparatelyNormalizedGD(0.1), "compositional Muon": CompositionalMuon(0.5)}
    )
    return {
        "gradient": GradientDescent(1.0),
        "gradient, growing": GradientDescent(1.0, "exponential"),
        "normalised": NormalizedGD(0.1) if one else NormalizedGD(0.5, "sqrt", relative=True),
        **only,
        "coordinate": CoordinateDescent(0.1),
        "sign": SignDescent(0.02),
        "signum": Signum(0.2),
        "Lion": Lion(0.2),
        "Adam": Adam(0.02),
        "Adam, decaying": Adam(0.2, "sqrt", betas=(0.9, 0.95)),
        "AdamW": AdamW(0.2),
        "spectral": SpectralDescent(0.1),
        "Muon": Muon(0.5),
        "Muon, Newton-Schulz": Muon(0.5, orthogonalization="newton-schulz"),
        "Shampoo": Shampoo(0.5),
        "SOAP": SOAP(0.2),
        "row norms": AxisDescent(0.1),
        "column norms": AxisDescent(0.1, axis="columns"),
    }


_COMMON = (
    "coordinate", "sign", "signum", "Lion", "Adam", "Adam, decaying", "AdamW", "spectral", "Muon",
    "Muon, Newton-Schulz", "Shampoo", "SOAP", "row norms", "column norms",
)  # fmt: skip
OPTIMISERS: dict[str, tuple[str, ...]] = {
    W: ("gradient", "gradient, growing", "normalised", "momentum", "mirror, p=3", *_COMMON),
    KQ: ("gradient", "gradient, growing", "normalised", "apart", "compositional Muon", *_COMMON),
}
"""Names for each parameterisation, in the order shown."""


def parameterization_of(model: str) -> Parameterization:
    """Return "W" or "KQ"."""
    return KQ if model == "factors" else W


def optimizer_of(model: str, name: str) -> Optimizer:
    """Make an optimiser."""
    return _rules(parameterization_of(model))[name]


@dataclass(frozen=True)
class Expectation:
    """A theorem or prediction about one optimiser on one model.

    Attributes
    ----------
    norm : str
        The norm whose share tends to 1; empty for none.
    reason : str
        The theorem, or the reason for the prediction.
    from_theorem : bool
        Whether it is a theorem.
    slow : bool
        Whether its rate, 1/log k, is too slow for any number of steps to show the limit.
    """

    norm: str
    reason: str
    from_theorem: bool = False
    slow: bool = False


def _theorem(norm: str, reason: str, slow: bool = False) -> Expectation:
    return Expectation(norm, reason, from_theorem=True, slow=slow)


_MULTICLASS = "arXiv 2502.04664: normalised steepest descent on linear multiclass models"
THEOREMS: dict[tuple[str, str], Expectation] = {
    ("attention", "gradient"): _theorem("frobenius", "arXiv 2308.16898, Theorem 7, locally", slow=True),
    ("attention", "normalised"): _theorem("frobenius", "arXiv 2308.16898, Theorem 7, locally; 2402.05738"),
    ("attention", "mirror, p=3"): _theorem("l_3", "arXiv 2410.14581, locally"),
    ("factors", "gradient"): _theorem("nuclear", "arXiv 2403.08699, gradient flow from an aligned start", slow=True),
    ("multiclass", "gradient"): _theorem("frobenius", "arXiv 1710.10345, Theorem 7", slow=True),
    ("multiclass", "normalised"): _theorem("frobenius", _MULTICLASS),
    ("multiclass", "sign"): _theorem("max", _MULTICLASS),
    ("multiclass", "signum"): _theorem("max", "arXiv 2502.04664, with momentum"),
    ("multiclass", "Adam, decaying"): _theorem("max", "arXiv 2502.04664, Adam with decaying steps"),
    ("multiclass", "spectral"): _theorem("spectral", _MULTICLASS),
    ("multiclass", "Muon"): _theorem("spectral", "arXiv 2502.04664, with momentum"),
    ("next-token", "gradient"): _theorem("frobenius", "arXiv 2402.18551", slow=True),
}
"""By model and optimiser; other norms in the row of a theorem are open, and serve as controls."""


@cache
def expectations() -> Mapping[tuple[str, str], Expectation]:
    """Return theorems and predictions for every optimiser on every model.

    Raises
    ------
    ValueError
        If the file of predictions lacks a pair, has one twice, or names something unknown.
    """
    text = resources.files("attsvm_paper.beyond").joinpath("atlas_predictions.toml").read_text(encoding="utf-8")
    table = dict(THEOREMS)
    for entry in tomllib.loads(text)["prediction"]:
        for model in entry["models"]:
            pair = model, entry["optimiser"]
            if pair in table or (entry["norm"] and entry["norm"] not in NORMS):
                raise ValueError(
                    f"prediction has {pair} and norm {entry['norm']!r}; one for each open pair was expected."
                )
            table[pair] = Expectation(entry["norm"], entry["reason"])
    pairs = {(model, name) for model in MODELS for name in OPTIMISERS[parameterization_of(model)]}
    if table.keys() != pairs:
        raise ValueError(f"predictions differ from the cells in {sorted(table.keys() ^ pairs)}; equality was expected.")
    return table
