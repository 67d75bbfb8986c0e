"""Recording the last linear layer of a torch model, to ask which norm's margin training maximises."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.platform.extras import extra_for
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, counted
from attsvm.theory.margin_path import MarginPath, margin_path
from attsvm.theory.margin_report import REPORT_NORMS, TOL

if TYPE_CHECKING:
    from torch import Tensor, nn

# Number of records per decade of steps, twice as many as an interval needs.
_PER_DECADE = 4


class MarginRecorder(Summarised):
    """Records the last linear layer of a classifier during training, at four steps per decade.

    Call :meth:`step` after every step of the optimiser, and :meth:`path` at the end. The bias is a further column of
    the matrix, for an input of one.

    Parameters
    ----------
    model : torch.nn.Module
        Its last `torch.nn.Linear` gives one score per class.
    X : Tensor
        Inputs of the model, the training set.
    y : array_like of int, shape (n,)
        Labels from 0.

    Raises
    ------
    ValueError
        If the model has no linear layer.

    Examples
    --------
    >>> import torch
    >>> from attsvm import MarginRecorder
    >>> model, X, y = torch.nn.Linear(2, 2), torch.eye(2), torch.tensor([0, 1])
    >>> recorder = MarginRecorder(model, X, y)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(X), y).backward()
    ...     optimizer.step()
    ...     recorder.step()
    >>> recorder.path().steps
    array([  1,   2,   3,   6,  10,  18,  32,  56, 100])
    """

    def __init__(self, model: nn.Module, X: Tensor, y: Any) -> None:
        with extra_for("attsvm.MarginRecorder"):
            import torch
        layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        if not layers:
            raise ValueError(
                f"model is a {type(model).__name__} without a torch.nn.Linear; a linear layer was expected."
            )
        self.model, self.layer, self.X = model, layers[-1], X
        self.y = to_numpy("y", y)
        self.steps = 0
        self._marks: list[int] = []
        self._matrices: list[np.ndarray] = []
        self._due = 1

    def step(self) -> None:
        """Count a step of the optimiser, and record the layer if it is due.

        Examples
        --------
        >>> import torch
        >>> from attsvm import MarginRecorder
        >>> recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> recorder.step()
        >>> recorder.steps
        1
        """
        self.steps += 1
        if self.steps >= self._due:
            self._record()
            self._due = _next_mark(self.steps)

    def path(
        self, norms: Iterable[AnyNorm] = REPORT_NORMS, *, tol: float = TOL, time_limit: float | None = None
    ) -> MarginPath:
        """Compare the records with the largest margins for the layer's inputs as they are now.

        Layers below that still train move these inputs. Shares of earlier records are then their shares on the last
        inputs.

        Parameters
        ----------
        norms, tol, time_limit
            As for :func:`attsvm.margin_path`.

        Returns
        -------
        MarginPath

        Examples
        --------
        >>> import torch
        >>> from attsvm import MarginRecorder
        >>> recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> recorder.step()
        >>> recorder.path().steps
        array([1])
        """
        if not self._marks or self._marks[-1] < self.steps:
            self._record()
        problem = SelectionProblem.from_classes(self._features(), self.y, classes=self.layer.out_features)
        return margin_path(self._matrices, self._marks, problem, norms, tol=tol, time_limit=time_limit)

    def _record(self) -> None:
        self._marks.append(self.steps)
        weight = to_numpy("weight", self.layer.weight.detach())
        if self.layer.bias is not None:
            weight = np.column_stack([weight, to_numpy("bias", self.layer.bias.detach())])
        self._matrices.append(weight.copy())

    def _features(self) -> np.ndarray:
        """Return the inputs (n, d) of the layer in evaluation mode, with a column of ones for a bias."""
        import torch

        inputs: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
        training = self.model.training
        try:
            self.model.eval()
            with torch.no_grad():
                self.model(self.X)
        finally:
            hook.remove()
            self.model.train(training)
        features = to_numpy("X", inputs[-1]).reshape(len(self.y), -1)
        return features if self.layer.bias is None else np.column_stack([features, np.ones(len(features))])

    def _summary(self) -> Summary:
        facts = [
            ("layer", str(self.layer)),
            ("steps", f"{self.steps:,}, {counted(len(self._marks), 'record')}"),
        ]
        return Summary("MarginRecorder", colour=MARKED, facts=facts, notes=["path() says which norm is maximised."])


def _next_mark(step: int) -> int:
    """Return the first rounded 10^(j / _PER_DECADE) above a step."""
    place = int(np.floor(_PER_DECADE * np.log10(step)))
    return next(mark for j in count(place) if (mark := round(10 ** (j / _PER_DECADE))) > step)
