"""The experiments by name; a name is listed once its module exists."""

from __future__ import annotations

import difflib
from importlib import import_module

from attsvm.experiments.experiment import Experiment

FIGURES: dict[str, str] = {
    "gd-paths": "attsvm.experiments.figures.gd_paths",
    "convergence-types": "attsvm.experiments.figures.convergence_types",
    "global-probability": "attsvm.experiments.figures.global_probability",
    "svm-rank": "attsvm.experiments.figures.svm_rank",
    "local-convergence": "attsvm.experiments.figures.local_convergence",
    "multi-token": "attsvm.experiments.figures.multi_token",
    "lambda-head": "attsvm.experiments.figures.lambda_head",
    "rank-budget": "attsvm.experiments.figures.rank_budget",
    "prompt-attention": "attsvm.experiments.figures.prompt_attention",
    "mirror-descent": "attsvm.experiments.figures.mirror_descent",
}
"""The published figures, in the order of the report: name on the command line, module."""

BEYOND: dict[str, str] = {
    "phase-diagram": "attsvm.experiments.beyond.phase_diagram",
    "rank-law": "attsvm.experiments.beyond.rank_law",
    "convergence-rates": "attsvm.experiments.beyond.convergence_rates",
    "optimiser-geometry": "attsvm.experiments.beyond.optimiser_geometry",
    "atlas": "attsvm.experiments.beyond.atlas",
    "basins": "attsvm.experiments.beyond.basins",
    "overparameterisation": "attsvm.experiments.beyond.overparameterisation",
    "sparse-selectors": "attsvm.experiments.beyond.sparse_selectors",
    "joint-training": "attsvm.experiments.beyond.joint_training",
    "sequences": "attsvm.experiments.beyond.sequences",
    "layers": "attsvm.experiments.beyond.layers",
    "token-similarity": "attsvm.experiments.beyond.token_similarity",
    "regularisation": "attsvm.experiments.beyond.regularisation",
    "weight-decay": "attsvm.experiments.beyond.weight_decay",
    "query-temperature": "attsvm.experiments.beyond.query_temperature",
    "factor-flow": "attsvm.experiments.beyond.factor_flow",
    "adaptive-steps": "attsvm.experiments.beyond.adaptive_steps",
    "benign-overfitting": "attsvm.experiments.beyond.benign_overfitting",
    "parameter-margin": "attsvm.experiments.beyond.parameter_margin",
    "trained-embeddings": "attsvm.experiments.beyond.trained_embeddings",
    "grokking": "attsvm.experiments.beyond.grokking",
}
"""Experiments without a published counterpart."""


def names() -> tuple[str, ...]:
    """List the experiments: the published figures, then the others."""
    return (*FIGURES, *BEYOND)


def get(name: str) -> Experiment:
    """Import an experiment.

    Raises
    ------
    ValueError
        If there is no such experiment; the message suggests the closest names.
    """
    modules = FIGURES | BEYOND
    if name not in modules:
        close = difflib.get_close_matches(name, modules, n=3, cutoff=0.5)
        suggestion = " or ".join(close) if close else "a name of `attsvm list`"
        raise ValueError(f"{name!r} is no experiment; {suggestion} was expected.")
    return import_module(modules[name]).EXPERIMENT
