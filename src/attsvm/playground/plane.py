r"""The scene of tokens in the plane: training, the SVM of its selection, and their correlation.

Public functions compute everything on the page: :func:`attsvm.train` the paths, :func:`attsvm.solve` the SVM,
:mod:`attsvm.theory` the verdict. A *draft*, made during a drag, differs in two ways. The solvers start from the last
answer, and training outside the compiled loop stops after `DRAFT_STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.data.token_data import TokenData
from attsvm.playground.runs import PlaygroundRun, attention_of, correlations
from attsvm.playground.state import Plane
from attsvm.playground.verdict import plane_verdict
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.theory.basins import map_basins
from attsvm.theory.equivalence import SELECTED_SHARE, EquivalenceStatus, svm_equivalent
from attsvm.theory.tokens import Trial
from attsvm.training import Trace, train
from attsvm.training.optimisers.registry import OptimizerName
from attsvm.training.run.compiled import W_RULES

# Number of records: each costs the same as a hundred compiled steps, and so does each check for a newer state.
PLANE_RECORDS, DRAFT_RECORDS = 64, 24
DRAFT_STEPS = 24
# Number of starts per side of the coloured square, and distance of its sides from the origin.
BASIN_STARTS = 49
BASIN_REACH = 6.0
BASIN_STEPS = 600


class Supersession(Exception):
    """A newer state arrived; this picture is no longer needed."""


@dataclass
class PageMemory:
    """Reusable results of one page: the last solutions by name, as warm starts, and the last basins."""

    solutions: dict[str, Solution] = field(default_factory=dict)
    basins: tuple[bytes, dict[str, Any] | None] = (b"", None)

    def recall(self, name: str, problem: SelectionProblem, norm: AnyNorm) -> Solution | None:
        """Return a solution for a warm start, or None; in the Frobenius norm a warm start costs more than it saves."""
        last = self.solutions.get(name)
        if last is None or norm == "frobenius" or not np.isfinite(last.objective):
            return None
        fits = last.problem.mask.shape == problem.mask.shape and last.problem.queries.shape == problem.queries.shape
        return last if fits else None

    def basins_of(self, trial: Trial, state: Plane) -> dict[str, Any] | None:
        """Return the basins, which do not depend on the start."""
        parts = (trial.tokens, trial.queries, trial.gamma)
        key = b"".join(part.tobytes() for part in parts) + state.optimizer.encode()
        if key != self.basins[0]:
            self.basins = (key, _basins(trial, state))
        return self.basins[1]


def head_of(state: Plane) -> Any:
    """Return the head in the form that :func:`attsvm.train` takes."""
    if state.head == "linear":
        return state.v
    from attsvm.nn.heads import ReLUHead

    return ReLUHead(np.eye(2), state.v)


def start_of(state: Plane) -> np.ndarray | None:
    """Return W(0), shape (2, dz), or None for zero."""
    if state.start is None:
        return None
    z = state.queries[0]
    return np.outer(state.start, z / (z @ z))


def factor_optimizer(state: Plane) -> OptimizerName:
    """Return the optimiser of K and Q."""
    return "gd" if state.optimizer == "gd" else "normalized_gd"


def numerics_of(state: Plane) -> dict[str, Any]:
    """Return the options of :func:`attsvm.train` that choose the arithmetic."""
    return {"numerics": "autograd", "dtype": "float32"} if state.numerics == "float32" else {}


def interruptible(draft: bool, stale: Callable[[], bool]) -> dict[str, Any]:
    """Return the options of :func:`attsvm.train` with which a newer state ends a run that is not a draft."""
    return {} if draft else {"callback": lambda step, steps: stale()}


def record_steps(steps: int, draft: bool) -> list[int]:
    """Return the steps to draw, densest at the start."""
    return np.unique(np.geomspace(1, steps, DRAFT_RECORDS if draft else PLANE_RECORDS).round().astype(int)).tolist()


def plane_picture(
    state: Plane, *, draft: bool = False, memory: PageMemory | None = None, stale: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Compute all data of the page.

    Parameters
    ----------
    state : Plane
    draft : bool
        True during a drag.
    memory : PageMemory, optional
        Read by drafts, and written.
    stale : callable
        Called a hundred times per training; returns whether a newer state waits.

    Returns
    -------
    dict
        JSON with no NaN: undefined values are None.

    Raises
    ------
    Supersession
        If `stale` returned True.
    """
    memory = PageMemory() if memory is None else memory
    data, head = TokenData(state.tokens, state.queries, state.labels), head_of(state)
    trial = Trial.of(data, head)

    def trained(optimizer: OptimizerName, **options: Any) -> Trace:
        compiled = optimizer in W_RULES and state.head == "linear" and "numerics" not in options
        steps = min(state.steps, DRAFT_STEPS) if draft and not compiled else state.steps
        trace = train(
            data, head, optimizer=optimizer, steps=steps, record_every=record_steps(steps, draft),
            **interruptible(draft, stale), **options,
        )  # fmt: skip
        if trace.stopped:
            raise Supersession
        return trace

    own = numerics_of(state)
    traces = {"W": trained(state.optimizer, init=start_of(state), **own)}
    if own:
        traces["exact"] = trained(state.optimizer, init=start_of(state))
    # K and Q have no start W(0) to share, and after a slow training they would make a draft too slow.
    if state.start is None and (traces["W"].backend == "compiled" or not draft):
        traces["KQ"] = trained(factor_optimizer(state), parameterization="KQ", **own)
    runs = {name: _compare(state, trial, trace, name, draft, memory) for name, trace in traces.items()}
    main = runs["W"]
    picture = {
        "scene": "plane",
        "draft": draft,
        "scores": trial.gamma.tolist(),
        "best": trial.optimal.tolist(),
        "runs": {name: _picture(trial, run) for name, run in runs.items()},
        "basins": memory.basins_of(trial, state) if state.basins and not draft else None,
    }
    return picture | {"verdict": plane_verdict(state, trial, main, runs.get("exact"))}


