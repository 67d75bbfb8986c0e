"""Many problems of one shape, and their solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.core.types import Array
from attsvm.platform.extras import frame
from attsvm.platform.interop import Kind, to_numpy
from attsvm.platform.summary import GOOD, UNSURE, Listed, Summarised, Summary
from attsvm.solution.solution import Solution


@dataclass(frozen=True, eq=False, repr=False)
class ProblemBatch(Listed):
    """Selection problems of one shape, stacked.

    Parameters
    ----------
    tokens : array_like, shape (B, n, T, d)
    queries : array_like, shape (B, n, dz)
    selected : array_like, shape (B, n) int or (B, n, T) bool
    mask : array_like of bool, shape (B, n, T), optional

    Raises
    ------
    ValueError
        If an argument does not fit; one sentence names the argument, its shape and what was expected.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ProblemBatch
    >>> batch = ProblemBatch(np.zeros((10, 3, 4, 2)), np.ones((10, 3, 2)), np.zeros((10, 3), int))
    >>> len(batch), batch[0].shape
    (10, (3, 4, 2, 2))
    """

    tokens: Any
    queries: Any
    selected: Any
    mask: Any = None
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        tokens = to_numpy("tokens", self.tokens)
        if tokens.ndim != 4 or 0 in tokens.shape:
            raise ValueError(f"tokens has shape {tokens.shape}; (B, n, T, d) with no empty axis was expected.")
        B, n, T, d = tokens.shape
        queries = to_numpy("queries", self.queries)
        if queries.ndim != 3 or queries.shape[:2] != (B, n):
            raise ValueError(f"queries has shape {queries.shape}; ({B}, {n}, dz) was expected.")
        selection = to_numpy("selected", self.selected)
        if selection.shape[:2] != (B, n):
            raise ValueError(f"selected has shape {selection.shape}; {(B, n)} or {(B, n, T)} was expected.")
        visible = None if self.mask is None else to_numpy("mask", self.mask)
        if visible is not None and visible.shape != (B, n, T):
            raise ValueError(f"mask has shape {visible.shape}; {(B, n, T)} was expected.")
        # All instances together form one problem, whose constructor checks every value in one pass.
        whole = SelectionProblem(
            tokens.reshape(B * n, T, d),
            queries.reshape(B * n, -1),
            selection.reshape(B * n, *selection.shape[2:]),
            mask=None if visible is None else visible.reshape(B * n, T),
        )
        object.__setattr__(self, "kind", Kind.of(self.tokens, self.queries))
        object.__setattr__(self, "tokens", whole.tokens.astype(np.float64, copy=False).reshape(B, n, T, d))
        object.__setattr__(self, "queries", whole.queries.reshape(B, n, -1))
        object.__setattr__(self, "selected", whole.selected.reshape(B, n, T))
        object.__setattr__(self, "mask", whole.mask.reshape(B, n, T))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> SelectionProblem:
        problem = SelectionProblem(self.tokens[index], self.queries[index], self.selected[index], mask=self.mask[index])
        problem.kind = self.kind
        return problem

    def __iter__(self) -> Iterator[SelectionProblem]:
        return (self[b] for b in range(len(self)))


@dataclass(frozen=True, eq=False, repr=False)
class BatchSolution(Summarised):
    """Answers to a batch; ``batch[b]`` is the :class:`attsvm.Solution` of instance b.

    Attributes
    ----------
    W : array, shape (B, d, dz)
        NaN where no W was found.
    dual, margins : array, shape (B, n, T)
        For an infeasible instance, ``dual`` holds the certificate's multipliers, which sum to one, and margins are
        zero.
    objective, gap : ndarray, shape (B,)
    status : ndarray of Status, shape (B,)
    seconds : float
        For the whole batch.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ProblemBatch, solve_batch
    >>> tokens = np.array([[[[1.0], [0.0]]], [[[2.0], [0.0]]]])
    >>> answers = solve_batch(ProblemBatch(tokens, np.ones((2, 1, 1)), np.zeros((2, 1), int)))
    >>> answers.objective.round(9)
    array([1. , 0.5])
    >>> answers[1].margins
    array([[0., 1.]])
    """

    problems: Sequence[SelectionProblem] | ProblemBatch
    norm: Norm
    W: Array
    dual: Array
    margins: Array
    objective: np.ndarray
    gap: np.ndarray
    status: np.ndarray
    seconds: float
    certified: Callable[[int], Solution]

    def __len__(self) -> int:
        return len(self.objective)

    def __getitem__(self, index: int) -> Solution:
        return self.certified(range(len(self))[index])

    def __iter__(self) -> Iterator[Solution]:
        return (self[b] for b in range(len(self)))

    def to_frame(self) -> Any:
        """List the instances in a pandas DataFrame: status, objective and certified gap, one row per instance.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, solve_batch
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> solve_batch([problem, problem]).to_frame()["status"].tolist()
        ['OPTIMAL', 'OPTIMAL']
        """
        columns = {"status": [status.name for status in self.status], "objective": self.objective, "gap": self.gap}
        return frame("BatchSolution.to_frame", columns)

    def _summary(self) -> Summary:
        counts = {status: int((self.status == status).sum()) for status in Status}
        finite = self.gap[np.isfinite(self.gap)]
        facts = [(status.name, f"{number:,}") for status, number in counts.items() if number]
        facts += [("largest gap", f"{finite.max():.1e}")] if len(finite) else []
        facts.append(("seconds", f"{self.seconds:.3g}"))
        decisions = counts[Status.OPTIMAL] + counts[Status.INFEASIBLE]
        return Summary(
            "BatchSolution", f"{decisions:,} of {len(self):,} decided",
            GOOD if decisions == len(self) else UNSURE, facts, notes=["batch[b] is the Solution of instance b."],
        )  # fmt: skip
