"""Attention as a support vector machine: certified solvers, exact training, and the theory as checks."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.2.0"

# Where each public name lives; modules load when a name is first used, so that ``import attsvm`` stays quick.
_HOMES = {
    "SelectionProblem": "attsvm.core.problem",
    "ShardedProblem": "attsvm.data.shards",
    "ShardedSolution": "attsvm.solvers.working_sets.solution",
    "Solution": "attsvm.solution.solution",
    "Status": "attsvm.core.status",
    "UnsolvedError": "attsvm.solution.unsolved",
    "solve": "attsvm.solvers.solving",
    "soft_margin_path": "attsvm.solvers.soft_margin_path",
    "solve_batch": "attsvm.solvers.batching",
    "ProblemBatch": "attsvm.solution.problem_batch",
    "Proof": "attsvm.proofs",
    "BatchSolution": "attsvm.solution.problem_batch",
    "Diagnosis": "attsvm.theory.diagnosis",
    "diagnose": "attsvm.theory.diagnosis",
    "svm_equivalent": "attsvm.theory.equivalence",
    "theory": "attsvm.theory",
    "TokenData": "attsvm.data.token_data",
    "Trace": "attsvm.training.trace",
    "train": "attsvm.training",
    "regularization_path": "attsvm.training.path",
    "Attention": "attsvm.nn.attention",
    "AttentionSVM": "attsvm.estimator",
    "MarginClassifier": "attsvm.margin_classifier",
    "MarginReport": "attsvm.theory.margin_report",
    "margin_report": "attsvm.theory.margin_report",
    "correlation": "attsvm.core.correlation",
    "functional": "attsvm.functional",
    "norms": "attsvm.norms",
    "plots": "attsvm.plots",
    "Playground": "attsvm.playground.widget",
}

__all__ = [
    "Attention",
    "AttentionSVM",
    "BatchSolution",
    "Diagnosis",
    "MarginClassifier",
    "MarginReport",
    "Playground",
    "ProblemBatch",
    "Proof",
    "SelectionProblem",
    "ShardedProblem",
    "ShardedSolution",
    "Solution",
    "Status",
    "TokenData",
    "Trace",
    "UnsolvedError",
    "__version__",
    "correlation",
    "diagnose",
    "functional",
    "margin_report",
    "norms",
    "plots",
    "regularization_path",
    "soft_margin_path",
    "solve",
    "solve_batch",
    "svm_equivalent",
    "theory",
    "train",
]

# Checkers know this name; importing typing for it would double the time in which Ctrl-C ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from attsvm import functional, norms, plots, theory
    from attsvm.core.correlation import correlation
    from attsvm.core.problem import SelectionProblem
    from attsvm.core.status import Status
    from attsvm.data.shards import ShardedProblem
    from attsvm.data.token_data import TokenData
    from attsvm.estimator import AttentionSVM
    from attsvm.margin_classifier import MarginClassifier
    from attsvm.nn.attention import Attention
    from attsvm.playground.widget import Playground
    from attsvm.proofs import Proof
    from attsvm.solution.problem_batch import BatchSolution, ProblemBatch
    from attsvm.solution.solution import Solution
    from attsvm.solution.unsolved import UnsolvedError
    from attsvm.solvers.batching import solve_batch
    from attsvm.solvers.soft_margin_path import soft_margin_path
    from attsvm.solvers.solving import solve
    from attsvm.solvers.working_sets.solution import ShardedSolution
    from attsvm.theory.diagnosis import Diagnosis, diagnose
    from attsvm.theory.equivalence import svm_equivalent
    from attsvm.theory.margin_report import MarginReport, margin_report
    from attsvm.training import train
    from attsvm.training.path import regularization_path
    from attsvm.training.trace import Trace


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'attsvm' has no attribute {name!r}")
    from attsvm.core.extras import extra_for

    with extra_for(f"attsvm.{name}"):
        module = import_module(home)
    value = module if home == f"attsvm.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
