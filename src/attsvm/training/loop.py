"""train(): the one door to training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.interop import is_tensor
from attsvm.data.token_data import TokenData
from attsvm.nn.losses import Loss
from attsvm.training.descent import Optimizer
from attsvm.training.engine import CompiledEngine, Engine, TorchEngine, can_compile
from attsvm.training.initial import initial_parameters
from attsvm.training.joint import JointTraining
from attsvm.training.objective import Objective
from attsvm.training.registry import make_optimizer
from attsvm.training.schedule import Schedule
from attsvm.training.trace import Trace

Array = Any

# Between callbacks a run is cut into at most this many pieces, so that a progress bar moves and Ctrl-C is heard.
_PIECES = 100


def _record_steps(record_every: int | Sequence[int] | None, steps: int) -> np.ndarray:
    """Return the sorted step numbers at which to record; 0 and `steps` are always among them."""
    if record_every is None:
        marks = np.array([], dtype=int)
    elif isinstance(record_every, (int, np.integer)):
        if record_every < 1:
            raise ValueError(f"record_every is {record_every}; a positive integer or a list of steps was expected.")
        marks = np.arange(0, steps, int(record_every))
    else:
        marks = np.asarray(record_every)
        if marks.ndim != 1 or marks.dtype.kind not in "iu" or (marks < 0).any() or (marks > steps).any():
            raise ValueError(
                f"record_every has shape {marks.shape}; a positive integer or steps in 0..{steps} were expected."
            )
    return np.unique(np.concatenate([marks, [0, steps]]).astype(int))


def _working_dtype(dtype: Any, data: TokenData) -> tuple[torch.dtype, Any]:
    """Return the dtype to compute in and the dtype (of the data's kind) to return."""
    if dtype is None:
        return torch.float64, data.tokens.dtype
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else np.dtype(dtype).name
    if name not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}; float64 or float32 was expected.")
    work = getattr(torch, name)
    return work, work if is_tensor(data.tokens) else np.dtype(name)


def _snapshot(engine: Engine) -> dict[str, Tensor]:
    """Return the current parameters by name, shape (B, ...); those of the head begin with "head."."""
    names = ("W",) if len(engine.params) == 1 else ("K", "Q")
    head = {} if engine.head is None else engine.head.parameters()
    return dict(zip(names, engine.params, strict=True)) | {f"head.{name}": p for name, p in head.items()}


def _run(
    engine: Engine, marks: np.ndarray, steps: int, callback: Callable[[int, int], bool | None] | None
) -> tuple[dict[str, Tensor], np.ndarray, bool]:
    """Advance from mark to mark; return the records (B, R, ...), their steps, and whether the callback stopped."""
    stops = set(marks.tolist())
    if callback is not None:
        stops.update(np.linspace(0, steps, _PIECES + 1).astype(int).tolist())
    records = {name: p.new_empty((p.shape[0], len(marks), *p.shape[1:])) for name, p in _snapshot(engine).items()}
    recorded: list[int] = []
    count = 0
    for stop in sorted(stops):
        if stop > count:
            engine.advance(count, stop - count)
            count = stop
        cancel = callback is not None and bool(callback(count, steps))
        if cancel or count == marks[len(recorded)]:
            for name, parameter in _snapshot(engine).items():
                records[name][:, len(recorded)] = parameter
            recorded.append(count)
        if cancel:
            break
    return {name: r[:, : len(recorded)] for name, r in records.items()}, np.array(recorded), count < steps


