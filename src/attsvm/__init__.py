"""Attention as a support vector machine: certified solvers, exact training, and the theory as checks."""

from __future__ import annotations

from attsvm.platform.lazy import TYPE_CHECKING, lazy_names

__version__ = "0.2.0"

# Checkers and editors read the imports; at run time a name loads its module on first use.
if TYPE_CHECKING:
    from attsvm import functional as functional
    from attsvm import norms as norms
    from attsvm import plots as plots
    from attsvm import theory as theory
    from attsvm.attention_classifier import AttentionClassifier as AttentionClassifier
    from attsvm.core.correlation import correlation as correlation
    from attsvm.core.problem import SelectionProblem as SelectionProblem
    from attsvm.core.status import Status as Status
    from attsvm.data.shards import ShardedProblem as ShardedProblem
    from attsvm.data.token_data import TokenData as TokenData
    from attsvm.estimator import AttentionSVM as AttentionSVM
    from attsvm.margin_classifier import MarginClassifier as MarginClassifier
    from attsvm.nn.attention import Attention as Attention
    from attsvm.playground.widget import Playground as Playground
    from attsvm.proofs import Proof as Proof
    from attsvm.solution.problem_batch import BatchSolution as BatchSolution
    from attsvm.solution.problem_batch import ProblemBatch as ProblemBatch
    from attsvm.solution.solution import Solution as Solution
    from attsvm.solution.solution import UnsolvedError as UnsolvedError
    from attsvm.solvers.batching import solve_batch as solve_batch
    from attsvm.solvers.soft_margin_path import soft_margin_path as soft_margin_path
    from attsvm.solvers.solving import solve as solve
    from attsvm.solvers.working_sets.solution import ShardedSolution as ShardedSolution
    from attsvm.theory.diagnosis import Diagnosis as Diagnosis
    from attsvm.theory.diagnosis import diagnose as diagnose
    from attsvm.theory.equivalence import svm_equivalent as svm_equivalent
    from attsvm.theory.margin_path import MarginPath as MarginPath
    from attsvm.theory.margin_path import margin_path as margin_path
    from attsvm.theory.margin_recorder import MarginRecorder as MarginRecorder
    from attsvm.theory.margin_report import MarginReport as MarginReport
    from attsvm.theory.margin_report import margin_report as margin_report
    from attsvm.token_scaler import TokenScaler as TokenScaler
    from attsvm.training import train as train
    from attsvm.training.paths.path import regularization_path as regularization_path
    from attsvm.training.run.trace import Trace as Trace
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attsvm": ("functional", "norms", "plots", "theory"),
            "attsvm.attention_classifier": ("AttentionClassifier",),
            "attsvm.core.correlation": ("correlation",),
            "attsvm.core.problem": ("SelectionProblem",),
            "attsvm.core.status": ("Status",),
            "attsvm.data.shards": ("ShardedProblem",),
            "attsvm.data.token_data": ("TokenData",),
            "attsvm.estimator": ("AttentionSVM",),
            "attsvm.margin_classifier": ("MarginClassifier",),
            "attsvm.nn.attention": ("Attention",),
            "attsvm.playground.widget": ("Playground",),
            "attsvm.proofs": ("Proof",),
            "attsvm.solution.problem_batch": ("BatchSolution", "ProblemBatch"),
            "attsvm.solution.solution": ("Solution", "UnsolvedError"),
            "attsvm.solvers.batching": ("solve_batch",),
            "attsvm.solvers.soft_margin_path": ("soft_margin_path",),
            "attsvm.solvers.solving": ("solve",),
            "attsvm.solvers.working_sets.solution": ("ShardedSolution",),
            "attsvm.theory.diagnosis": ("Diagnosis", "diagnose"),
            "attsvm.theory.equivalence": ("svm_equivalent",),
            "attsvm.theory.margin_path": ("MarginPath", "margin_path"),
            "attsvm.theory.margin_recorder": ("MarginRecorder",),
            "attsvm.theory.margin_report": ("MarginReport", "margin_report"),
            "attsvm.token_scaler": ("TokenScaler",),
            "attsvm.training": ("train",),
            "attsvm.training.paths.path": ("regularization_path",),
            "attsvm.training.run.trace": ("Trace",),
        },
    )
    __all__.append("__version__")
