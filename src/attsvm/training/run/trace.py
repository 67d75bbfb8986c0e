"""The result of training: recorded iterates, and quantities computed from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.types import Array
from attsvm.data.token_data import TokenData
from attsvm.platform.extras import drawing, frame
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, counted, line, one_line
from attsvm.training.risk.embeddings import EmbeddingTraining
from attsvm.training.risk.objective import Objective
from attsvm.training.run.saved_trace import read_trace, write_trace


@dataclass(frozen=True, eq=False)
class Trace(Summarised):
    """The record of one call of :func:`attsvm.train`.

    Only the parameters are stored, d x dz numbers per record. Loss, attention and norms of records are computed on
    request.

    Attributes
    ----------
    data : TokenData
    step : int array, shape (records,)
        Number of steps before each record; the first is 0, the last is the end of the run.
    W : array, shape (..., records, d, dz)
        Recorded W, (..., records, H, d, dz) for several attention heads; K Q^T for the factored parameterisation.
    K, Q : arrays, shape (..., records, d, m) and (..., records, dz, m), or None
    head : dict of arrays
        Recorded parameters of the head by name, shape (..., records, ...); empty unless they were trained.
    embeddings : array, shape (..., records, words, d), or None
        Recorded table of embeddings, if it was trained. `data` has the tokens of the first record.
    optimizer : str
    numerics : {"exact", "autograd"}
    backend : {"torch", "compiled"}
    stopped : bool
        Whether the callback ended the run early.
    seconds : float
    flipped : bool array, shape (..., n)
        Labels that `label_noise` flipped; `data` has the flipped labels.
    last_step : int array, shape (...)
        Number of steps of each trial; fewer than the last `step` if the trial ended early.
    notice : str
        Why trials ended early, empty if none did: parameters left the range of their dtype, or the arithmetic of a
        torch optimiser lost the gradient. The later records of such a trial repeat its last finite iterate.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=100, record_every=50)
    >>> trace.step, trace.W.shape, trace.attention.shape
    (array([  0,  50, 100]), (3, 2, 1), (3, 1, 2))
    >>> bool(trace.loss[-1] < trace.loss[0]), trace.selected
    (True, array([0]))
    """

    data: TokenData
    step: np.ndarray
    W: Array
    K: Array | None
    Q: Array | None
    head: dict[str, Array]
    embeddings: Array | None
    optimizer: str
    numerics: str
    backend: str
    stopped: bool
    seconds: float
    flipped: np.ndarray
    last_step: np.ndarray
    notice: str
    _objective: Objective = field(repr=False)
    _records: dict[str, Tensor] = field(repr=False)  # (B, R, ...) in the precision of the computation
    _evaluation: Objective | None = field(repr=False)
    _embedding: EmbeddingTraining | None = field(repr=False)

    def followed_by(self, later: Trace) -> Trace:
        """Join a run that began at the end of this one.

        Parameters
        ----------
        later : Trace
            Trained on the same data with the same settings; its `init` is the last W, or (K, Q), of this trace.

        Returns
        -------
        Trace
            Both runs as one; the shared record, end of this run and start of `later`, appears once.

        Raises
        ------
        ValueError
            If `later` does not begin at the end of this run.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, train
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> first = train(data, [1.0, 0.0], steps=100)
        >>> later = train(data, [1.0, 0.0], steps=50, init=first.W[-1])
        >>> int(first.followed_by(later).step[-1])
        150
        """
        names = self._records.keys() - {"W"} if self.K is not None else self._records.keys()
        for name in sorted(names):
            end, start = self._records[name][:, -1], later._records[name][:, 0]
            if end.shape != start.shape or not torch.equal(end, start):
                raise ValueError(f"later begins at another {name}; the end of the earlier run was expected.")

        def join(first: Any, second: Any, axis: int) -> Array:
            rest = second[(slice(None),) * axis + (slice(1, None),)]
            return torch.cat([first, rest], axis) if is_tensor(first) else np.concatenate([first, rest], axis)

        axis = len(self.data.batch_shape)
        factors = {name: getattr(self, name) for name in ("K", "Q", "embeddings")}
        return replace(
            self,
            step=np.concatenate([self.step, self.step[-1] + later.step[1:]]),
            W=join(self.W, later.W, axis),
            head={name: join(rows, later.head[name], axis) for name, rows in self.head.items()},
            stopped=later.stopped,
            last_step=self.step[-1] + later.last_step,
            notice=later.notice,
            seconds=self.seconds + later.seconds,
            _records={name: join(rows, later._records[name], 1) for name, rows in self._records.items()},
            **{n: None if rows is None else join(rows, getattr(later, n), axis) for n, rows in factors.items()},
        )

    def _each_record(self, function: Callable[[Tensor], Tensor]) -> Array:
        """Apply a function of W (B, d, dz) to each record and return the results as (..., records, ...)."""
        with torch.no_grad():
            stacked = torch.stack([function(self._at(r)) for r in range(len(self.step))], 1)
        return self._like_data(stacked.reshape(*self.data.batch_shape, *stacked.shape[1:]))

    def _at(self, record: int) -> Tensor:
        """Return W of a record, shape (B, ...), after setting the head's parameters of that record."""
        if self.head:
            module = self._objective.head
            assert isinstance(module, torch.nn.Module)
            for name, parameter in module.named_parameters():
                if f"head.{name}" not in self._records:
                    continue
                parameter.copy_(self._records[f"head.{name}"][:, record].view_as(parameter))
            self._objective.refresh_head()
            if self._evaluation is not None:
                self._evaluation.refresh_head()
        if self._embedding is not None:
            self._embedding.table.copy_(self._records["embeddings"][:, record])
            self._embedding.refresh()
        return self._records["W"][:, record]

    def _like_data(self, tensor: Tensor) -> Array:
        dtype: Any = self.W.dtype
        if not is_tensor(self.W):
            array = tensor.cpu().numpy()
            return array.astype(dtype) if tensor.is_floating_point() else array
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    @cached_property
    def loss(self) -> Array:
        """Risk 1/n sum_i l(Y_i h(x(s_i))) at each record, shape (..., records)."""
        return self._each_record(self._objective.value)

    @cached_property
    def accuracy(self) -> Array:
        """Fraction of training queries whose prediction has the sign of the label, at each record, (..., records)."""
        return self._each_record(lambda W: _accuracy(self._objective, W))

    @cached_property
    def held_out_loss(self) -> Array:
        """Risk on the held-out data at each record, shape (..., records).

        Raises
        ------
        ValueError
            If there is no held-out data.
        """
        return self._each_record(self._held_out.value)

    @cached_property
    def held_out_accuracy(self) -> Array:
        """Accuracy on the held-out data at each record, shape (..., records).

        Raises
        ------
        ValueError
            If there is no held-out data.
        """
        return self._each_record(lambda W: _accuracy(self._held_out, W))

    @property
    def _held_out(self) -> Objective:
        if self._evaluation is None:
            raise ValueError("held_out was None in train(); data was expected.")
        return self._evaluation

    @cached_property
    def imbalance(self) -> Array:
        """K^T K - Q^T Q at each record, shape (..., records, m, m); gradient flow conserves it, decay shrinks it.

        Raises
        ------
        ValueError
            If W was trained, not factors.
        """
        if self.K is None:
            raise ValueError("parameterization was 'W' in train(); 'KQ' was expected.")
        K, Q = self._records["K"], self._records["Q"]
        difference = K.mT @ K - Q.mT @ Q
        return self._like_data(difference.reshape(*self.data.batch_shape, *difference.shape[1:]))

    @cached_property
    def attention(self) -> Array:
        """Softmax probabilities at each record, shape (..., records, n, T)."""
        return self._each_record(self._objective.attention)

    @cached_property
    def norm(self) -> Array:
        """Frobenius norm of W at each record, over all attention heads, shape (..., records)."""
        return self._each_record(lambda W: torch.linalg.vector_norm(W.flatten(1), dim=-1))

    @cached_property
    def selected(self) -> Array:
        """Token with the highest attention per query at the end, integers (..., n), or (..., H, n) with heads."""
        with torch.no_grad():
            top = self._objective.logits(self._at(len(self.step) - 1)).argmax(-1)
        return self._like_data(top.reshape(*self.data.batch_shape, *top.shape[1:]))

    @cached_property
    def stationary(self) -> Array:
        """Whether the computed gradient is exactly zero at the end, booleans of shape (...).

        For exact numerics and a named loss this is a true stationary point: single tokens, equal scores, or a head that
        is flat there. For a custom loss it also happens when the slope underflows, and for numerics="autograd" once
        every query is saturated; the run then stops for a numerical reason.
        """
        with torch.no_grad():
            zero = self._objective.gradient(self._at(len(self.step) - 1)).W.flatten(1).eq(0).all(-1)
        return self._like_data(zero.reshape(self.data.batch_shape))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as a .npz file of plain arrays; nothing is pickled.

        The file has the data, the recorded parameters, and heads and losses of attsvm. A user-defined head or loss is
        not in the file, except trained parameters: pass the same object to :meth:`load`.

        Parameters
        ----------
        path : path

        Raises
        ------
        ValueError
            If the path ends in .json, because the file is not text.
        OSError
            If the file cannot be written.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np
        >>> from attsvm import TokenData, Trace, train
        >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
        >>> trace = train(data, np.array([1.0, 0.0]), steps=100)
        >>> path = os.path.join(tempfile.mkdtemp(), "trace.npz")
        >>> trace.save(path)
        >>> copy = Trace.load(path)
        >>> np.array_equal(copy.W, trace.W), np.array_equal(copy.loss, trace.loss)
        (True, True)
        """
        if os.fspath(path).endswith(".json"):
            raise ValueError(f"path is {os.fspath(path)}; a trace is arrays, a name such as t.npz was expected.")
        write_trace(path, self)

    @staticmethod
    def load(path: str | os.PathLike[str], *, head: Any = None, loss: Any = None) -> Trace:
        """Read a trace written by :meth:`save`; tensors come back as arrays.

        Parameters
        ----------
        path : path
        head, loss : optional
            Arguments of :func:`attsvm.train`, if they are user-defined.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is not a trace, or a user-defined head or loss is missing.

        Examples
        --------
        >>> from attsvm import Trace
        >>> Trace.load("missing.npz")
        Traceback (most recent call last):
        FileNotFoundError: missing.npz does not exist; a .npz file was expected.
        """
        return Trace(**read_trace(path, head, loss))

    def to_frame(self) -> Any:
        """List the records.

        Returns
        -------
        pandas.DataFrame
            Columns step, loss and norm (of W), one row per record.

        Raises
        ------
        ValueError
            For a trace of several trials.
        ImportError
            If pandas is missing.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, train
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> list(train(data, [1.0, 0.0], steps=100).to_frame().columns)
        ['step', 'loss', 'norm']
        """
        if self.data.batch_shape:
            raise ValueError(f"trace is of trials {self.data.batch_shape}; one trial was expected.")
        columns = {"step": self.step, "loss": to_numpy("loss", self.loss), "norm": to_numpy("norm", self.norm)}
        return frame("Trace.to_frame", columns)

    def plot(self, solution: Any = None, ax: Any = None) -> Any:
        """Draw the norm or correlation of W over training; see :func:`attsvm.plots.path`.

        Parameters
        ----------
        solution : Solution, optional
            Draw the correlation with it instead of the norm of W.
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ValueError
            For a trace of several trials.
        ImportError
            If matplotlib is missing.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, train
        >>> data = TokenData(np.eye(2)[None], np.ones((1, 1)), np.array([1]))
        >>> train(data, [1.0, 0.0], steps=100).plot().get_xlabel()
        'step'
        """
        return drawing("Trace.plot").path(self, solution, ax)

    def _summary(self) -> Summary:
        facts = [
            ("trained", f"{'W' if self.K is None else 'K and Q'} by {self.optimizer}, {self.numerics} numerics"),
            ("steps", f"{int(self.step[-1]):,}, {counted(len(self.step), 'record')}, {self.seconds:.3g} s"),
        ]
        picture = ""
        if not self.data.batch_shape:
            norm = np.asarray(to_numpy("norm", self.norm), dtype=float)
            facts.append(("norm of W", f"{norm[0]:.4g} to {norm[-1]:.4g}"))
            picture = line(self.step, norm)
        notes = [self.notice] if self.notice else []
        notes.append("correlation(trace.W[-1], solve(problem).W) compares the direction with the SVM's.")
        return Summary("Trace", "", MARKED, facts, picture, "norm of W over steps", notes)

    def __repr__(self) -> str:
        trained = f"{self.optimizer} on {'W' if self.K is None else 'K, Q'}"
        length = f"{counted(int(self.step[-1]), 'step')}, {counted(len(self.step), 'record')}"
        run = (f"{self.numerics} numerics", self.backend, f"{self.seconds:.3g} s")
        end = ("ended early, see .notice",) if self.notice else ()
        return one_line("Trace", (repr(self.data), trained, *end, length, *run))


def _accuracy(objective: Objective, W: Tensor) -> Tensor:
    return (objective.margin(W) > 0).to(W.dtype).mean(-1)
