"""The experiments by name; a name is listed once its module exists."""

from __future__ import annotations

import difflib
from importlib import import_module

from attsvm_paper.engine.experiment import Experiment

FIGURES: dict[str, str] = {
    "gd-paths": "attsvm_paper.figures.gd_paths",
    "convergence-types": "attsvm_paper.figures.convergence_types",
    "global-probability": "attsvm_paper.figures.global_probability",
    "svm-rank": "attsvm_paper.figures.svm_rank",
    "local-convergence": "attsvm_paper.figures.local_convergence",
    "multi-token": "attsvm_paper.figures.multi_token",
    "lambda-head": "attsvm_paper.figures.lambda_head",
    "rank-budget": "attsvm_paper.figures.rank_budget",
    "prompt-attention": "attsvm_paper.figures.prompt_attention",
    "mirror-descent": "attsvm_paper.figures.mirror_descent",
}
"""The published figures, in the order of the report: name on the command line, module."""

BEYOND: dict[str, str] = {
    "phase-diagram": "attsvm_paper.beyond.phase_diagram",
    "rank-law": "attsvm_paper.beyond.rank_law",
    "convergence-rates": "attsvm_paper.beyond.convergence_rates",
    "optimiser-geometry": "attsvm_paper.beyond.optimiser_geometry",
    "atlas": "attsvm_paper.beyond.atlas",
    "basins": "attsvm_paper.beyond.basins",
    "overparameterisation": "attsvm_paper.beyond.overparameterisation",
    "sparse-selectors": "attsvm_paper.beyond.sparse_selectors",
    "joint-training": "attsvm_paper.beyond.joint_training",
    "sequences": "attsvm_paper.beyond.sequences",
    "layers": "attsvm_paper.beyond.layers",
    "token-similarity": "attsvm_paper.beyond.token_similarity",
    "regularisation": "attsvm_paper.beyond.regularisation",
    "weight-decay": "attsvm_paper.beyond.weight_decay",
    "query-temperature": "attsvm_paper.beyond.query_temperature",
    "factor-flow": "attsvm_paper.beyond.factor_flow",
    "adaptive-steps": "attsvm_paper.beyond.adaptive_steps",
    "benign-overfitting": "attsvm_paper.beyond.benign_overfitting",
    "parameter-margin": "attsvm_paper.beyond.parameter_margin",
    "trained-embeddings": "attsvm_paper.beyond.trained_embeddings",
    "grokking": "attsvm_paper.beyond.grokking",
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
