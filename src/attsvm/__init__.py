"""Attention as a support vector machine: certified solvers, exact training, and the theory as checks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; modules load when a name is first used, so that ``import attsvm`` stays quick.
_HOMES = {
    "SelectionProblem": "attsvm.problem",
    "Solution": "attsvm.solution",
    "Status": "attsvm.solution",
    "UnsolvedError": "attsvm.solution",
    "solve": "attsvm.solving",
    "soft_margin_path": "attsvm.regularised_path",
    "solve_batch": "attsvm.batching",
    "ProblemBatch": "attsvm.batching",
    "Proof": "attsvm.exact",
    "BatchSolution": "attsvm.batching",
    "Diagnosis": "attsvm.diagnosis",
    "diagnose": "attsvm.diagnosis",
    "svm_equivalent": "attsvm.equivalence",
    "theory": "attsvm.theory",
    "TokenData": "attsvm.token_data",
    "Trace": "attsvm.training.trace",
    "train": "attsvm.training",
    "regularization_path": "attsvm.training.path",
    "Attention": "attsvm.attention",
    "AttentionSVM": "attsvm.estimator",
    "correlation": "attsvm.compare",
    "functional": "attsvm.functional",
}

__all__ = [
    "Attention",
    "AttentionSVM",
    "BatchSolution",
    "Diagnosis",
    "ProblemBatch",
    "Proof",
    "SelectionProblem",
    "Solution",
    "Status",
    "TokenData",
    "Trace",
    "UnsolvedError",
    "__version__",
    "correlation",
    "diagnose",
    "functional",
    "regularization_path",
    "soft_margin_path",
    "solve",
    "solve_batch",
    "svm_equivalent",
    "theory",
    "train",
]

if TYPE_CHECKING:
    from attsvm import functional, theory
    from attsvm.attention import Attention
    from attsvm.batching import BatchSolution, ProblemBatch, solve_batch
    from attsvm.compare import correlation
    from attsvm.diagnosis import Diagnosis, diagnose
    from attsvm.equivalence import svm_equivalent
    from attsvm.estimator import AttentionSVM
    from attsvm.exact import Proof
    from attsvm.problem import SelectionProblem
    from attsvm.regularised_path import soft_margin_path
    from attsvm.solution import Solution, Status, UnsolvedError
    from attsvm.solving import solve
    from attsvm.token_data import TokenData
    from attsvm.training import train
    from attsvm.training.path import regularization_path
    from attsvm.training.trace import Trace


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'attsvm' has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"attsvm.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