def train(
    data: TokenData,
    head: Any,
    *,
    parameterization: str = "W",
    rank: int | None = None,
    heads: int = 1,
    head_lr: float | None = None,
    loss: str | Loss | Callable[[Tensor], Tensor] = "logistic",
    optimizer: str | Optimizer = "normalized_gd",
    steps: int = 1000,
    lr: float | None = None,
    schedule: Schedule | None = None,
    init: Any = None,
    record_every: int | Sequence[int] | None = None,
    seed: int | Sequence[int] | np.ndarray = 0,
    dtype: Any = None,
    numerics: str = "exact",
    backend: str = "auto",
    callback: Callable[[int, int], bool | None] | None = None,
) -> Trace:
    r"""Train one attention layer on every trial of `data` at once.

    The model is :math:`h(X_i^\top \mathrm{softmax}(X_i W z_i))` with the head h fixed and W, or K and Q with
    :math:`W = KQ^\top`, trained on the mean loss of :math:`Y_i h`.

    Parameters
    ----------
    data : TokenData
        Leading dimensions are independent trials.
    head : array (dv,) or (..., dv), or module
        v of the linear head v^T x, or any torch module that maps (B, n, dv) to (B, n).
    parameterization : {"W", "KQ"}
    rank : int, optional
        Width of K and Q; min(d, dz) by default.
    heads : int
        Number H of attention heads, whose outputs are added before h. W is then (..., H, d, dz); v may be one for each
        attention head, (..., H, dv). From W = 0 equal heads stay equal: give an `init`.
    head_lr : float, optional
        Train the parameters of h too, at this rate and normalised if the optimizer is; by default h is fixed.
    loss : {"logistic", "exponential", "correlation", "log"} or callable
        See :mod:`attsvm.nn.losses`.
    optimizer : str or Optimizer
        A name of :data:`attsvm.training.registry.OPTIMIZERS`; "normalized_gd" by default.
    steps : int
    lr : float, optional
        Step size; the default belongs to the optimizer: 0.1 for normalised descent on W, and 0.5 (times
        ||(K,Q)||/sqrt(k)) on K and Q.
    schedule : {"constant", "sqrt", "linear", "exponential"} or callable, optional
        Factor of the step size as a function of k = 1, 2, ...
    init : None, "zero", "torch", array (d, dz), or pair (K, Q)
        None: W = 0; for K and Q, K = 0.1 N(0, 1) and Q = 0. "torch": torch's Linear default, as published.
        Arrays may carry the trial dimensions.
    record_every : int or list of int, optional
        Steps to record; by default the first and the last, which are always recorded.
    seed : int or one int a trial
        For random starts only; trial j of an integer seed draws from (seed, j).
    dtype : optional
        Computation and result dtype; by default the computation is in float64 and the result in the data's dtype.
    numerics : {"exact", "autograd"}
        "autograd" differentiates plain softmax, for comparison.
    backend : {"auto", "torch", "compiled"}
        The compiled loop serves small trials of linear heads on the CPU in float64; "auto" takes it where it can.
    callback : callable (step, steps) -> bool or None, optional
        Called some hundred times during a run and at each record; a true result stops training there.

    Returns
    -------
    Trace
        NumPy arrays for NumPy data, tensors on the same device for tensors.

    Raises
    ------
    ValueError
        If an argument does not fit; the sentence names it.
    """
    if not isinstance(data, TokenData):
        raise ValueError(f"data has type {type(data).__name__}; attsvm.TokenData was expected.")
    for name, value, choices in (
        ("parameterization", parameterization, ("W", "KQ")),
        ("numerics", numerics, ("exact", "autograd")),
        ("backend", backend, ("auto", "torch", "compiled")),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, choices))} was expected.")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"steps is {steps!r}; a non-negative integer was expected.")
    if isinstance(heads, bool) or not isinstance(heads, (int, np.integer)) or heads < 1:
        raise ValueError(f"heads is {heads!r}; a positive integer was expected.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback has type {type(callback).__name__}; a callable (step, steps) was expected.")
    began = time.perf_counter()
    work, out = _working_dtype(dtype, data)
    rule = make_optimizer(optimizer, parameterization, lr, schedule)
    objective = Objective.from_data(data, head, loss, work, numerics, heads, train_head=head_lr is not None)
    params = initial_parameters(
        init, parameterization, rank, data.batch_shape, data.d, data.dz, seed, objective.tokens, heads
    )
    joint = None if head_lr is None else JointTraining(objective, head_lr, rule.normalized)
    obstacle = "training the head" if joint else can_compile(objective, rule, params)
    if backend == "compiled" and obstacle:
        raise ValueError(f"backend is 'compiled', but the compiled loop does not do {obstacle}; use 'torch' or 'auto'.")
    if backend == "torch" or obstacle:
        engine = TorchEngine(objective, rule, params, joint)
    else:
        engine = CompiledEngine(objective, rule, params)
    marks = _record_steps(record_every, int(steps))
    records, count, cancelled = _run(engine, marks, int(steps), callback)
    W = records["K"] @ records["Q"].mT if parameterization == "KQ" else records["W"]

    def shaped(tensor: Tensor) -> Array:
        tensor = tensor.reshape(*data.batch_shape, *tensor.shape[1:])
        return tensor.to(out) if is_tensor(data.tokens) else tensor.numpy().astype(out, copy=False)

    arrays = {name: shaped(record) for name, record in records.items()}
    return Trace(
        data=data,
        step=count,
        W=shaped(W),
        K=arrays.get("K"),
        Q=arrays.get("Q"),
        head={name.removeprefix("head."): array for name, array in arrays.items() if name.startswith("head.")},
        optimizer=rule.name,
        numerics=numerics,
        backend=engine.name,
        stopped=cancelled,
        seconds=time.perf_counter() - began,
        _objective=objective,
        _records=records | {"W": W},
    )