def _compare(state: Plane, trial: Trial, trace: Trace, name: str, draft: bool, memory: PageMemory) -> PlaygroundRun:
    """Solve the SVM of the selected tokens and correlate the trained matrices with it."""
    norm: AnyNorm = "nuclear" if name == "KQ" else state.norm
    equivalence = None
    moved = bool(trace.W[-1].any())
    if state.head == "relu" and moved:
        attention = attention_of(trial, np.asarray(trace.W, dtype=np.float64)[-1:])[0]
        # One threshold for both: on this page no token is undecided.
        equivalence = svm_equivalent(
            trial.data, attention, trace.W[-1], "nuclear" if name == "KQ" else "frobenius", masked_below=SELECTED_SHARE
        )
        if equivalence.status is EquivalenceStatus.FOUND and equivalence.solution is not None:
            target = np.asarray(equivalence.W)
            selected = equivalence.solution.problem.reference
            return PlaygroundRun(
                trace, selected, equivalence.solution, target, correlations(trace, target), equivalence
            )
    if state.head == "relu" and not moved:  # every token keeps the attention it had
        selected = np.ones(trial.tokens.shape[:2], dtype=bool)
    elif state.keep == "trained" or state.head == "relu":
        selected = np.asarray(trace.selected)
    elif state.keep == "best":
        selected = trial.optimal
    else:
        selected = np.array(state.keep)
    problem = trial.problem(selected)
    solution = solve(problem, norm, warm_start=memory.recall(name, problem, norm) if draft else None)
    memory.solutions[name] = solution
    return PlaygroundRun(trace, problem.reference, solution, solution.W, correlations(trace, solution.W), equivalence)


def _risk(trial: Trial, state_head: Any, attention: np.ndarray) -> np.ndarray:
    """Return the logistic risk of each record, shape (R,)."""
    if trial.linear:
        margin = np.einsum("rnt,nt->rn", attention, trial.gamma)
    else:
        from attsvm.theory.tokens import predictions

        outputs = np.einsum("rnt,ntd->rnd", attention, trial.values)
        margin = trial.labels * predictions(state_head, outputs)
    return np.logaddexp(0.0, -margin).mean(axis=1)


def _picture(trial: Trial, run: PlaygroundRun) -> dict[str, Any]:
    """Convert a run to numbers for drawing."""
    W = np.asarray(run.trace.W, dtype=np.float64)
    attention = attention_of(trial, W)
    solution = run.solution
    ray = np.asarray(solution.W) @ trial.queries.T  # (2, n)
    return {
        "steps": run.trace.step.tolist(),
        "path": np.einsum("rde,ne->nrd", W, trial.queries).round(4).tolist(),
        "ray": plain(ray.T),
        "attention": attention[-1].tolist(),
        "trained": W[-1].tolist(),
        "W": plain(np.asarray(solution.W)),
        "loss": _risk(trial, trial.head, attention).tolist(),
        "correlation": plain(run.correlation),
        "selected": solution.problem.selected.tolist(),
        "kept": run.selected.tolist(),
        "status": solution.status.name,
        "objective": plain(solution.objective),
        "gap": plain(solution.gap),
        "margins": plain(np.asarray(solution.margins)),
        "support": np.asarray(solution.support).tolist(),
        "optimizer": run.trace.optimizer,
        "notice": run.trace.notice,
    }


def plain(values: Any) -> Any:
    """Return numbers, or nested lists of them, for JSON: None for NaN and infinity."""
    array = np.asarray(values, dtype=np.float64)
    if np.isfinite(array).all():
        return array.tolist()
    table = array.astype(object)
    table[~np.isfinite(array)] = None
    return table.tolist()


def _basins(trial: Trial, state: Plane) -> dict[str, Any] | None:
    """Train from a square of starts W(0) z; None unless all queries are equal, so that a start is a point."""
    queries = trial.queries
    if state.head != "linear" or state.optimizer not in W_RULES or np.abs(queries - queries[0]).max() > 0:
        return None
    length = np.linalg.norm(queries[0])
    side = np.linspace(-BASIN_REACH, BASIN_REACH, BASIN_STARTS)
    starts = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2, 1) / length  # row by row from below
    # Training moves W only along that query, so only the query's length matters.
    one = Trial.of(TokenData(trial.tokens, np.full((len(queries), 1), length), trial.labels), trial.head)
    basins = map_basins(one, starts, steps=BASIN_STEPS, optimizer=state.optimizer)
    return {
        "reach": BASIN_REACH,
        "side": BASIN_STARTS,
        "cells": basins.destination.tolist(),
        "shares": basins.share.tolist(),
        "directions": [direction.selected.tolist() for direction in basins.landscape.directions],
    }
