"""Record the last linear layer of a torch model, to find which norm's margin training maximises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.platform.extras import extra_for
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, counted
from attsvm.theory.checkpoints import checkpoints_in, load_weights, read_weights
from attsvm.theory.margin_path import MarginPath, margin_path
from attsvm.theory.margin_report import REPORT_NORMS, TOL

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import TrainerCallback

# Number of records per decade of steps, twice what an interval needs.
_PER_DECADE = 4


class MarginRecorder(Summarised):
    """Records the last linear layer of a classifier during training, at four steps per decade.

    Call :meth:`step` after every step of the optimiser, for any batch, and :meth:`path` at the end. The Trainer of
    transformers takes :meth:`callback` instead, and :meth:`from_checkpoints` reads the checkpoints of a run. The bias
    is one more column of the matrix, for an input of one.

    Parameters
    ----------
    model : torch.nn.Module
        A linear layer gives one score per class.
    X : Tensor, or dict of str to Tensor
        The training set: the argument of the model, or its arguments by name.
    y : array_like of int, shape (n,)
        Labels from 0.
    layer : torch.nn.Linear, optional
        The layer that gives the scores. Default: the last one of the model.

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

    def __init__(
        self, model: nn.Module, X: Tensor | Mapping[str, Tensor], y: Any, layer: nn.Linear | None = None
    ) -> None:
        with extra_for("attsvm.MarginRecorder"):
            import torch
        layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        if not layers:
            raise ValueError(
                f"model is a {type(model).__name__} without a torch.nn.Linear; a linear layer was expected."
            )
        self.model, self.layer, self.X = model, layers[-1] if layer is None else layer, X
        self.y = to_numpy("y", y)
        self.steps = 0
        self._marks: list[int] = []
        self._matrices: list[np.ndarray] = []
        self._due = 1

    @classmethod
    def from_checkpoints(
        cls,
        folder: str | Path,
        model: nn.Module,
        X: Tensor | Mapping[str, Tensor],
        y: Any,
        layer: nn.Linear | None = None,
    ) -> MarginRecorder:
        """Read the records from the checkpoints of a run, and load the last one into the model.

        The result can record later steps, so it may also be used for a resumed run.

        Parameters
        ----------
        folder : str or Path
            The output folder of a Trainer, or a folder of state dicts (`.pt`, `.pth`, `.bin` or `.safetensors`) whose
            names end with the step. At most ten per decade are used.
        model, X, y, layer
            As for the class. The weights of the model are overwritten.

        Returns
        -------
        MarginRecorder

        Raises
        ------
        ValueError
            If the folder has no checkpoint, or a checkpoint does not have the layer.

        Examples
        --------
        >>> import tempfile, torch
        >>> from attsvm import MarginRecorder
        >>> model = torch.nn.Linear(2, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (10, 100):
        ...         torch.save(model.state_dict(), f"{folder}/step-{step}.pt")
        ...     MarginRecorder.from_checkpoints(folder, model, torch.eye(2), [0, 1]).path().steps
        array([ 10, 100])
        """
        recorder = cls(model, X, y, layer)
        name = next(name for name, module in model.named_modules() if module is recorder.layer)
        parameters = [f"{name}.{part}".lstrip(".") for part, _ in recorder.layer.named_parameters()]
        found = checkpoints_in(folder)
        matrices = [_joined(*read_weights(path, parameters).values()) for path in found.values()]
        load_weights(model, found[max(found)])
        recorder.load_state_dict({"steps": max(found), "marks": list(found), "matrices": matrices})
        return recorder

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

    def callback(self) -> TrainerCallback:
        """Make a callback for the Trainer of transformers, which calls :meth:`step` and keeps records in checkpoints.

        A run that is resumed from a checkpoint of its output folder continues with the records in this checkpoint.

        Returns
        -------
        TrainerCallback
            For ``Trainer(..., callbacks=[recorder.callback()])``.

        Examples
        --------
        >>> import torch
        >>> from attsvm import MarginRecorder
        >>> recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> recorder.callback().recorder is recorder
        True
        """
        with extra_for("attsvm.MarginRecorder.callback"):
            from attsvm.theory.trainer_callback import MarginCallback
        return MarginCallback(self)

    def state_dict(self) -> dict[str, Any]:
        """Return steps and records, as tensors; a resumed run passes them to :meth:`load_state_dict`.

        Examples
        --------
        >>> import torch
        >>> from attsvm import MarginRecorder
        >>> recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> recorder.step()
        >>> recorder.state_dict()["marks"]
        [1]
        """
        import torch

        matrices = [torch.from_numpy(W) for W in self._matrices]
        return {"steps": self.steps, "marks": list(self._marks), "matrices": matrices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the records of a :meth:`state_dict`; the current records are dropped.

        Parameters
        ----------
        state : mapping

        Examples
        --------
        >>> import torch
        >>> from attsvm import MarginRecorder
        >>> recorder = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> recorder.step()
        >>> resumed = MarginRecorder(torch.nn.Linear(2, 2), torch.eye(2), [0, 1])
        >>> resumed.load_state_dict(recorder.state_dict())
        >>> resumed.steps
        1
        """
        self.steps, self._marks = state["steps"], list(state["marks"])
        self._matrices = [to_numpy("matrices", W) for W in state["matrices"]]
        self._due = _next_mark(self.steps) if self.steps else 1

    def path(
        self, norms: Iterable[AnyNorm] = REPORT_NORMS, *, tol: float = TOL, time_limit: float | None = None
    ) -> MarginPath:
        """Compare the records with the largest margins for the current inputs of the layer.

        These inputs change while layers below train. The shares of earlier records are shares on the current inputs.

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
        self._matrices.append(_joined(*(parameter.detach() for parameter in self.layer.parameters())))

    def _features(self) -> np.ndarray:
        """Return the inputs (n, d) of the layer in evaluation mode, with a column of ones for a bias."""
        import torch

        device = self.layer.weight.device
        inputs: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
        training = self.model.training
        try:
            self.model.eval()
            with torch.no_grad():
                if isinstance(self.X, Mapping):
                    self.model(**{name: part.to(device) for name, part in self.X.items()})
                else:
                    self.model(self.X.to(device))
        finally:
            hook.remove()
            self.model.train(training)
        shape = (len(self.y), self.layer.in_features)
        if not inputs or inputs[-1].shape != shape:
            found = tuple(inputs[-1].shape) if inputs else "no inputs"
            raise ValueError(f"layer has inputs {found}; (n, d) = {shape} was expected: one input per label.")
        features = to_numpy("X", inputs[-1])
        return features if self.layer.bias is None else np.column_stack([features, np.ones(len(features))])

    def _summary(self) -> Summary:
        facts = [("layer", str(self.layer)), ("steps", f"{self.steps:,}, {counted(len(self._marks), 'record')}")]
        return Summary("MarginRecorder", colour=MARKED, facts=facts, notes=["path() says which norm is maximised."])


def _joined(weight: Tensor, *bias: Tensor) -> np.ndarray:
    """Copy a weight, with its bias as one more column."""
    columns = [to_numpy("weight", weight), *(to_numpy("bias", one)[:, None] for one in bias)]
    return np.concatenate(columns, axis=1)


def _next_mark(step: int) -> int:
    """Return the first rounded 10^(j / _PER_DECADE) above a step."""
    place = int(np.floor(_PER_DECADE * np.log10(step)))
    return next(mark for j in count(place) if (mark := round(10 ** (j / _PER_DECADE))) > step)
